"""Runs on the command line that are held against the last green one: which run that is, and what is copied of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.backends.fake.script import Script
from specgate.promotion import claim
from tests.support.command import Cli

POLICY = """\
schema: specgate.policy/v1
micro: [gate.yaml]
not_judged:
  - {kind: speed, why: blocks of a scripted engine take a millisecond}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, near_tie_margin: 0.0}
  - {id: acceptance, gate: acceptance, required: true, min: 0.5}
  - {id: no-loss, gate: since-green, required: true, time_margin_pct: 3, acceptance_margin_pct: 2}
"""
parse = Script.parse


@pytest.fixture
def fake(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli.write("policy.yaml", POLICY)
    slowed(monkeypatch, 1.0)
    return cli


def slowed(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """From now on the engine is another build of itself, whose spec cycles take `factor` times as long."""

    def read(options: dict[str, str]) -> Script:
        return replace(parse({"accept": "2,1,3", **options}), slowdown=factor)

    monkeypatch.setattr(Script, "parse", read)


def micro(cli: Cli) -> int:
    return cli.micro("--backend", "fake").returncode


def stored(cli: Cli, name: str = "run.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((cli.newest() / name).read_text())
    return data


def states(cli: Cli, role: str = "") -> set[tuple[str, str]]:
    result = stored(cli, "gates.json")["verdicts"]
    return {(v["state"], v["reason_code"]) for v in result if v["rule"] == "no-loss" and v["cell"].endswith(role)}


def test_the_first_run_is_green_and_later_ones_are_held_against_it(fake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert micro(fake) == 0
    first = fake.newest()
    assert states(fake) == {("SKIPPED", "no_earlier_run")}

    assert micro(fake) == 0
    second = fake.newest()
    assert states(fake) == {("PASS", "within_margin")}
    assert stored(fake)["earlier"]["runs"]["tiny"]["run"] == first.name

    slowed(monkeypatch, 1.4)
    assert micro(fake) == 1
    assert states(fake, "spec-3") == {("FAIL", "slower")} and states(fake, "baseline") == {("PASS", "within_margin")}
    red = fake.newest()

    slowed(monkeypatch, 1.03)
    assert micro(fake) == 3
    assert states(fake, "spec-3") == {("INCONCLUSIVE", "margin_not_excluded")}
    assert stored(fake)["earlier"]["runs"]["tiny"]["run"] == second.name  # the red run is no reference

    verified = fake.run("runs", "verify", red, pair=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_run_whose_folder_is_gone_is_passed_over_and_named(fake: Cli) -> None:
    assert micro(fake) == 0
    first = fake.newest()
    shutil.move(first, fake.folder / "moved")
    assert micro(fake) == 0
    (message,) = {v["message"] for v in stored(fake, "gates.json")["verdicts"] if v["rule"] == "no-loss"}
    assert f"{first.name}: its run folder is missing" in message


def test_a_green_run_of_another_machine_is_not_compared_with(fake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert micro(fake) == 0
    monkeypatch.setattr(claim, "host_identity", lambda: "another")
    assert micro(fake) == 0
    (message,) = {v["message"] for v in stored(fake, "gates.json")["verdicts"] if v["rule"] == "no-loss"}
    assert "ran on another, and is not compared with" in message


def test_a_scenario_with_another_budget_begins_anew(fake: Cli) -> None:
    assert micro(fake) == 0
    fake.scenario(budget="steps: 7")
    assert micro(fake) == 0
    (message,) = {v["message"] for v in stored(fake, "gates.json")["verdicts"] if v["rule"] == "no-loss"}
    assert "ran with another budget" in message
    assert Path(fake.newest() / "report.html").is_file()
