"""Times of single requests, and the few of them that are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.requests.figures import RANKS, distribution, distributions
from specgate.analysis.requests.timing import requests_of
from specgate.contract import Finish
from tests.support.factories import block, blocks_of, plan_of, scenario

PLAN = plan_of(scenario(batch=(2,)))
ROUND = next(r for r in PLAN.rounds if not r.warmup)
BASE = PLAN.scenarios["demo-64"].roles[0]


def test_a_request_that_ends_early_is_timed_up_to_its_last_step() -> None:
    made = block(ROUND, BASE, steps=4, step_ns=10_000_000)
    early = replace(
        made,
        accepted=((0, 0), (0, 0), (0, -1), (0, -1)),
        drafted=((0, 0), (0, 0), (0, -1), (0, -1)),
        tokens=(made.tokens[0], made.tokens[1][:3]),
        finish=(Finish.STEPS, Finish.EOS),
        step_ns=(10_000_000, 20_000_000, 5_000_000, 5_000_000),
        elapsed_ns=80_000_000,
    )
    # The stretch took twice what the steps did, and every step has its share of that.
    assert [r.tpot_ms for r in requests_of(early, False)] == pytest.approx([80 / 4, 60 / 2])


def test_a_request_that_emitted_nothing_has_no_time_per_token() -> None:
    made = block(ROUND, BASE, steps=2)
    silent = replace(made, tokens=(made.tokens[0], made.tokens[1][:1]), accepted=((0, -1), (0, -1)))
    assert [r.tpot_ms is None for r in requests_of(silent, False)] == [False, True]


def test_first_tokens_are_timed_in_whole_requests_only() -> None:
    blocks = [b for b in blocks_of(PLAN) if b.role == BASE and not b.warmup]
    micro, full = (distributions(r for b in blocks for r in requests_of(b, whole)) for whole in (False, True))
    assert set(micro) == {"tpot_ms", "itl_ms"} and set(full) == {"tpot_ms", "itl_ms", "ttft_ms"}
    assert full["ttft_ms"].n == 2 * len(blocks)
    assert set(full["ttft_ms"].values) == {50.0}
    assert distributions([]) == {}


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=400))
def test_what_is_kept_are_evenly_spaced_order_statistics(samples: list[float]) -> None:
    kept = distribution(samples)
    assert kept.n == len(samples) and len(kept.values) == min(RANKS, len(samples))
    levels = np.linspace(0, 1, len(kept.values)) if len(kept.values) > 1 else np.zeros(1)
    low, high = (np.quantile(samples, levels, method=m) for m in ("lower", "higher"))
    assert np.all(np.asarray(kept.values) >= low - 1e-4) and np.all(np.asarray(kept.values) <= high + 1e-4)
