"""Joules per token by the counter of the GPU; nothing where it was not read, or cannot tell blocks apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.machine.energy import metered, with_energy
from specgate.analysis.reduce import measure
from specgate.contract import Block, CellResult, Comparison, NearTies
from specgate.contract.conditions import Sample
from specgate.reports.common.machine import sentences
from tests.support.factories import run_of
from tests.support.surroundings import BLOCKS, PLAN, SAMPLES, SECOND, gpu, watched

BASELINE_W, SPEC_W, IDLE_W = 600, 400, 90


def drawn_mj(at_ns: int) -> int:
    """The counter at a time, of a GPU that draws its watts while blocks run: added up, block by block."""
    watts = {False: BASELINE_W, True: SPEC_W}
    inside = [(b.span_ns, watts[b.role.speculative]) for b in BLOCKS if b.span_ns is not None]
    busy = sum(max(0, min(at_ns, end) - begin) * (w - IDLE_W) for (begin, end), w in inside if begin < at_ns)
    return 7_000_000 + (at_ns * IDLE_W + busy) // 1_000_000


def metering(sample: Sample) -> Sample:
    return gpu(sample, energy_mj=drawn_mj(sample.monotonic_ns))


def figures(
    samples: Sequence[Sample], blocks: Sequence[Block] = BLOCKS
) -> tuple[Sequence[CellResult], Sequence[Comparison]]:
    cells, comparisons = measure(PLAN, blocks, (), NearTies())
    known = metered(PLAN, blocks, samples, conditions_of(PLAN, blocks, samples))
    return with_energy(PLAN, cells, comparisons, known, {})


def test_joules_per_token_are_those_that_the_gpu_drew_in_the_blocks() -> None:
    cells, (comparison,) = figures(list(map(metering, watched(BLOCKS, interval_ns=SECOND // 10))))
    per_token = {}
    for result, watts in zip(cells, (BASELINE_W, SPEC_W), strict=True):
        mine = [b for b in BLOCKS if b.cell == result.cell and not b.warmup]
        seconds = sum(b.span_ns[1] - b.span_ns[0] for b in mine if b.span_ns) / 1e9
        per_token[result.cell.role.name] = watts * seconds / sum(b.emitted for b in mine)
        value = result.values["joules_per_token"]
        assert value.value == pytest.approx(per_token[result.cell.role.name], rel=0.02)  # ends fall between readings
        assert value.n == len(mine)
    ratio = next(v for v in comparison.beside if v.metric == "energy_per_token_ratio")
    assert ratio.value == pytest.approx(per_token["spec-3"] / per_token["baseline"], rel=0.02)
    assert ratio.value and ratio.ci_low and ratio.ci_high and ratio.ci_low < ratio.value < ratio.ci_high
    (sentence,) = sentences(replace(run_of(PLAN, BLOCKS), cells=tuple(cells), comparisons=(comparison,)))
    assert sentence.startswith("energy per token: baseline ") and f"J ({ratio.value:.2f}×" in sentence


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s,
        lambda s: gpu(metering(s), utilization_pct=0, processes=()),
        lambda s: gpu(metering(s), energy_mj=-s.monotonic_ns),
        lambda s: metering(s) if s.monotonic_ns % (4 * SECOND) == 0 else s,
    ],
    ids=["not read", "another machine's work", "a counter that falls", "readings four seconds apart"],
)
def test_where_the_counter_says_nothing_of_the_blocks_there_is_no_figure(change: Callable[[Sample], Sample]) -> None:
    cells, (comparison,) = figures(list(map(change, SAMPLES)))
    assert not any("joules_per_token" in result.values for result in cells)
    assert "energy_per_token_ratio" not in {value.metric for value in comparison.beside}


def test_blocks_too_short_for_the_counter_have_no_energy() -> None:
    short = [replace(b, span_ns=(b.span_ns[0], b.span_ns[0] + SECOND // 4)) for b in BLOCKS if b.span_ns]
    cells, _ = figures(list(map(metering, SAMPLES)), short)
    assert not any("joules_per_token" in result.values for result in cells)
