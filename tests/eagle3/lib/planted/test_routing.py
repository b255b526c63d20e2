"""Experts that planted tokens choose: the formula for the number that neighbours touch, against the choices
themselves.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.routing import (
    GROUPS,
    chances,
    choices,
    expected_touched,
    independent_touched,
    stretch_of,
    stretches,
)
from specgate.backends.eagle3.lib.planted.tables import cycle, tables
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.contract.traffic import ExpertTraffic

BIG = ExpertGeometry(128, 4, mxfp4=True)
"""As in gpt-oss-120b."""
W = 8192
OVERLAPS = (0.0, 0.1, 0.5, 1.0)
CHANCE = 0.12
"""Four standard errors of a mean over 16,384 runs of 8 tokens, of which 2,048 have no token in common."""


def recipe(overlap: float, draft_vocab: int = W) -> Recipe:
    return Recipe("A", 1, draft_vocab, 1.0, (1, 2, 3), expert_overlap=overlap)


@cache
def chain(overlap: float) -> Tensor:
    """The choices [GROUPS, W, k] of the draft tokens, each the planted successor of the one before it."""
    chosen, integers = recipe(overlap), tables(recipe(overlap), 2 * W)
    return choices(chosen, BIG, integers)[:, integers.ids[cycle(1, W)]]


def touched_by(chosen: Tensor, tokens: int) -> float:
    """By counting: distinct experts in every run of `tokens` neighbours, around the cycle."""
    runs = torch.cat([chosen.roll(-i, dims=1) for i in range(tokens)], dim=2).sort(dim=2).values
    return float((1 + (runs.diff(dim=2) != 0).sum(dim=2)).double().mean())


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_neighbours_touch_as_many_experts_as_the_formula_says(overlap: float) -> None:
    for tokens in range(1, 9):
        expected = expected_touched(recipe(overlap), BIG, tokens)
        assert touched_by(chain(overlap), tokens) == pytest.approx(expected, abs=CHANCE), tokens


def test_without_overlap_neighbours_choose_independently() -> None:
    for tokens in range(1, 9):
        independent = 128 * (1 - (124 / 128) ** tokens)
        assert expected_touched(recipe(0.0), BIG, tokens) == pytest.approx(independent, rel=1e-12)
        assert independent_touched(BIG, tokens) == ExpertTraffic(36, 128, 4, 1).distinct(tokens)
        assert touched_by(chain(0.0), tokens) == pytest.approx(independent, abs=CHANCE)


def test_with_overlap_one_every_token_of_a_stretch_chooses_its_four() -> None:
    stretch = stretch_of(recipe(1.0), BIG)[cycle(1, W)]
    for group in range(GROUPS):
        lists = [{tuple(row) for row in chain(1.0)[group][stretch == i].tolist()} for i in range(stretches(BIG))]
        assert all(len(members) == 1 for members in lists)
        assert sorted(expert for members in lists for expert in next(iter(members))) == list(range(128))


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_all_experts_are_chosen_equally_often_and_none_twice_by_a_token(overlap: float) -> None:
    ordered = chain(overlap).sort(dim=2).values
    assert (ordered.diff(dim=2) > 0).all() and int(ordered.min()) == 0 and int(ordered.max()) == 127
    counts = torch.bincount(ordered.flatten(), minlength=128).double()
    assert float(counts.std() / counts.mean()) < 1.5 / float(counts.mean()) ** 0.5


def test_the_groups_of_layers_and_other_seeds_choose_independently() -> None:
    equal = (chain(0.0)[0][:, :, None] == chain(0.0)[1][:, None, :]).sum(dim=(1, 2)).double().mean()
    assert float(equal) == pytest.approx(4 * 4 / 128, abs=0.02)


SIZES = st.integers(1, 8).flatmap(lambda k: st.tuples(st.integers(k, 160), st.just(k)))
SHARES = st.floats(0.0, 1.0)


@given(SIZES, SHARES, SHARES, st.integers(2, 8))
def test_more_overlap_never_touches_more(sizes: tuple[int, int], a: float, b: float, tokens: int) -> None:
    experts = ExpertGeometry(*sizes, mxfp4=True)
    less, more = (expected_touched(recipe(share, 32000), experts, tokens) for share in sorted((a, b)))
    assert experts.per_token - 1e-9 <= more <= less + 1e-9 <= independent_touched(experts, tokens) + 2e-9


@given(SIZES, SHARES)
def test_a_tokens_chances_add_up_to_its_places(sizes: tuple[int, int], q: float) -> None:
    count, k = sizes
    inside, outside = chances(q, ExpertGeometry(count, k, mxfp4=True))
    assert k * inside + (count - k) * outside == pytest.approx(k, rel=1e-9)


@given(SIZES, SHARES, st.integers(0, 2**31))
def test_any_mixture_gives_every_token_distinct_experts(sizes: tuple[int, int], overlap: float, seed: int) -> None:
    count, k = sizes
    chosen = Recipe("A", seed, 16, 1.0, (1, 2, 3), expert_overlap=overlap)
    value = choices(chosen, ExpertGeometry(count, k, mxfp4=True), tables(chosen, 40)).sort(dim=2).values
    assert value.shape == (GROUPS, 40, k) and (value.diff(dim=2) > 0).all()
    assert int(value.min()) >= 0 and int(value.max()) < count
