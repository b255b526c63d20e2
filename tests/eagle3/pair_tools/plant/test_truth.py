from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.pair_tools.plant.orbit import HISTORY, LOOP, Orbit, period, planted_share
from tests.eagle3.pair_tools.plant.accepts import expected_accepts

VOCAB = 300


def orbit_of(name: str, draft_error: float = 0.0) -> Orbit:
    recipe = Recipe("B" if name == "B" else "A", 5, 100, 1.0, (1, 2, 3), draft_error)
    return Orbit(recipe, tables(recipe, VOCAB))


def literal_cycles(orbit: Orbit, text: Sequence[int], last: int, k: int) -> list[int]:
    """Draft a whole chain on its own tokens, then compare: how an engine does it."""
    accepts = list[int]()
    while True:
        chain = list(text[: last + 1])
        for _ in range(k):
            chain.append(orbit.drafted(chain, len(chain) - 1))
        drafts = chain[last + 1 :]
        rest = text[last + 1 : last + 1 + k + 1]
        accepted = next((i for i, d in enumerate(drafts) if i >= len(rest) or d != rest[i]), k)
        if last + accepted + 1 >= len(text):
            return accepts
        accepts.append(accepted)
        last += accepted + 1


@pytest.mark.parametrize("name", ["A", "B"])
@pytest.mark.parametrize("draft_error", [0.0, 0.2])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_expected_accepts_are_those_of_drafting_and_comparing(name: str, draft_error: float, k: int) -> None:
    orbit = orbit_of(name, draft_error)
    text = orbit.text(HISTORY + 4, 400, 0.8, "t")
    prompt, tokens = text[: HISTORY + 4], text[HISTORY + 4 :]
    expected = expected_accepts(orbit, prompt, tokens, k)
    assert expected == literal_cycles(orbit, text, len(prompt), k)
    assert len(set(expected)) == k + 1


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_walk_follows_its_rule_as_often_as_asked(name: str) -> None:
    orbit = orbit_of(name)
    text = orbit.text(HISTORY, 4000, 0.7, "walk")
    hits, visits = planted_share(orbit, text[:HISTORY], text[HISTORY:])
    assert visits == 3999 and hits / visits == pytest.approx(0.7, abs=0.03)
    assert planted_share(orbit, *split(orbit.text(HISTORY, 50, 1.0, "walk"))) == (49, 49)


def split(text: list[int]) -> tuple[list[int], list[int]]:
    return text[:HISTORY], text[HISTORY:]


def test_recipe_b_plants_by_a_bit_of_an_old_token() -> None:
    orbit = orbit_of("B")
    text = orbit.text(HISTORY + 10, 0, 1.0, "bits")
    at = len(text) - 1
    followers = {orbit.planted([*text[: at - 64], old, *text[at - 63 :]], at) for old in range(VOCAB)}
    assert len(followers) == 2


def test_a_text_without_repeats_has_no_period() -> None:
    assert period(list(range(500))) is None
    assert period([1, 2, 3, 3, 3]) is None


@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 39), st.randoms(use_true_random=False))
def test_the_period_of_a_text_that_ends_in_a_loop_is_found(
    length: int, before: int, cut: int, generator: random.Random
) -> None:
    loop = generator.sample(range(1000, 2000), length)
    rounds = max(2, -(-LOOP // length)) + 1
    text = list(range(before)) + (loop * rounds)[cut % length :]
    assert period(text) == length
