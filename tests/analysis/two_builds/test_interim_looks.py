"""The looks at a comparison share one error, and what texts and words say of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulations import ab_simulation as simulation
from bench.simulations.error_rates import bound
from specgate.ab.request import USUAL_LOOKS
from specgate.analysis.two_builds.estimates import Difference
from specgate.analysis.two_builds.outcomes import log_margin, needed, share
from specgate.analysis.two_builds.reduce import unsteady_texts, weights_trouble
from specgate.contract import BASELINE, Block
from specgate.contract.two_builds import Margins, Parting, TextChange
from specgate.planning.plan import build_plan
from tests.support.factories import block, scenario


@given(st.floats(1e-6, 0.5), st.sets(st.integers(1, 200), min_size=1, max_size=64))
def test_the_shares_of_all_looks_never_exceed_the_error_and_none_is_left_with_nothing(
    error: float, looks: set[int]
) -> None:
    shares = [share(error, pairs, before) for before, pairs in pairwise((0, *sorted(looks)))]
    assert math.fsum(shares) <= error * (1 + 1e-12) and min(shares) > 0
    assert share(error, 4) == pytest.approx(0.4 * error)


@given(
    st.floats(-0.02, 0.02),
    st.floats(1e-4, 0.05),
    st.integers(4, 60),
    st.floats(1e-4, 0.01),
    st.integers(1, 6),
    st.integers(60, 300),
)
def test_the_number_that_would_tell_is_the_first_one_that_does(
    mean: float, sd: float, n: int, error: float, family: int, most: int
) -> None:
    difference, margin = Difference(mean, sd, n), log_margin(0.5)

    def tells(count: int) -> bool:
        more = replace(difference, n=count)
        return abs(mean) + more.half_width(error) < margin or abs(mean) > more.half_width(error / family)

    assert needed(difference, margin, error, family, most) == next(
        (c for c in range(n + 1, most + 1) if tells(c)), None
    )


def test_looking_until_a_difference_is_seen_keeps_the_error_only_where_the_looks_share_it() -> None:
    """Equal builds of 20,000 runs, three quantities, no margin; after 8, 16 and 24 pairs."""
    source = np.random.default_rng(11)
    ratios = source.normal(0.0, 0.003, (20_000, 24, 3))
    firsts = np.where(np.arange(24) % 2, 1.0, -1.0) * np.ones((len(ratios), 1))
    error, ever = Margins().error, {"shared": np.zeros(len(ratios), bool), "not shared": np.zeros(len(ratios), bool)}
    for before, pairs in pairwise((0, 8, 16, 24)):
        of = simulation.over_processes(ratios[:, :pairs], firsts[:, :pairs])
        for name, spend in (("shared", share(error, pairs, before)), ("not shared", error)):
            ever[name] |= (simulation.words(of, [0.0] * 3, spend) == simulation.SLOWER).any(axis=1)
    assert bound(ever["shared"])[1] <= error < bound(ever["not shared"])[1]


def test_the_simulated_looks_are_within_both_errors_and_so_is_the_line_of_the_same_within() -> None:
    noise = simulation.Noise("", 0.4, 0.0, changed=0.5, moved=1.3, batch=2)
    session = simulation.Session.of(noise, 6000, USUAL_LOOKS[False], np.random.default_rng(12))
    same, edge = (session.outcome(USUAL_LOOKS[False], Margins(), true) for true in (0.0, 1.0))
    wrong = (same.whole == simulation.SLOWER, edge.spec == simulation.SAME, edge.within < log_margin(1.0))
    assert all(bound(runs)[1] <= Margins().error for runs in wrong)
    assert (same.whole == simulation.SAME).mean() > 0.99 > ((same.pairs == 8) & (same.whole == simulation.SAME)).mean()


def test_a_text_counts_as_unsteady_only_between_processes_of_a_side_and_once_per_prompt() -> None:
    plan = build_plan([scenario()], "any")
    made = block(plan.rounds[0], BASELINE)

    def saying(token: int, process: int, prompt_set: int = 0) -> Block:
        tokens = tuple((text[0], token, *text[2:]) for text in made.tokens)
        return replace(made, tokens=tokens, worker_generation=process, prompt_set=prompt_set)

    assert list(unsteady_texts("old", [saying(1, 0), saying(2, 0)])) == []
    slots = range(len(made.tokens))
    later = [saying(1, 0), saying(2, 1), saying(3, 2)]
    assert list(unsteady_texts("old", later)) == [("old", 0, slot, 1) for slot in slots]
    assert list(unsteady_texts("old", [saying(1, 0), saying(2, 1, prompt_set=1)])) == []


def test_weights_are_doubted_where_every_prompt_begins_with_another_token() -> None:
    every = TextChange("c", 4, 40, tuple(Parting(s, 0, 0, 1, 2) for s in range(4)))
    assert "other weights" in next(weights_trouble([every]))
    assert not list(weights_trouble([replace(every, changed=every.changed[:3])]))
    assert not list(weights_trouble([replace(every, changed=(Parting(3, 0, 1, 1, 2), *every.changed[:3]))]))
    assert not list(weights_trouble([TextChange("c", 2, 40, every.changed[:2])]))
