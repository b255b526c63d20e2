"""Floors that no run can reach are said before anything is measured, with what would reach them."""

from __future__ import annotations

from typing import Any

import pytest

from specgate.contract import Policy, Rule, Scenario
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from specgate.run.reachability import check_reachable
from tests.support.command import Cli
from tests.support.factories import scenario


def asks(gate: str, least: float, role: str = "spec-*", **how: Any) -> Policy:
    return Policy("mine", (Rule("floor", gate, True, role=role, params={"min": least}),), not_judged=(), **how)


def unreachable(policy: Policy, workload: Scenario) -> tuple[str, ...]:
    return check_reachable(policy, build_plan([workload], "fake"))


@pytest.mark.parametrize("gate", ["acceptance", "speed"])
def test_a_cycle_emits_at_most_one_token_more_than_it_drafts(gate: str) -> None:
    result = unreachable(asks(gate, 4.5), scenario(spec=(3, 4)))
    assert len(result) == 1
    assert (
        "of 4.5 of demo-64/fake/c64/b1/spec-3: 3 drafts per cycle give at most 4; it takes spec-4 or more" in result[0]
    )
    assert unreachable(asks(gate, 4.0), scenario(spec=(3,))) == ()
    assert "not even spec-64 does" in unreachable(asks(gate, 65.5), scenario(spec=(64,)))[0]


def test_advice_and_other_cells_are_not_looked_at() -> None:
    rule = Rule("floor", "acceptance", False, params={"min": 9.0})
    assert unreachable(Policy("mine", (rule,)), scenario()) == ()
    assert unreachable(asks("acceptance", 9.0, role="spec-5"), scenario()) == ()


def test_a_run_says_so_before_it_measures_and_keeps_it_among_its_warnings(cli: Cli) -> None:
    policy = (cli.folder / "policy.yaml").read_text()
    cli.write("policy.yaml", policy.replace("min: 1.0", "min: 3.5"))
    done = cli.micro("--backend", "fake", code=1)
    (warning,) = [line for line in done.stderr.splitlines() if "acceptance length of 3.5" in line]
    assert warning.startswith("warning: rule acceptance asks for an ") and "spec-2: 2 drafts" in warning
    assert warning.removeprefix("warning: ") in RunFolder.open(cli.newest()).read_run().warnings
    cli.write("policy.yaml", policy.replace("min: 1.0", "min: 3.5") + "unreachable: refuse\n")
    before = sorted((cli.folder / "runs").iterdir())
    refused = cli.micro("--backend", "fake")
    assert refused.returncode == 2 and "floors that cannot be reached" in refused.stderr
    assert sorted((cli.folder / "runs").iterdir()) == before
