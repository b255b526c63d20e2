"""The gate of docs/examples: every state that it can give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate import plugins
from specgate.analysis.verdict import overall
from specgate.contract import (
    Block,
    CellResult,
    Distribution,
    Exemption,
    Kind,
    Policy,
    Rule,
    Run,
    RunView,
    State,
    Verdict,
)
from specgate.contract.protocols import ChecksRules, Gate, Sequential
from specgate.run.recompute import judge
from tests.support.example_packages import module_of
from tests.support.factories import blocks_of, plan_of, run_of, scenario

MODULE = module_of("gate")


def rule(percentile: float = 90.0, max_ms: float = 20.0, role: str = "*") -> Rule:
    return Rule("slow", "tpot-percentile", True, role=role, params={"percentile": percentile, "max_ms": max_ms})


def verdicts(judged_rule: Rule, run: Run) -> list[Verdict]:
    return list(MODULE.GATE.judge(judged_rule, run))


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
    (judgement,) = verdicts(rule(role="spec-9"), measured())
    assert (judgement.state, judgement.cell) == (State.SKIPPED, "")


# ── a kind of its own ────────────────────────────────────────────────────────────────────────────────────────────────


class Silent(type(MODULE.GATE)):  # type: ignore[misc]  # a module that is loaded by its path
    """The same gate, which judges no cell."""

    def judge_cell(self, rule: Rule, result: CellResult) -> Verdict:
        return Verdict(rule.id, rule.gate, result.cell.key, State.SKIPPED, rule.required, "nothing", "nothing to judge")


def overall_of(run: Run, monkeypatch: pytest.MonkeyPatch, gate: Gate, *exempt: str) -> tuple[State, set[str]]:
    """The state of `run` under a policy on records and latency, and the kinds that it lacks without a reason."""
    real = plugins.gate
    monkeypatch.setattr(plugins, "gate", lambda name: gate if name == "tpot-percentile" else real(name))
    given_up = tuple(Exemption(kind, "the gate from outside judges this run") for kind in exempt)
    rules = (Rule("records", "validity", True), rule(role="spec-3"))
    outcome = judge(run, Policy("own", rules, not_judged=given_up))
    monkeypatch.undo()
    return overall(outcome)[0], {gap.kind for gap in outcome.not_judged or () if gap.why is None}


def test_its_own_kind_makes_a_run_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ("tokens", "acceptance", "speed")
    assert overall_of(measured(), monkeypatch, MODULE.GATE, *usual) == (State.PASS, set())
    assert overall_of(measured(), monkeypatch, Silent(), *usual) == (State.NOT_JUDGED, {"latency"})
    assert overall_of(measured(), monkeypatch, Silent(), *usual, "latency") == (State.PASS, set())
    assert overall_of(measured(), monkeypatch, MODULE.GATE) == (State.NOT_JUDGED, set(usual))


def test_it_may_judge_what_every_run_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fast(type(MODULE.GATE)):  # type: ignore[misc]
        def judges(self, rule: Rule) -> tuple[Kind, ...]:
            return ("speed", "acceptance")

    assert overall_of(measured(), monkeypatch, Fast(), "tokens") == (State.PASS, set())


def test_it_sees_no_other_verdict_and_nothing_of_the_machine() -> None:
    view = measured().view
    assert type(view) is RunView and not any(hasattr(view, name) for name in ("verdicts", "environment", "id"))
    assert verdicts(rule(), measured()) == list(MODULE.GATE.judge(rule(), view))


@pytest.mark.parametrize(("number", "expected"), [(50.0, 2.0), (75.0, 3.0), (90.0, 3.6)])
def test_percentiles_lie_between_order_statistics(number: float, expected: float) -> None:
    assert MODULE.percentile_of(Distribution(5, (0.0, 1.0, 2.0, 3.0, 4.0)), number) == pytest.approx(expected)
