"""micro three times, then full: what is refused, with which words, and what an override leaves behind."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specgate.backends.fake.engine import FakeBackend
from specgate.cli import cli as commands
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import SpecgateError
from specgate.files.run_folder import RunFolder
from specgate.files.writing import sha256_of
from specgate.machine.host import identity
from specgate.planning.request import Request
from specgate.promotion.claim import engine_fingerprint
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.standing import promotion_status
from tests.pairs.tiny import write_random_pair
from tests.promotion.entries import ENTRY
from tests.support.command import ROOT, Cli

FAKE = ("--backend", "fake")


@pytest.fixture
def order(cli: Cli) -> Cli:
    """`gate.yaml` is the policy's micro scenario, `tiny.yaml` a full one."""
    cli.scenario(kind="full", budget="new_tokens: 10, ignore_eos: false")
    return cli


MICRO = ("micro", "--scenario", "gate.yaml", "--policy", "policy.yaml")
FULL = ("full", "--scenario", "tiny.yaml", "--policy", "policy.yaml")


def micro(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli.run(*MICRO, *(arguments or FAKE))


def full(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli.run(*FULL, *(arguments or FAKE))


def here(cli: Cli, command: str, *arguments: str) -> tuple[int, str]:
    """(exit code, output) of a command that starts no engine, in this process."""
    pair = ("--target", str(cli.target), "--draft", str(cli.draft))
    request = (command, "--scenario", "tiny.yaml", "--policy", "policy.yaml", *FAKE, *arguments, *pair)
    with contextlib.chdir(cli.folder):
        done = CliRunner().invoke(commands, request)
    if isinstance(done.exception, SpecgateError):
        return done.exception.exit_code, f"{done.output}{done.exception}"
    return done.exit_code, done.output


def status(cli: Cli) -> dict[str, Any]:
    code, output = here(cli, "full", "--status", "--json")
    assert code == 0, output
    data: dict[str, Any] = json.loads(output)
    return data


def entries(cli: Cli) -> tuple[Entry, ...]:
    return Ledger(cli.folder / "runs").read().entries


def enter(cli: Cli, times: int = 1, by: Mapping[str, str | None] | None = None) -> None:
    """Entries as green micro runs of `gate.yaml` on the fake engine would leave them, each of a process of its own.
    `by`: who measured, in the fingerprint.
    """
    fake = FakeBackend().open(OpenRequest(PairRef("p", cli.target, None), "float32", 2, 64, 3, False))
    with contextlib.chdir(cli.folder):
        request = Request("full", (), True, Path("runs"), "fake", ("tiny.yaml",), None, "policy.yaml")
        result = promotion_status(replace(request, target=cli.target, draft=cli.draft))
        ledger = Ledger(Path("runs"))
        for _ in range(times):
            n = len(ledger.read().entries)
            made = replace(
                ENTRY,
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                run=f"entered-{n}",
                subject=result.claim.subject,
                gates=result.claim.gates,
                fingerprint={**result.claim.fingerprint, **engine_fingerprint(fake.facts()), **(by or {})},
                pid=n,
                host=identity(),
            )
            ledger.append(replace(made, manifest_sha256=folder_for(made)))


def folder_for(entry: Entry) -> str:
    """Make the run folder that bears out `entry`, and return the hash of its manifest."""
    folder = RunFolder(Path("runs", entry.run))
    folder.write_json("gates.json", {"exit_code": entry.exit_code})
    folder.write_manifest()
    return sha256_of(folder.path / "MANIFEST.sha256")


@pytest.mark.slow("three commands in processes of their own")
def test_full_follows_three_green_micro_runs_and_a_source_edit_ends_that(order: Cli) -> None:
    shutil.copytree(ROOT / "specgate", order.folder / "checkout" / "specgate")
    order.root = order.folder / "checkout"
    code, text = here(order, "full")
    assert code == 5 and "have been green 0 of 3 times in a row" in text
    enter(order, 2)
    done = order.run_apart(*FULL, *FAKE, "--micro-first", code=0)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("green micro runs", "specgate micro"))]
    assert lines[0].startswith("specgate micro --scenario gate.yaml "), "the one that is missing, and it alone"
    assert lines[1:] == ["green micro runs in a row: 3 of 3 (this run: one more)"]
    assert [e.kind for e in entries(order)] == ["micro", "micro", "micro", "full"]
    assert len({(e.pid, e.process_started) for e in entries(order)}) == 4
    with (order.root / "specgate" / "metrics.py").open("a") as file:
        file.write("# edited\n")
    refused = order.run_apart(*FULL, *FAKE, code=5)
    assert "0 of 3" in refused.stderr
    assert re.search("starts anew: source_tree_sha256 was [0-9a-f]{12}…, is [0-9a-f]{12}…", refused.stderr)


def test_full_does_not_begin_behind_a_micro_gate_that_is_not_green(order: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's own code is the answer, and nothing is tried again."""
    started: list[list[str]] = []

    def red(words: list[str]) -> int:
        started.append(words)
        return 3

    monkeypatch.setattr("specgate.run.session.another_command", red)
    assert here(order, "full", "--micro-first", "--warmup-runs", "0")[0] == 3
    (words,) = started
    assert words[:3] == ["micro", "--scenario", "gate.yaml"]
    assert "--warmup-runs" not in words, "the gates are run as they stand"
    code, text = here(order, "full", "--micro-first", "--override-order", "x")
    assert code == 2 and "--micro-first with --override-order" in text


@pytest.mark.slow("a run in processes of its own")
def test_ctrl_c_ends_the_micro_gates_of_a_full_run_as_it_ends_any_run(order: Cli) -> None:
    """Also where it comes to the full run's process alone, as SIGTERM does."""
    assert order.signalled_after_seven_blocks(signal.SIGINT, *FULL, "--micro-first") == 130
    assert json.loads((order.newest() / "run.json").read_text())["status"] == "interrupted"
    assert [(e.kind, e.exit_code) for e in entries(order)] == [("micro", 130)]


def test_a_refusal_measures_nothing_and_its_command_is_the_one_to_run(order: Cli) -> None:
    code, output = here(order, "full")
    assert code == 5
    assert not (order.folder / "runs").exists()
    command = re.search(r"run: (specgate micro .*)", output)
    assert command is not None
    done = order.run(*command[1].split()[1:], pair=False, code=0)
    assert "runs in a row: 1 of 3" in done.stdout


@pytest.mark.slow("a run in processes of its own")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "die_after_blocks=20"), "runs in a row: 0 of 3 (this run: starts anew)"),
        (("--measurement-runs", "3"), "runs in a row: 2 of 3 (this run: no change: gate ran with other"),
    ],
    ids=["engine killed", "other settings"],
)
def test_a_micro_run_says_what_it_did_to_the_count(order: Cli, arguments: tuple[str, ...], message: str) -> None:
    enter(order, 2)
    ran = order.run_apart if "die_after_blocks=20" in arguments else order.run
    assert message in ran(*MICRO, *FAKE, *arguments).stdout


def test_options_are_part_of_what_is_measured(order: Cli) -> None:
    enter(order, 3)
    assert here(order, "full", "-o", "slowdown=2")[0] == 5
    assert status(order)["full_allowed"] is True


def test_a_complete_run_is_not_resumed_and_does_not_count_again(order: Cli) -> None:
    micro(order)
    done = order.run("micro", "--resume", order.newest(), pair=False)
    assert done.returncode == 2 and "nothing is left to continue" in done.stderr
    assert status(order)["streak"] == 1 and len(entries(order)) == 1


def test_a_ledger_that_was_copied_from_another_host_lets_nothing_pass(
    order: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(order, 3)
    assert status(order)["full_allowed"] is True
    here_it_was = identity()
    monkeypatch.setattr("specgate.machine.host.identity", lambda: "another")
    assert "starts anew: host was" in status(order)["last"][-1]["effect"]  # a CPU is part of the fingerprint
    monkeypatch.setattr("specgate.promotion.claim.host_identity", lambda: here_it_was)  # as with one GPU moved over
    state = status(order)
    assert (state["streak"], state["full_allowed"]) == (0, False)
    assert state["host"] == "another" != state["head_host"]
    assert "it ran on another host" in state["last"][-1]["effect"]
    assert "written last on another host" in here(order, "full", "--status")[1]
    assert here(order, "full")[0] == 5


def test_green_runs_of_a_fleet_count_apart(order: Cli) -> None:
    enter(order, 1)
    enter(order, 3, by={"fleet": f"2: {identity()} 0, {identity()} 1"})
    state = status(order)
    assert (state["streak"], state["full_allowed"]) == (1, False)
    assert state["last"][-1]["effect"] == "no change: a fleet measured it, whose green runs count apart"
    assert "green micro runs in a row: 1 of 3\n" in here(order, "full", "--status")[1]
    of_fleet = here(order, "full", "--status", "--on", "gpus", "--slots", "2")[1]
    assert "green micro runs in a row: 3 of 3\n" in of_fleet
    assert "one machine measured it, whose green runs count apart" in " ".join(of_fleet.split())
    of_another = here(order, "full", "--status", "--on", "gpus", "--slots", "3")[1]
    assert "green micro runs in a row: 0 of 3\n" in of_another


def test_green_runs_without_their_folders_let_nothing_pass_until_an_archive_is_named(order: Cli) -> None:
    enter(order, 3)
    (archive := order.folder / "archive").mkdir()
    for run in (order.folder / "runs").glob("entered-*"):
        shutil.move(run, archive / run.name)
    code, text = here(order, "full")
    assert code == 5 and "its run folder is missing" in text
    code, text = here(order, "full", "--status", "--archive", str(archive))
    assert code == 0 and "green micro runs in a row: 3 of 3" in text
    assert full(order, *FAKE, "--archive", str(archive)).returncode == 0


def test_other_weights_are_refused_once_they_are_loaded(order: Cli, tmp_path: Path) -> None:
    shutil.copytree(order.draft, tmp_path / "draft")
    order.draft = tmp_path / "draft"
    reference = ("--backend", "reference")
    assert micro(order, *reference).returncode == 0
    ledger, (first,) = Ledger(order.folder / "runs"), entries(order)
    for n in (1, 2):
        shutil.copytree(order.folder / "runs" / first.run, order.folder / "runs" / f"again-{n}")
        ledger.append(replace(first, run=f"again-{n}", pid=first.pid + n))
    other, _ = write_random_pair(tmp_path / "other", seed=9)
    shutil.copy(other.parent / "draft" / "model.safetensors", order.draft)
    refused = full(order, *reference)
    assert refused.returncode == 5, refused.stdout + refused.stderr
    assert "0 of 3" in refused.stdout
    assert re.search("starts anew: draft_sha256 was [0-9a-f]{12}…, is [0-9a-f]{12}…", refused.stdout)
    assert not (order.newest() / "samples" / "blocks.jsonl").exists()
    assert [e.kind for e in entries(order)] == ["micro"] * 3


def test_an_override_is_in_the_ledger_and_on_the_first_line_of_every_report(order: Cli) -> None:
    done = full(order, *FAKE, "--plain", "--override-order", "release <candidate> burns")
    assert done.returncode == 0, done.stdout + done.stderr
    first = "ORDER OVERRIDDEN (micro gates green 0 of 3 times): release <candidate> burns"
    report = done.stdout[done.stdout.index("ORDER OVERRIDDEN") :]
    assert report.startswith(first + "\n")
    run = order.newest()
    assert json.loads((run / "run.json").read_text())["promotion"]["override"] == "release <candidate> burns"
    page = re.sub(r"<style>.*?</style>|<[^>]*>", "", (run / "report.html").read_text().partition("<body>")[2])
    assert page.strip().startswith(first.replace("<", "&lt;").replace(">", "&gt;"))
    assert [e.override for e in entries(order)] == ["release <candidate> burns"]
    assert status(order)["overrides"][0]["reason"] == "release <candidate> burns"
    assert status(order)["streak"] == 0


def test_a_question_of_ones_own_waits_for_the_same_question_in_micro_runs(order: Cli) -> None:
    order.write("mine.jsonl", "".join(json.dumps({"ids": [i, *range(12)]}) + "\n" for i in range(12)))
    question = ("--prompts", "mine.jsonl", "--batch", "2", "--policy", "policy.yaml", *FAKE)
    refused = order.run("full", *question, "--new-tokens", "10", code=5)
    assert "missing: 3 green runs of own-mine.b2 (" in refused.stderr
    command = re.search("run: specgate (micro .*)", refused.stderr)
    assert command is not None and "--prompts mine.jsonl" in command[1] and "--new-tokens" not in command[1]
    done = order.run(*command[1].split(), pair=False, code=0)
    assert "green micro runs in a row: 1 of 3 (this run: one more)" in done.stdout
    state = json.loads(order.run("full", *question, "--new-tokens", "99", "--status", "--json").stdout)
    assert state["streak"] == 1, "so long as the prompts are, whatever is asked for after them"
    other = json.loads(order.run("full", *question, "--prompt-sets", "4", "--status", "--json").stdout)
    assert other["streak"] == 0, "another question"


def test_an_exploration_begins_at_once_has_all_figures_and_is_never_green(order: Cli) -> None:
    done = full(order, *FAKE, "--plain", "--explore")
    assert done.returncode == 8, done.stdout + done.stderr
    assert "EXPLORATION (micro gates green 0 of 3 times): " in done.stdout and "verdict NOT_JUDGED" in done.stdout
    run = RunFolder.open(order.newest()).read_run()
    assert run.comparisons[0].speedup.value is not None and run.cells[1].acceptance is not None
    assert {v.rule for v in run.verdicts if v.required} == {"records", "tokens"}
    assert order.run("runs", "verify", order.newest(), pair=False).returncode == 0
    assert [e.override for e in entries(order)] == ["exploration"] and status(order)["streak"] == 0
    assert here(order, "full", "--explore", "--override-order", "x")[0] == 2


@pytest.mark.parametrize("arguments", [("--override-order", " "), ("--override-order",)])
def test_an_override_needs_a_reason(order: Cli, arguments: tuple[str, ...]) -> None:
    assert here(order, "full", *arguments)[0] == 2


def test_a_changed_ledger_stops_every_command_that_rests_on_it_and_loses_nothing(order: Cli) -> None:
    enter(order, 3)
    ledger = order.folder / "runs" / "ledger.jsonl"
    ledger.write_bytes(changed := ledger.read_bytes().replace(b'"entered-1"', b'"entered-9"'))
    order.scenario()
    micro_refused = here(order, "micro")
    order.scenario(kind="full", budget="new_tokens: 10")
    for code, output in (micro_refused, here(order, "full", "--override-order", "x"), here(order, "full", "--status")):
        assert code == 6, output
        assert "ledger_tampered" in output and "move" in output
    assert ledger.read_bytes() == changed


def test_a_torn_line_is_reported_and_does_no_harm(order: Cli) -> None:
    enter(order, 2)
    with (order.folder / "runs" / "ledger.jsonl").open("a") as file:
        file.write('{"prev_sha256":"12')
    assert status(order)["torn_line"] == '{"prev_sha256":"12'
    assert "a torn line at its end" in here(order, "full", "--status")[1]
    assert "a torn line was moved to ledger.torn.jsonl" in micro(order).stdout
    state = status(order)
    assert (state["streak"], state["torn_line"], state["torn_lines_set_aside"]) == (3, None, 1)


def test_status_says_what_is_missing_and_what_to_run(order: Cli) -> None:
    enter(order, 2)
    output = here(order, "full", "--status")[1]
    assert "chain intact" in output and "green micro runs in a row: 2 of 3" in output
    assert "missing: 1 green run of gate" in output
    assert "run: specgate micro --scenario gate.yaml" in output
    enter(order, 1)
    output = here(order, "full", "--status")[1]
    assert "full may begin until" in output and "missing" not in output


def test_a_run_that_is_not_judged_does_not_count_and_status_names_what_is_missing(order: Cli) -> None:
    policy = (order.folder / "policy.yaml").read_text()
    lines = [line for line in policy.splitlines(keepends=True) if "gate: acceptance" not in line]
    order.write("policy.yaml", "".join(lines))
    for _ in range(3):
        done = micro(order)
        assert done.returncode == 8, done.stdout + done.stderr
        assert "verdict NOT_JUDGED (exit 8), tokens, acceptance and speed not judged" in done.stdout
        assert "warning: no required rule of policy judges acceptance of 2 cells" in done.stderr
    run = order.newest()
    gates = json.loads((run / "gates.json").read_text())
    assert (gates["verdict"], gates["exit_code"]) == ("NOT_JUDGED", 8)
    silent = [gap for gap in gates["not_judged"] if gap["why"] is None]
    assert [(gap["kind"], len(gap["cells"])) for gap in silent] == [("acceptance", 2)]
    assert json.loads((run / "run.json").read_text())["not_judged"] == gates["not_judged"]
    assert full(order).returncode == 5
    code, text = here(order, "full", "--status")
    assert code == 0 and "green micro runs in a row: 0 of 3" in text
    assert "NOT_JUDGED" in text and "not judged: acceptance of 2 cells" in text
    code, text = here(order, "full", "--status", "--json")
    (last, *_) = reversed(json.loads(text)["last"])
    assert (last["state"], last["exit_code"], last["effect"]) == ("NOT_JUDGED", 8, "no change")
    assert "acceptance of 2 cells" in last["not_judged"]
    verified = order.run("runs", "verify", run, pair=False)
    assert verified.returncode == 0 and "verdict NOT_JUDGED (exit 8)" in verified.stdout, verified.stdout
    resumed = order.run("micro", "--resume", run, pair=False)
    assert resumed.returncode == 2 and "nothing is left to continue" in resumed.stderr
