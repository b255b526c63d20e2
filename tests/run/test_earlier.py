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
from tests.support.command import SCRIPTED_POLICY, Cli

MARGINS = "time_margin_pct: 3, acceptance_margin_pct: 2, anchor_margin_pct: 5"
POLICY = f"{SCRIPTED_POLICY}  - {{id: no-loss, gate: since-green, required: true, {MARGINS}}}\n"
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

    fake.run("runs", "verify", red, pair=False, code=0)


def message(cli: Cli) -> str:
    """What the verdict on the last run's spec-3 says."""
    result = stored(cli, "gates.json")["verdicts"]
    (words,) = (v["message"] for v in result if v["rule"] == "no-loss" and v["cell"].endswith("spec-3"))
    return str(words)


def test_losses_below_the_margin_add_up_against_the_best_run(fake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, folders = [], []
    for build in range(6):
        slowed(monkeypatch, 1.006**build)
        codes.append(micro(fake))
        folders.append(fake.newest())
    assert codes == [0, 0, 0, 0, 0, 3]
    since_last, since_best = message(fake).split("; since the best run ")
    assert f"against {folders[4].name} (20" in since_last
    assert "step time +0.60 %" in since_last and "at most 3 % slower" in since_last
    assert since_best.startswith(folders[0].name)
    assert "step time +3.04 %" in since_best and "a margin of 5 % lies inside" in since_best

    slowed(monkeypatch, 1.083)  # 5.7 % since the last green build, which no single run can tell from 3 %
    assert micro(fake) == 1
    since_last, since_best = message(fake).split("; since the best run ")
    assert "a margin of 3 % lies inside" in since_last and "more than 5 % slower" in since_best
    assert fake.run("runs", "verify", fake.newest(), pair=False).returncode == 0


def test_a_run_that_is_proven_faster_becomes_the_best_one(fake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []
    for factor in (1.05, 1.045, 1.0, 1.005, 1.01):
        slowed(monkeypatch, factor)
        assert micro(fake) == 0
        folders.append(fake.newest().name)
    anchors = {
        cell.rpartition("/")[2]: run["run"]
        for run in stored(fake)["earlier"]["anchors"]["tiny"]
        for cell in run["cells"]
    }
    # The baseline did not change, and half a percent is not proven.
    assert anchors == {"baseline": folders[0], "spec-2": folders[2], "spec-3": folders[2]}


def test_a_pinned_run_is_the_anchor_of_its_subject_until_it_is_not(fake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(monkeypatch, 1.03)
    assert micro(fake) == 0
    first = fake.newest()
    slowed(monkeypatch, 1.0)
    assert micro(fake) == 0 and micro(fake) == 0
    assert ", the best run, too" in message(fake)

    pinned = fake.run("runs", "pin", first, pair=False)
    assert pinned.stdout.startswith(f"pinned {first.name}: the anchor of tiny for policy policy")
    assert micro(fake) == 0
    assert f"since the pinned run {first.name} (" in message(fake)
    assert fake.run("runs", "verify", first, pair=False).returncode == 0  # the pin is no end of a run

    assert fake.micro("--backend", "fake", "-o", "accept=2,1,2").returncode == 0
    earlier = stored(fake)["earlier"]
    assert (
        earlier["anchors"] == {} and f"{first.name} is pinned, and is of another subject" in earlier["missing"]["tiny"]
    )

    assert fake.run("runs", "unpin", first, pair=False).returncode == 0
    assert micro(fake) == 0
    assert "pinned" not in message(fake)


def test_what_cannot_be_pinned_is_refused(fake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert micro(fake) == 0
    green = fake.newest()
    slowed(monkeypatch, 1.4)
    assert micro(fake) == 1

    def refused(*words: str | Path) -> str:
        done = fake.run("runs", *words, pair=False, code=2)
        return done.stderr

    assert "it ended with FAIL" in refused("pin", fake.newest())
    assert "no such run folder" in refused("pin", "runs/none")
    assert "it is not pinned" in refused("unpin", green)
    assert "has no entry of it" in refused("pin", shutil.copytree(green, green.with_name("copy")))
    assert fake.run("runs", "pin", green, pair=False).returncode == 0
    assert "it has been pinned since" in refused("pin", green)

    moved = shutil.move(green, fake.folder / "moved" / green.name)
    done = fake.micro("--backend", "fake")
    assert done.returncode == 2 and f"{green.name} is pinned in" in done.stderr and "runs unpin" in done.stderr
    slowed(monkeypatch, 1.0)
    assert fake.micro("--backend", "fake", "--archive", Path(moved).parent).returncode == 0
    assert fake.run("runs", "unpin", green, pair=False).returncode == 0
    assert micro(fake) == 0


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
