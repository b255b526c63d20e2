"""A required rule whose names are nowhere is not green and says the nearest; one for another scenario is skipped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specgate import plugins
from specgate.contract import Rule
from specgate.planning.policy import SHIPPED, find_policy
from specgate.planning.rule_names import cells_of, nowhere, with_elsewhere
from specgate.planning.scenario import shipped
from tests.support.command import Cli, scenario_text

ONE = shipped()[:1]
OTHERS = [scenario for scenario in shipped() if scenario.name != ONE[0].name]


def dead(scenario: str = "*", role: str = "*") -> str | None:
    """The reason that a required rule with these patterns is dead in a run of `ONE`."""
    rules = (Rule("mine", "acceptance", True, scenario, role, {"min": 1.0}),)
    policy = replace(find_policy("engine", plugins.gates()), rules=rules)
    return nowhere(with_elsewhere(policy, ONE), cells_of(ONE)).get("mine")


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"scenario": "cpu-1k-singel"}, "no scenario 'cpu-1k-singel' (did you mean 'cpu-1k-single'?)"),
        ({"scenario": "cpu-9k-*"}, "no scenario 'cpu-9k-*'"),
        ({"scenario": "cpu-1k-single,cpu-first"}, "no scenario 'cpu-1k-single,cpu-first'"),
        ({"scenario": "engine"}, "no scenario 'engine'"),
        ({"role": "spec-99"}, "no role 'spec-99' (did you mean 'spec-"),
        ({"role": "baselin"}, "no role 'baselin' (did you mean 'baseline'?)"),
        ({"role": "*+no-such-variant"}, "no role '*+no-such-variant'"),
        ({"scenario": "cpu-1k-single", "role": "spec-77"}, "no role 'spec-77' of scenario cpu-1k-single"),
        ({"scenario": "cpu-first+kv-fp8"}, "a variant is a role's (scenario: cpu-first, role: '*+kv-fp8')"),
    ],
)
def test_names_that_are_nowhere_are_named_with_the_nearest(patterns: dict[str, str], message: str) -> None:
    assert message in str(dead(**patterns))


@pytest.mark.parametrize("scenario", [ONE[0].name, OTHERS[0].name, OTHERS[-1].name, "*", "cpu-*", "full-*"])
def test_what_another_scenario_has_is_not_missed_in_a_run_of_one(scenario: str) -> None:
    assert dead(scenario=scenario) is None
    assert dead(scenario=scenario, role="baseline") is None


@pytest.mark.parametrize("policy", sorted(file.stem for file in SHIPPED.glob("*.yaml")))
def test_every_rule_that_comes_with_specgate_selects_something(policy: str) -> None:
    assert not nowhere(with_elsewhere(find_policy(policy, plugins.gates()), ONE), cells_of(ONE))


FLOOR = "  - {id: our-floor, gate: acceptance, required: true, scenario: NAME, min: 1.0, role: spec-*}\n"


def test_a_run_with_a_dead_rule_is_not_judged_and_its_last_line_says_why(cli: Cli) -> None:
    policy = (cli.folder / "policy.yaml").read_text()
    (cli.folder / "more").mkdir()
    cli.write("more/other.yaml", scenario_text())
    cli.write("more/policy.yaml", policy.replace("gate.yaml", "other.yaml") + FLOOR.replace("NAME", "other"))
    cli.write("policy.yaml", policy + FLOOR.replace("NAME", "tinny"))
    done = cli.micro("--backend", "fake")
    why = "required rule our-floor selects nothing: there is no scenario 'tinny' (did you mean 'tiny'?)"
    last = f"verdict NOT_JUDGED (exit 8), tokens and speed not judged, {why}"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (8, last)
    assert "warning: a required rule" in done.stderr
    run = cli.newest()
    assert cli.run("runs", "verify", run, pair=False).returncode == 0
    (entry,) = map(json.loads, (run.parent / "ledger.jsonl").read_text().splitlines())
    assert why in entry["not_judged"]
    for name, code in (("policy.yaml", 8), ("more/policy.yaml", 0)):
        checked = cli.run("runs", "check", run, "--policy", name, pair=False)
        assert checked.returncode == code, checked.stdout
        assert (why in checked.stdout.splitlines()[-1]) == (code == 8)


@pytest.mark.parametrize("value", ['"2,0"', "200%", '"2.0"', "-1", ".nan", "1e400", "2,0", "[2]", "true"])
def test_a_floor_that_is_no_number_is_one_clear_error(cli: Cli, value: str) -> None:
    text = (cli.folder / "policy.yaml").read_text()
    cli.write("policy.yaml", text.replace("min: 1.0", f"min: {value}"))
    done = cli.micro("--backend", "fake")
    assert done.returncode == 2 and done.stderr.count("policy.yaml") == 1, done.stderr
    assert "acceptance takes a" in done.stderr or "write 2.0 for 2,0" in done.stderr, done.stderr
