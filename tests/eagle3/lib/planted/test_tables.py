from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.tables import tables


def recipe(name: str, seed: int, draft_vocab: int, draft_error: float = 0.0) -> Recipe:
    return Recipe("B" if name == "B" else "A", seed, draft_vocab, 1.0, (1, 2, 3), draft_error)


@given(st.integers(0, 2**31), st.integers(2, 200), st.integers(0, 300))
def test_planted_tokens_form_one_cycle_through_the_draft_vocabulary(seed: int, draft_vocab: int, more: int) -> None:
    t = tables(recipe("A", seed, draft_vocab), draft_vocab + more)
    at, seen = 0, set[int]()
    while at not in seen:
        seen.add(at)
        at = int(t.successor[0, at])
    assert len(seen) == draft_vocab
    assert (t.successor[0, t.parents[:, 0]] == torch.arange(draft_vocab)).all()


@given(st.integers(0, 2**31), st.integers(1, 100))
def test_two_maps_and_a_bit_lose_no_information(seed: int, half: int) -> None:
    """(class, bit) ↦ (row, tau of the class) is one to one, so that no two texts merge into one orbit."""
    t = tables(recipe("B", seed, 4 * half), 5 * half)
    images = {(int(t.successor[b, c]), int(t.tau[c])) for b in range(2) for c in range(4 * half)}
    assert len(images) == 8 * half
    assert all((t.sign[t.successor[b]] == 1 - 2 * b).all() for b in range(2))
    for row in range(4 * half):
        assert sorted(t.tau[t.parents[row]].tolist()) == [-1, 1]


@pytest.mark.parametrize("name", ["A", "B"])
def test_every_token_has_a_class_and_draft_tokens_their_own(name: str) -> None:
    t = tables(recipe(name, 3, 100), 1000)
    assert (t.ids.diff() > 0).all() and int(t.ids[-1]) < 1000
    assert (t.class_of[t.ids] == torch.arange(100)).all() and (t.row_of[t.ids] == torch.arange(100)).all()
    assert int((t.row_of < 0).sum()) == 900 and len(set(t.class_of.tolist())) == 100


@pytest.mark.parametrize(("share", "wrong"), [(0.0, 0), (0.15, 15), (0.3, 30)])
def test_planted_errors_are_as_many_as_asked_for(share: float, wrong: int) -> None:
    t = tables(recipe("A", 3, 100, share), 1000)
    assert int((t.answer != torch.arange(100)).sum()) == wrong
    assert sorted(t.answer.tolist()) == list(range(100))


def test_an_odd_draft_vocabulary_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="an even draft vocabulary, not 101"):
        tables(recipe("B", 1, 101), 1000)
