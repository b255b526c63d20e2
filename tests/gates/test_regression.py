"""One role against another of the same rounds: within a margin, beyond it, faster, or not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Block, Rule, Run, State, Verdict
from specgate.gates.regression import GATE
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario


def run(slower: float, jitter: float = 0.0005, rounds: int = 4) -> Run:
    """spec-3 cycles that take `slower` times as long as those of spec-2 per token; drafts are never accepted."""
    plan = plan_of(scenario(spec=(2, 3), rounds=rounds))

    def slow(block: Block) -> Block:
        times = tuple(round(ns * (slower if block.role.k == 3 else 1.0)) for ns in block.step_ns)
        return replace(block, step_ns=times, elapsed_ns=sum(times))

    return run_of(plan, blocks_of(plan, accept=(0,), jitter=jitter, change=slow))


def verdict(measured: Run, *, margin: float = 2.0, against: str = "spec-2", role: str = "spec-3") -> Verdict:
    rule = Rule("no-slower", "regression", True, role=role, params={"against": against, "margin_pct": margin})
    (outcome,) = GATE.judge(rule, measured)
    return outcome


@pytest.mark.parametrize(
    ("slower", "state", "code"),
    [
        (1.0, State.PASS, "within_margin"),
        (1.07, State.FAIL, "margin_exceeded"),
        (0.95, State.IMPROVED, "faster"),
    ],
)
def test_an_interval_beside_the_margin_decides(slower: float, state: State, code: str) -> None:
    outcome = verdict(run(slower), margin=3.0)
    assert (outcome.state, outcome.reason_code) == (state, code)


def test_noise_wider_than_the_margin_is_not_decided_and_says_how_much_more_is_needed() -> None:
    outcome = verdict(run(1.0, jitter=0.05), margin=10.0)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "margin_not_excluded")
    assert "more rounds should decide it: --resume RUN --measurement-runs" in (outcome.next_step or "")


def test_an_effect_below_what_the_machine_can_tell_is_no_improvement() -> None:
    faster = run(0.95)
    assert verdict(replace(faster, mde={faster.comparisons[1].cell.key: 0.1})).state is State.PASS


def test_against_the_baseline_the_margin_is_on_the_pairs_themselves() -> None:
    measured = run(1.0)  # cycles of 14 ms that emit one token, against steps of 10 ms
    assert verdict(measured, against="baseline").state is State.FAIL
    assert verdict(measured, against="baseline", margin=50).state is State.PASS


def test_a_fail_says_what_would_do() -> None:
    outcome = verdict(run(1.1))
    assert "7." in (outcome.next_step or "") and "less time" in (outcome.next_step or "")


def test_speed_that_is_withheld_is_compared_with_nothing() -> None:
    plan = plan_of(scenario(spec=(2, 3)))
    outcome = verdict(run_of(plan, blocks_of(plan, change=corrupt)))
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "token_mismatch")


@pytest.mark.parametrize(
    ("against", "state", "code"),
    [
        ("spec-3", State.SKIPPED, "same_role"),
        ("spec-5", State.SKIPPED, "no_cell"),
    ],
)
def test_a_role_without_a_partner_is_not_judged(against: str, state: State, code: str) -> None:
    outcome = verdict(run(1.0), against=against)
    assert (outcome.state, outcome.reason_code) == (state, code)
