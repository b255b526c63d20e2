"""Shares of the error of a FAIL among the cells of a run: equal while it goes on, by Holm's step-down at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Policy, Rule, Run, State, Verdict
from specgate.run.early_stop import required_decisions
from specgate.run.recompute import judge, stepped_down
from tests.support.factories import blocks_of, judged, plan_of, policy_of, run_of, scenario

PLAN = plan_of(scenario(spec=(1, 2, 3), rounds=4))


def speed(role: str, floor: float, *, required: bool = True) -> Rule:
    return Rule(f"speed-{role}-{floor}", "speed", required, role=role, params={"min": floor})


def measured(policy: Policy) -> Run:
    """Blocks of all roles with a little noise; nothing is accepted."""
    run = run_of(PLAN, blocks_of(PLAN, accept=(0,), jitter=0.004))
    return replace(run, required_decisions=required_decisions(PLAN, policy))


def states(verdicts: tuple[Verdict, ...]) -> dict[str, State]:
    return {v.cell.rpartition("/")[2]: v.state for v in verdicts}


def test_only_required_rules_on_samples_count_and_each_spec_cell_for_each_of_them() -> None:
    policy = policy_of(
        speed("spec-*", 1.0),
        speed("spec-3", 1.2),
        speed("spec-*", 1.0, required=False),
        Rule("tokens", "tokens", True, params={"near_tie_margin": 0.0}),
    )
    assert required_decisions(PLAN, policy) == 4


def test_the_error_that_failed_cells_do_not_need_goes_to_those_that_are_open() -> None:
    """Two cells fail by far. The third is open with a third of the error, and fails with the whole of it."""

    def policy(floor: float) -> Policy:
        return policy_of(speed("spec-1", 9.0), speed("spec-2", 9.0), speed("spec-3", floor))

    run = measured(policy(1.0))  # a floor is nothing that is measured
    value = run.comparisons[2].speedup.value
    assert value is not None
    floors = [value * (1 + step / 10_000) for step in range(100, 1000, 30)]
    states_at = {floor: states(judged(run, policy(floor)).verdicts) for floor in floors}
    after = {floor: judge(run, policy(floor)) for floor in floors}
    gained = [f for f in floors if states_at[f]["spec-3"] is State.INCONCLUSIVE
              and states(after[f].verdicts)["spec-3"] is State.FAIL]  # fmt: skip
    assert gained and all(states_at[f]["spec-1"] is State.FAIL for f in floors)
    assert not [f for f in floors if states_at[f]["spec-3"] is State.FAIL is not states(after[f].verdicts)["spec-3"]]
    last = after[gained[0]].verdicts[2].evidence
    look = last["look"]
    assert isinstance(look, int)
    assert last["error_fail"] == pytest.approx(0.0035 / (look * (look + 1)))  # the whole error, spent at that look


def test_without_a_failure_nothing_is_asked_again() -> None:
    policy = policy_of(speed("spec-1", 0.5), speed("spec-3", 0.5))
    run = judged(measured(policy), policy)
    assert State.FAIL not in states(run.verdicts).values()
    assert stepped_down(run, policy, run.verdicts) == list(run.verdicts)


def test_advice_that_fails_gives_nothing_away() -> None:
    policy = policy_of(speed("spec-1", 9.0, required=False), speed("spec-3", 1.0))
    run = judged(measured(policy), policy)
    assert stepped_down(run, policy, run.verdicts) == list(run.verdicts)
