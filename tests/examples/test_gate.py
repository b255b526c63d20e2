"""The gate of docs/examples: every state that it can give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.api import ChecksRules, Gate, Sequential
from specgate.core import Block, Distribution, Rule, Run, State, Verdict
from tests.support.example_packages import module_of
from tests.support.factories import blocks_of, plan_of, run_of, scenario

MODULE = module_of("gate")


def rule(percentile: float = 90.0, max_ms: float = 20.0, role: str = "*") -> Rule:
    return Rule("slow", "tpot-percentile", True, role=role, params={"percentile": percentile, "max_ms": max_ms})


def verdicts(asked: Rule, run: Run) -> list[Verdict]:
    return list(MODULE.GATE.judge(asked, run))


def measured(rounds: int = 4, change: Callable[[Block], Block] = lambda block: block) -> Run:
    """A baseline step takes 10 ms; four requests per round."""
    plan = plan_of(scenario(rounds=rounds))
    return run_of(plan, blocks_of(plan, jitter=0.0, change=change))


def test_it_keeps_the_protocol() -> None:
    assert isinstance(MODULE.GATE, Gate) and isinstance(MODULE.GATE, Sequential)
    assert isinstance(MODULE.GATE, ChecksRules)


def test_requests_that_are_fast_enough_pass() -> None:
    baseline, spec = verdicts(rule(), measured())
    assert (baseline.state, baseline.reason_code) == (State.PASS, "at_most_max")
    assert baseline.evidence == {"tpot_ms": pytest.approx(10.0), "percentile": 90.0, "max_ms": 20.0, "requests": 16}
    assert spec.state is State.PASS


def test_a_tail_that_is_too_slow_fails_although_the_median_is_not() -> None:
    def slow_set(made: Block) -> Block:
        ns = (30_000_000,) * len(made.step_ns)
        return replace(made, step_ns=ns, elapsed_ns=sum(ns)) if made.prompt_set == 3 else made

    run = measured(change=slow_set)
    baseline, _ = verdicts(rule(), run)
    assert (baseline.state, baseline.reason_code) == (State.FAIL, "above_max")
    assert baseline.evidence["tpot_ms"] == pytest.approx(30.0)
    assert verdicts(rule(percentile=50.0), run)[0].state is State.PASS


def test_too_few_requests_decide_nothing_and_say_how_many_are_missing() -> None:
    baseline, _ = verdicts(rule(percentile=99.0), measured())
    assert (baseline.state, baseline.reason_code) == (State.INCONCLUSIVE, "few_requests")
    assert "84 more requests" in (baseline.next_step or "")


@pytest.mark.parametrize("percentile", [0.0, 100.0, 120.0])
def test_a_percentile_that_is_none_is_refused(percentile: float) -> None:
    assert list(MODULE.GATE.problems(rule(percentile=percentile))) == [("percentile", "it lies between 0 and 100")]
    assert not list(MODULE.GATE.problems(rule()))


def test_a_cell_without_figures_is_invalid() -> None:
    run = measured()
    lost = replace(run.cells[0], status="failed", reason="the worker ended", distributions={})
    baseline, spec = verdicts(rule(), replace(run, cells=(lost, *run.cells[1:])))
    assert (baseline.state, baseline.reason_code) == (State.INVALID, "not_measured")
    assert "the worker ended" in baseline.message and spec.state is State.PASS


def test_a_rule_that_selects_no_cell_is_skipped() -> None:
    (found,) = verdicts(rule(role="spec-9"), measured())
    assert (found.state, found.cell) == (State.SKIPPED, "")


@pytest.mark.parametrize(("asked", "expected"), [(50.0, 2.0), (75.0, 3.0), (90.0, 3.6)])
def test_percentiles_lie_between_order_statistics(asked: float, expected: float) -> None:
    assert MODULE.percentile_of(Distribution(5, (0.0, 1.0, 2.0, 3.0, 4.0)), asked) == pytest.approx(expected)
