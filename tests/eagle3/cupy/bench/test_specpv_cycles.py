"""The lines of the bench of partial verification, from blocks that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gpt_oss.conditions import Conditions
from bench.specpv.cycles import WHOLE, Cycles, lines, phases_of
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN
from specgate.contract import Finish
from specgate.contract.protocols import Decoded

MS = 1_000_000
BLOCK = Decoded(
    16 * MS,
    (7 * MS, 4 * MS, 5 * MS),
    ((1, 2, 3, 4, 5, 6, 7),),
    ((2,), (1,), (0,)),
    ((3,),) * 3,
    (0,),
    (Finish.STEPS,),
    counters={
        "specpv_checked": 4,
        "specpv_overruled": 1,
        "specpv_read_positions": 30,
        "specpv_cached_positions": 120,
    },
    phase_ns={"draft": 3 * MS, "verify": 12 * MS},
)


def test_a_cycle_is_averaged_over_all_kinds_and_told_for_each() -> None:
    slower = replace(BLOCK, step_ns=(8 * MS,) * 3)
    cycles = Cycles.of([slower, BLOCK], (FULL, PARTIAL, PARTIAL))
    assert cycles.ms == pytest.approx(16 / 3) and cycles.of_kind == {FULL: 7.0, PARTIAL: 4.5}
    assert (cycles.acceptance, cycles.overruled, cycles.read) == (2.0, 0.25, 0.25)
    assert cycles.tokens_per_s == pytest.approx(6 / 16e-3)


def test_a_line_has_the_speed_up_over_the_whole_cache_and_none_of_what_was_not_counted() -> None:
    plain = Cycles.of([replace(BLOCK, step_ns=(8 * MS,) * 3, counters={})], (PLAIN,) * 3)
    found = {WHOLE: plain, "lossy 2/256/8/20": Cycles.of([BLOCK], (FULL, PARTIAL, PARTIAL))}
    whole, lossy, machine = lines(32768, 1, 3, found, Conditions(missing="no NVML"))
    assert "8.000 ms/cycle  1.000x" in whole and "read" not in whole and "full" not in whole
    assert "5.333 ms/cycle  1.500x" in lossy and "full  7.000  partial  4.500" in lossy
    assert "read 25.0%  overruled 25.0%" in lossy and "no NVML" in machine
    assert phases_of("x", BLOCK).split() == ["x", "draft", "1.000,", "verify", "4.000"]
