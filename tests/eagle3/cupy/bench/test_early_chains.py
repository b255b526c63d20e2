"""The benchmark of chains that end early: what it computes of decode runs, and what it prints of that."""

from __future__ import annotations

import pytest

from bench.early_chains import ALWAYS, NEVER, WHOLE, Cycles, lines
from specgate.contract import Finish
from specgate.contract.protocols import Decoded


def decoded(step_ns: tuple[int, ...]) -> Decoded:
    return Decoded(
        elapsed_ns=sum(step_ns),
        step_ns=step_ns,
        tokens=((1, 2, 3, 4, 5), (1, 2, 3)),
        accepted=((2, 0), (1, -1)),
        drafted=((3, 1), (2, -1)),
        truncated=(0, 0),
        finish=(Finish.STEPS, Finish.EOS),
        counters={},
    )


def test_cycles_are_those_of_the_fastest_round_over_slots_that_ran() -> None:
    cycles = Cycles.of([decoded((5_000_000, 3_000_000)), decoded((2_000_000, 4_000_000))])
    assert (cycles.ms, cycles.drafted, cycles.accepted, cycles.emitted) == (3.0, 2.0, 1.0, 3.0)
    assert cycles.tokens_per_s == pytest.approx(1000.0)


def test_every_setting_is_printed_beside_whole_chains_with_the_kernels_cost() -> None:
    found = {
        WHOLE: Cycles(4.0, 3.0, 1.0, 2.0),
        NEVER: Cycles(4.01, 3.0, 1.0, 2.0),
        ALWAYS: Cycles(3.2, 1.0, 0.6, 1.6),
        "0.4": Cycles(3.6, 2.0, 0.9, 1.9),
    }
    of_wholes, _, _, shorter, kernel, empty = lines(3, found, Cycles(3.1, 1.0, 0.6, 1.6))
    assert of_wholes == "spec-3   whole     4.000 ms/cycle  drafted  3.00  AL  2.00     500.0 tok/s   1.000"
    assert shorter == "spec-3     0.4     3.600 ms/cycle  drafted  2.00  AL  1.90     527.8 tok/s   1.056"
    assert kernel == "spec-3  the kernel: +10.0 us/cycle, +5.0 us a launch, +0.25 %"
    assert empty.startswith("spec-3  where all end behind the first token: +100.0 us/cycle beside spec-1, with 2 rows")


def test_a_draft_that_is_certain_of_everything_is_said_to_be() -> None:
    same = Cycles(4.0, 3.0, 1.0, 2.0)
    *_, last = lines(3, {WHOLE: same, NEVER: same, ALWAYS: same, "0.8": same}, same)
    assert "no confidence ended a chain" in last and "planted pairs" in last
