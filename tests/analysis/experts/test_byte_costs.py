"""Cost of a cycle by its bytes alone, against counting the bytes of gpt-oss-120b by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.experts import cycle_cost, overlap_for, step_bytes
from specgate.contract.traffic import AttentionTraffic, DraftTraffic, ExpertTraffic, PassTraffic, Traffic

GPT_OSS = Traffic(
    PassTraffic(
        3_100_000_000, 5760, (AttentionTraffic(18, 2048, 128), AttentionTraffic(18, 2048)),
        ExpertTraffic(36, 128, 4, 13_219_200),
    ),
    DraftTraffic(PassTraffic(640_000_000, 5760, ()), PassTraffic(590_000_000, 5760, ())),
)  # fmt: skip


def test_a_cycle_reads_what_its_tokens_touch_beside_the_rest() -> None:
    cached = 18 * 2048 * (32768 + 127)
    step = 3.1e9 + 5760 + 36 * 4 * 13_219_200 + cached + 36 * 2048
    assert step_bytes(GPT_OSS, 32768, 1) == pytest.approx(step)
    draft = 640e6 + 2 * 590e6 + 3 * 5760
    for overlap, touched in ((0.0, 128 * (1 - (124 / 128) ** 4)), (1.0, 4.0)):
        cycle = 3.1e9 + 4 * 5760 + 36 * touched * 13_219_200 + cached + 4 * 36 * 2048 + draft
        assert cycle_cost(GPT_OSS, 32768, 1, 3, overlap) == pytest.approx(cycle / step)


@given(st.sampled_from([1024, 16384, 32768]), st.integers(1, 8), st.integers(1, 7), st.floats(0.01, 0.99))
def test_the_overlap_that_a_cost_takes_costs_it(context: int, batch: int, k: int, overlap: float) -> None:
    cost = cycle_cost(GPT_OSS, context, batch, k, overlap)
    assert overlap_for(GPT_OSS, context, batch, k, cost) == pytest.approx(overlap, abs=1e-6)
    apart, alike = (cycle_cost(GPT_OSS, context, batch, k, o) for o in (0.0, 1.0))
    assert alike < cost < apart
    assert overlap_for(GPT_OSS, context, batch, k, apart) == 0.0
    assert overlap_for(GPT_OSS, context, batch, k, alike * 0.999) is None
