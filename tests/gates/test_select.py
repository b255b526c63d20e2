"""Common rules of all gates: globs select cells, a rule that matches nothing says so, and nothing unmeasured passes."""

from __future__ import annotations

import pytest

from specgate import plugins
from specgate.contract import Rule, State
from specgate.contract.protocols import ChecksRules
from tests.support.factories import blocks_of, plan_of, run_of, scenario

PARAMS: dict[str, dict[str, float | str | bool]] = {
    "validity": {},
    "tokens": {
        "near_tie_margin": 0.0,
        "max_sigma": 0.1,
        "cache_sigma": "nvfp4 0.6",
        "min_equal_share": 0.0,
        "lossy": False,
    },
    "acceptance": {"min": 1.0, "as_reported": False},
    "speed": {"min": 0.1},
    "degeneracy": {"max_repeated_share": 1.0},
}
gates = pytest.mark.parametrize("gate", list(PARAMS))


def rule(gate: str, scenario: str = "*", role: str = "*") -> Rule:
    return Rule("r", gate, True, scenario, role, PARAMS[gate])


@gates
def test_every_shipped_gate_is_registered_under_its_own_name(gate: str) -> None:
    assert plugins.gate(gate).name == gate
    assert set(PARAMS[gate]) == set(plugins.gate(gate).params)


@gates
def test_globs_select_scenario_and_role(gate: str) -> None:
    plan = plan_of(scenario("cpu-a", spec=(2, 3)), scenario("cpu-b", spec=(3,)), scenario("gpu-c", spec=(3,)))
    run = run_of(plan, blocks_of(plan))
    results = list(plugins.gate(gate).judge(rule(gate, scenario="cpu-*", role="spec-3"), run))
    assert [v.cell for v in results] == ["cpu-a/fake/c64/b1/spec-3", "cpu-b/fake/c64/b1/spec-3"]
    assert {(v.state, v.rule, v.gate, v.required) for v in results} == {(State.PASS, "r", gate, True)}


@gates
def test_a_rule_that_matches_no_cell_is_skipped_with_its_globs(gate: str) -> None:
    plan = plan_of()
    (verdict,) = plugins.gate(gate).judge(rule(gate, scenario="nowhere", role="spec-9"), run_of(plan, blocks_of(plan)))
    assert verdict.state is State.SKIPPED
    assert "'nowhere'" in verdict.message and "'spec-9'" in verdict.message


@gates
def test_a_cell_that_was_not_measured_passes_no_gate_and_says_why(gate: str) -> None:
    plan = plan_of()
    run = run_of(plan, (), failures={plan.points[0].key: "the engine process was killed\nby signal 9"})
    for verdict in plugins.gate(gate).judge(rule(gate), run):
        assert verdict.state is State.INVALID
        assert "the engine process was killed" in verdict.message
        assert verdict.next_step


@pytest.mark.parametrize(
    ("gate", "key", "most"),
    [
        ("tokens", "near_tie_margin", 10.0),
        ("degeneracy", "max_repeated_share", 1.0),
        ("memory", "max_capacity_loss", 1.0),
    ],
)
def test_a_bound_that_nothing_can_exceed_is_refused(gate: str, key: str, most: float) -> None:
    checking = plugins.gate(gate)
    assert isinstance(checking, ChecksRules)
    assert not list(checking.problems(Rule("r", gate, True, params={key: most})))
    ((named, _),) = checking.problems(Rule("r", gate, True, params={key: most + 0.5}))
    assert named == key
