"""Minutes of a run: every second of a clock is counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.analysis.machine.minutes import minutes_of, seconds_of
from specgate.contract import EngineStart, RunKind
from tests.support.factories import blocks_of, plan_of, scenario

SECOND = 10**9


@pytest.mark.parametrize("kind", ["micro", "full"])
def test_starts_first_answers_and_blocks_are_told_apart(kind: RunKind) -> None:
    request = replace(scenario(prompt_sets=2), kind=kind, schedule=replace(scenario().schedule, warmup_rounds=2))
    plan = plan_of(request)
    blocks = [
        replace(b, span_ns=(n * SECOND, (n + 1) * SECOND), prefill_ns=SECOND // 2)
        for n, b in enumerate(blocks_of(plan))
    ]
    minutes = minutes_of(blocks, [EngineStart(0, (0, 3 * SECOND))], plan.scenarios)
    # A micro run prefills once per visit to a prompt set: once for warm-up, and in each of four measured rounds.
    first, measured = (2.5, 10.0) if kind == "micro" else (2.0, 8.0)
    assert minutes == {"starts": 3.0, "first": first, "warmup": 2.0, "measured": measured}
    assert seconds_of([b for b in blocks if not b.warmup], plan.scenarios) == measured


def test_a_second_process_has_first_answers_of_its_own() -> None:
    plan = plan_of()
    blocks = [replace(b, span_ns=(0, SECOND), prefill_ns=0) for b in blocks_of(plan)]
    again = [replace(b, worker_generation=1) for b in blocks if b.warmup]
    starts = [EngineStart(n, (0, SECOND)) for n in (0, 1)]
    one, two = minutes_of(blocks, starts[:1], plan.scenarios), minutes_of([*blocks, *again], starts, plan.scenarios)
    assert (two["starts"], two["first"]) == (2 * one["starts"], 2 * one["first"])


def test_a_run_that_stored_no_start_has_no_minutes() -> None:
    plan = plan_of()
    assert minutes_of(blocks_of(plan), (), plan.scenarios) == {}
