"""Own prompts measured until they are decided, on the command line: the end by time, more time, and no less."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specgate.errors import ExitCode
from tests.commands.test_calibrate import POLICY
from tests.support.command import Cli

QUESTION = ("--backend", "fake", "--prompts", "mine.jsonl", "--spec", "3", "--steps", "6", "--policy", "policy.yaml")


@pytest.fixture
def cli(cli: Cli) -> Cli:
    cli.write("policy.yaml", POLICY)
    lines = [{"ids": [(7 * n + i) % 200 for i in range(4)]} for n in range(20)]
    cli.write("mine.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return cli


def record(cli: Cli) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((cli.newest() / "run.json").read_text())
    return read


def test_time_that_is_too_short_says_how_much_would_do_and_more_of_it_decides(cli: Cli) -> None:
    done = cli.run("micro", *QUESTION, "--batch", "8", "--budget", "0.001s")
    run, folder = record(cli), cli.newest()
    assert done.returncode == ExitCode.INCONCLUSIVE, done.stdout + done.stderr
    ((end,),) = run["time_ends"].values()
    assert (end["rounds"], end["budget_s"]) == (1, 0.001) and list(run["ended_early"].values()) == [1]
    assert f"next: specgate micro --resume {folder.relative_to(cli.folder)} --budget 1s" in done.stdout
    assert "Measuring took " in done.stdout and " measured" in done.stdout
    assert "all as stored" in cli.run("runs", "verify", folder, pair=False).stdout
    less = cli.run("micro", "--resume", folder, "--budget", "0.001s", pair=False)
    assert less.returncode == ExitCode.USAGE and "were spent on a point already" in less.stderr
    rounds = cli.run("micro", "--resume", folder, "--measurement-runs", "4", pair=False)
    assert rounds.returncode == ExitCode.USAGE and "continue it with --budget" in rounds.stderr
    more = cli.run("micro", "--resume", folder, "--budget", "5m", pair=False)
    assert more.returncode == ExitCode.PASS, more.stdout + more.stderr
    after = record(cli)
    (speed,) = [v for v in after["verdicts"] if v["rule"] == "speed"]
    assert after["time_ends"] == run["time_ends"], "the first end stays a look"
    assert (speed["evidence"]["look"], speed["evidence"]["pairs"]) == (2, 4)
    assert list(after["ended_early"].values()) == [4]
    assert "all as stored" in cli.run("runs", "verify", folder, pair=False).stdout
    assert cli.run("micro", "--resume", folder, "--budget", "9m", pair=False).returncode == ExitCode.USAGE


def test_a_point_ends_where_nothing_is_open_and_its_texts_were_checked_before(cli: Cli) -> None:
    done = cli.run("micro", *QUESTION, "--batch", "2")
    run = record(cli)
    assert done.returncode == ExitCode.PASS, done.stdout + done.stderr
    assert list(run["ended_early"].values()) == [8], "eight sets, each of them once"
    (tokens,) = [comparison["tokens"] for comparison in run["comparisons"]]
    assert not run["time_ends"] and tokens["compared_tokens"] == tokens["emitted_tokens"]


def test_a_first_run_goes_on_for_later_ones_for_a_short_time_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgate.run.runner.EARLIER_RUNS_S", 0.001)
    cli.write("policy.yaml", f"{POLICY}  - {{id: loss, gate: since-green, required: true, time_margin_pct: 3}}\n")
    done = cli.run("micro", *QUESTION, "--batch", "2", "--plain")
    run = record(cli)
    assert done.returncode == ExitCode.PASS, done.stdout + done.stderr
    ((end,),) = run["time_ends"].values()
    assert (end["rounds"], end["budget_s"]) == (8, 0.001) and list(run["ended_early"].values()) == [8]
    (loss, _) = [v for v in run["verdicts"] if v["rule"] == "loss"]
    assert (loss["state"], loss["reason_code"]) == ("SKIPPED", "no_earlier_run")
    assert "all as stored" in cli.run("runs", "verify", cli.newest(), pair=False).stdout


def test_all_prompts_of_a_file_are_measured_where_that_is_asked_for(cli: Cli) -> None:
    plan = cli.run("scenarios", "plan", *QUESTION[:4], "--all", pair=False)
    assert plan.returncode == 0 and "20 of 20 prompts" in plan.stdout, plan.stderr
    assert "own-mine.all\t4\t1\tbaseline spec-3\t20–360+2\t20–360\t44–724\t" in plan.stdout
    for wrong in (("--all",), ("--all", "--prompts", "mine.jsonl", "--prompt-sets", "4")):
        refused = cli.run("micro", "--backend", "fake", *wrong)
        assert refused.returncode == ExitCode.USAGE and "--all with" in refused.stderr


@pytest.mark.parametrize("budget", ["0s", "-3s", "5 min", "1e9", "nan", "m"])
def test_a_budget_that_is_no_time_is_refused(cli: Cli, budget: str) -> None:
    refused = cli.run("micro", *QUESTION, "--budget", budget)
    assert refused.returncode == ExitCode.USAGE and "a time such as 90s, 5m or 2h" in refused.stderr


def test_time_and_a_number_of_rounds_are_not_asked_for_together(cli: Cli) -> None:
    refused = cli.run("micro", *QUESTION, "--budget", "5m", "--measurement-runs", "2")
    assert refused.returncode == ExitCode.USAGE and "--budget with --measurement-runs" in refused.stderr
