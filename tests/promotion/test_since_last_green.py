"""The last green run before a run, and what has changed since."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

from specgate.files.config import Config
from specgate.promotion.claim import subject_of
from specgate.promotion.since_last_green import previous_green
from tests.promotion.entries import ENTRY
from tests.support.command import Cli
from tests.support.factories import POLICY, blocks_of, plan_of, run_of


def last_green(cli: Cli) -> dict[str, object] | None:
    data: dict[str, object] | None = json.loads((cli.newest() / "run.json").read_text())["last_green"]
    return data


def test_a_run_knows_the_last_green_one_of_its_subject_and_what_changed_since(cli: Cli) -> None:
    assert cli.micro("--backend", "fake").returncode == 0
    assert last_green(cli) is None
    first = cli.newest()

    assert cli.micro("--backend", "fake", "-o", "wrong_token_at=5").returncode == 6
    assert last_green(cli) is None  # other options are another subject

    file = first / "run.json"
    stored = json.loads(file.read_text())
    stored["environment"]["packages"]["numpy"] = "1.0.0"
    file.write_text(json.dumps(stored))
    assert cli.micro("--backend", "fake").returncode == 0
    second = cli.newest()
    result = last_green(cli)
    assert result is not None and result["run"] == first.name
    assert isinstance(result["differences"], list)
    assert [(key, then) for key, then, _ in result["differences"]] == [("packages.numpy", "1.0.0")]
    assert "packages.numpy" in (second / "report.html").read_text()

    shutil.rmtree(second)
    assert cli.micro("--backend", "fake").returncode == 0
    assert last_green(cli) == {**result, "run": second.name, "time": last_time(cli, second.name), "differences": None}


def last_time(cli: Cli, run: str) -> str:
    entries = [json.loads(line) for line in (cli.newest().parent / "ledger.jsonl").read_text().splitlines()]
    return str(next(entry["time"] for entry in entries if entry["run"] == run))


def test_a_micro_run_knows_the_green_runs_that_it_continues(cli: Cli) -> None:
    counts = []
    for _ in range(2):
        cli.run("micro", "--scenario", "gate.yaml", "--policy", "policy.yaml", "--backend", "fake", code=0)
        counts.append(json.loads((cli.newest() / "run.json").read_text())["promotion"]["streak"])
    assert counts == [0, 1]


def test_of_two_green_runs_that_ended_in_one_second_the_later_line_is_the_last() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan))
    config = Config(run.kind, "fake", run.pair, POLICY, plan.scenarios)
    entry = replace(ENTRY, kind=run.kind, subject=subject_of(config), time=run.started)
    entries = [replace(entry, run=name) for name in ("first", "second")]
    assert previous_green(run, config, entries) == entries[1]
    assert (
        previous_green(run, config, [entries[0], replace(entries[1], time="2026-11-20T00:00:00+00:00")]) == entries[0]
    )
