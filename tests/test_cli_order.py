"""micro three times, then full: what is refused, with which words, and what an override leaves behind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from specgate.backends.eagle3.tiny import write_random_pair
from specgate.ledger import Entry, Ledger
from tests.command import ROOT, SCENARIO, Cli

FAKE = ("--backend", "fake")


@pytest.fixture
def order(cli: Cli) -> Cli:
    """`gate.yaml` is the policy's micro scenario, `tiny.yaml` a full one."""
    cli.scenario(kind="full", budget="new_tokens: 10, ignore_eos: false")
    return cli


def micro(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli.run("micro", "--scenario", "gate.yaml", "--policy", "policy.yaml", *(arguments or FAKE))


def full(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli.run("full", "--scenario", "tiny.yaml", "--policy", "policy.yaml", *(arguments or FAKE))


def status(cli: Cli, *arguments: str) -> dict[str, Any]:
    options = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--json")
    done = cli.run("status", *options, *(arguments or FAKE))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def entries(cli: Cli) -> tuple[Entry, ...]:
    return Ledger(cli.folder / "runs").read().entries


def green(cli: Cli, times: int = 3, *arguments: str, **changes: Any) -> None:
    """One green micro run, and its entry again as other runs of other processes, as `changes` has them."""
    done = micro(cli, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = Ledger(cli.folder / "runs")
    last = ledger.read().entries[-1]
    for n in range(1, times):
        ledger.append(replace(last, run=f"again-{n}", pid=last.pid + n, **changes))


def test_full_follows_three_green_micro_runs_and_a_source_edit_ends_that(order: Cli) -> None:
    shutil.copytree(ROOT / "specgate", order.folder / "checkout" / "specgate")
    order.root = order.folder / "checkout"
    for count in range(3):
        refused = full(order)
        assert refused.returncode == 5
        assert f"have been green {count} of 3 times in a row" in refused.stderr
        done = micro(order)
        assert f"micro gates of policy policy: green {count + 1} of 3 times in a row (this run: one more)" in done.stdout
    allowed = full(order)
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    assert len({(e.pid, e.process_started) for e in entries(order)}) == 4
    with (order.root / "specgate" / "metrics.py").open("a") as file:
        file.write("# edited\n")
    refused = full(order)
    assert refused.returncode == 5
    assert "0 of 3" in refused.stderr and "source_tree_sha256 is another one" in refused.stderr


def test_a_refusal_measures_nothing_and_its_command_is_the_one_to_run(order: Cli) -> None:
    refused = full(order)
    assert not (order.folder / "runs").exists()
    command = re.search(r"run: (specgate micro .*)", refused.stderr)
    assert command is not None
    words = command[1].split()
    done = order.run(*words[1:], pair=False)
    assert done.returncode == 0, done.stderr
    assert "green 1 of 3" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "wrong_token_at=5"), "starts anew"),
        (("-o", "die_after_blocks=20"), "starts anew"),
        (("--measurement-runs", "3"), "ran with other settings"),
        (("-o", "slowdown=2"), "green 1 of 3"),
    ],
    ids=["wrong token", "engine killed", "other settings", "other options"],
)
def test_what_a_micro_run_does_to_the_streak_is_printed(order: Cli, arguments: tuple[str, ...], said: str) -> None:
    green(order, 2)
    last = micro(order, *FAKE, *arguments)
    assert said in last.stdout
    # Options are part of what is measured: with others, another streak begins.
    expected = {"starts anew": 2, "ran with other settings": 2, "green 1 of 3": 2}[said]
    assert status(order)["streak"] == expected


def test_a_red_run_of_the_same_engine_starts_the_streak_anew(order: Cli) -> None:
    green(order)
    assert status(order)["full_allowed"] is True
    order.write("gate.yaml", SCENARIO.format(kind="micro", context=24, budget="steps: 6"))
    ledger = Ledger(order.folder / "runs")
    from specgate.core import State

    ledger.append(replace(ledger.read().entries[-1], run="red", pid=1, state=State.FAIL, exit_code=1))
    found = status(order)
    assert (found["streak"], found["full_allowed"]) == (0, False)
    assert full(order).returncode == 5


def test_resuming_a_complete_run_does_not_count_again(order: Cli) -> None:
    green(order, 1)
    done = order.run("micro", "--resume", order.newest(), pair=False)
    assert "this run: no change: the same run was counted before" in done.stdout
    assert status(order)["streak"] == 1


def test_green_runs_expire(order: Cli) -> None:
    old = (datetime.now(UTC) - timedelta(hours=73)).isoformat(timespec="seconds")
    green(order, 3, time=old)
    assert status(order)["streak"] == 1


def test_other_weights_are_refused_once_they_are_loaded(order: Cli, tmp_path: Path) -> None:
    shutil.copytree(order.draft, tmp_path / "draft")
    order.draft = tmp_path / "draft"
    reference = ("--backend", "reference")
    green(order, 3, *reference)
    other, _ = write_random_pair(tmp_path / "other", seed=9)
    shutil.copy(other.parent / "draft" / "model.safetensors", order.draft)
    refused = full(order, *reference)
    assert refused.returncode == 5, refused.stdout + refused.stderr
    assert "0 of 3" in refused.stderr and "draft_sha256 is another one" in refused.stderr
    assert not (order.newest() / "samples" / "blocks.jsonl").exists()
    assert [e.kind for e in entries(order)] == ["micro"] * 3


def test_an_override_is_in_the_ledger_and_on_the_first_line_of_every_report(order: Cli) -> None:
    done = full(order, *FAKE, "--plain", "--override-order", "release <candidate> burns")
    assert done.returncode == 0, done.stdout + done.stderr
    first = "ORDER OVERRIDDEN (micro gates green 0 of 3 times): release <candidate> burns"
    report = done.stdout[done.stdout.index("ORDER OVERRIDDEN") :]
    assert report.startswith(first + "\ncell ")
    run = order.newest()
    assert json.loads((run / "run.json").read_text())["order"]["override"] == "release <candidate> burns"
    page = re.sub(r"<style>.*?</style>|<[^>]*>", "", (run / "report.html").read_text().partition("<body>")[2])
    assert page.strip().startswith(first.replace("<", "&lt;").replace(">", "&gt;"))
    assert [e.override for e in entries(order)] == ["release <candidate> burns"]
    assert status(order)["overrides"][0]["reason"] == "release <candidate> burns"
    assert status(order)["streak"] == 0


@pytest.mark.parametrize("arguments", [("--override-order", " "), ("--override-order",)])
def test_an_override_needs_a_reason(order: Cli, arguments: tuple[str, ...]) -> None:
    assert full(order, *FAKE, *arguments).returncode == 2


def test_a_changed_ledger_stops_every_command_that_rests_on_it_and_loses_nothing(order: Cli) -> None:
    green(order)
    ledger = order.folder / "runs" / "ledger.jsonl"
    ledger.write_bytes(changed := ledger.read_bytes().replace(b'"again-1"', b'"other-1"'))
    for done in (micro(order), full(order), full(order, *FAKE, "--override-order", "x"), order.run("status", *FAKE)):
        assert done.returncode == 6, done.stdout + done.stderr
        assert "ledger_tampered" in done.stderr and "move" in done.stderr
    assert ledger.read_bytes() == changed
    for file in ledger.parent.glob("ledger.*"):
        file.unlink()
    assert micro(order).returncode == 0


def test_a_torn_line_is_reported_and_does_no_harm(order: Cli) -> None:
    green(order, 2)
    with (order.folder / "runs" / "ledger.jsonl").open("a") as file:
        file.write('{"prev_sha256":"12')
    assert status(order)["torn_line"] == '{"prev_sha256":"12'
    done = micro(order)
    assert "a torn line was moved to ledger.torn.jsonl" in done.stdout
    found = status(order)
    assert (found["streak"], found["torn_line"], found["torn_lines_set_aside"]) == (3, None, 1)


def test_status_says_what_is_missing_and_what_to_run(order: Cli) -> None:
    green(order, 2)
    done = order.run("status", "--scenario", "tiny.yaml", "--policy", "policy.yaml", *FAKE)
    assert "chain intact" in done.stdout and "streak 2 of 3" in done.stdout
    assert "missing: 1 green run of gate" in done.stdout
    assert "run: specgate micro --scenario gate.yaml" in done.stdout
    micro(order)
    done = order.run("status", "--scenario", "tiny.yaml", "--policy", "policy.yaml", *FAKE)
    assert "full may begin until" in done.stdout and "missing" not in done.stdout
