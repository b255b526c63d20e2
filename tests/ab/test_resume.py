"""A comparison that goes on: after CANNOT TELL with more process pairs, or after it was cut off."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.ab.folder import AbFolder
from specgate.ab.recording import changed_since
from specgate.ab.resuming import earlier
from specgate.errors import InvalidResult
from specgate.files.manifest import MANIFEST, manifest_of
from tests.ab.test_sides import commits, git, git_worktrees, write_build
from tests.support import in_process
from tests.support.command import UNDRAWN, Cli

BY_PROMPT = ("--new", "prompt_jitter=0.02")
"""The new build is slower by 0 to 2 %, as the prompts have it: too little can be said of four process pairs."""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("session"), *pair)
    cli.scenario(spec=[3], sets=16)
    return cli


@pytest.fixture(scope="module")
def stored(cli: Cli) -> Path:
    """A comparison of four process pairs that ended with CANNOT TELL."""
    return begun(cli, *BY_PROMPT, "--processes", "4")


@pytest.fixture
def undecided(stored: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(stored, tmp_path / stored.name)


FIXED = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", "-o", "step_ns=2000000")


def begun(cli: Cli, *arguments: str, code: int = 3) -> Path:
    """The folder of a new comparison, which must end with `code`."""
    done = cli.run("ab", *FIXED, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return newest(cli)


def newest(cli: Cli) -> Path:
    return max((cli.folder / "runs").glob("*-ab-*"), key=lambda folder: folder.stat().st_ctime_ns)


def resumed(cli: Cli, folder: Path, *arguments: str, code: int) -> str:
    done = cli.run("ab", "--resume", folder, *arguments, pair=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def result(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "ab.json").read_text())
    return data


def deciding(folder: Path) -> list[dict[str, Any]]:
    return [q for q in result(folder)["quantities"] if q["decides"]]


def edited(folder: Path, file: str, change: Callable[[Any], None]) -> None:
    """Change a JSON file of a comparison, and mend the manifest."""
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))
    (folder / MANIFEST).write_text(manifest_of(folder))


def test_more_process_pairs_decide_what_could_not_be_told(cli: Cli, undecided: Path) -> None:
    before = (undecided / "new" / "samples" / "blocks.jsonl").read_bytes()
    output = resumed(cli, undecided, "--processes", "12", code=1)
    assert "verdict SLOWER (exit 1)" in output and "extended at" in output
    assert (undecided / "new" / "samples" / "blocks.jsonl").read_bytes().startswith(before)
    assert [(k["pairs"], k["word"]) for k in result(undecided)["looks"]] == [(4, "CANNOT TELL"), (16, "SLOWER")]
    assert sum(k["error"] for k in result(undecided)["looks"]) < result(undecided)["margins"]["error"]
    verified = cli.run("runs", "verify", undecided, pair=False)
    assert verified.returncode == 0 and "verdict SLOWER" in verified.stdout, verified.stdout


def test_a_planned_extension_is_the_same_as_one_that_is_asked_for_afterwards(cli: Cli, undecided: Path) -> None:
    planned = begun(cli, *BY_PROMPT, "--processes", "4,16", code=1)
    resumed(cli, undecided, "--processes", "12", code=1)
    assert deciding(planned) == deciding(undecided) and result(planned)["looks"] == result(undecided)["looks"]
    edited(planned, "ab.json", lambda data: data["looks"][0].update(word="SAME"))
    again = cli.run("runs", "verify", planned, pair=False)
    assert again.returncode == 6 and "looks[0].word" in again.stdout


def test_a_planned_extension_is_left_out_where_the_first_look_decides(cli: Cli) -> None:
    folder = begun(cli, "--new", "step_ns=2060000", "--processes", "4,8", code=1)
    assert [look["pairs"] for look in result(folder)["looks"]] == [4]
    assert {p["number"] for p in result(folder)["processes"]} == set(range(4))
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0


def test_a_word_is_final(cli: Cli) -> None:
    folder = begun(cli, "--new", "step_ns=2060000", "--processes", "4", code=1)
    assert "it ended with SLOWER" in resumed(cli, folder, "--processes", "4", code=2)
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0


def test_without_a_number_there_is_nothing_to_add(cli: Cli, undecided: Path) -> None:
    assert "--processes N says how many more" in resumed(cli, undecided, code=2)


def set_at(*path: str, to: object) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("sides", "new", "sha256", to="0" * 64), "new: sha256: was"),
        (set_at("sides", "old", "options", "step_ns", to="1"), 'old: options.step_ns: was "1", is "2000000"'),
        (set_at("begun_with", "host", to="another"), 'begun_with.host: was "another"'),
        (set_at("begun_with", "driver", to="1.0"), 'begun_with.driver: was "1.0"'),
        (set_at("begun_with", "source_tree_sha256", to="0"), 'begun_with.source_tree_sha256: was "0"'),
        (set_at("scenarios", "tiny", "workload", "seed", to=77), "scenarios.tiny.workload.seed: was 77"),
    ],
)
def test_samples_of_two_builds_or_machines_are_not_mixed(
    cli: Cli, undecided: Path, change: Callable[[Any], None], message: str
) -> None:
    edited(undecided, "asked.json", change)
    files = {file: file.read_bytes() for file in undecided.rglob("*") if file.is_file() and file.name != ".lock"}
    assert message in resumed(cli, undecided, "--processes", "4", code=2)
    assert {file: file.read_bytes() for file in files} == files


def test_other_weights_are_refused_as_soon_as_a_process_says_so(cli: Cli, undecided: Path) -> None:
    # What an engine says about itself is held to what the journal has of its side's earlier processes.
    for side in ("old", "new"):
        engines = undecided / side / "samples" / "engines.jsonl"
        engines.write_text(engines.read_text().replace('"target_sha256":"', '"target_sha256":"0'))
    (undecided / MANIFEST).write_text(manifest_of(undecided))
    assert ": target_sha256: an earlier process had 0" in resumed(cli, undecided, "--processes", "4", code=2)


def test_a_folder_that_was_changed_does_not_go_on(cli: Cli, undecided: Path) -> None:
    blocks = undecided / "new" / "samples" / "blocks.jsonl"
    blocks.write_text(blocks.read_text().replace('"elapsed_ns":', '"elapsed_ns":1', 1))
    assert "only a comparison as it was stored" in resumed(cli, undecided, "--processes", "4", code=6)


def test_nor_does_one_that_was_asked_for_no_look(cli: Cli, undecided: Path) -> None:
    edited(undecided, "asked.json", set_at("looks", to=[]))
    assert "looks: must not be empty" in resumed(cli, undecided, "--processes", "4", code=6)


def test_nor_does_one_whose_manifest_is_gone_while_the_ledger_knows_that_it_ended(stored: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    undecided = shutil.copytree(stored, runs / stored.name)
    for file in stored.parent.glob("ledger.*"):
        shutil.copy(file, runs)
    blocks = undecided / "new" / "samples" / "blocks.jsonl"
    blocks.write_text(blocks.read_text().replace('"elapsed_ns":', '"elapsed_ns":1', 1))
    (undecided / MANIFEST).unlink()
    with pytest.raises(InvalidResult, match="the ledger knows that the run ended"):
        earlier(AbFolder.open(undecided, read_only=True), 4, lambda _: pytest.fail("is not asked"))
    edited(undecided, "processes.json", lambda data: None)  # with a manifest of its own
    with pytest.raises(InvalidResult, match="the ledger says"):
        earlier(AbFolder.open(undecided, read_only=True), 4, lambda _: pytest.fail("is not asked"))


def test_code_that_changed_while_it_was_measured_is_not_what_was_compared(stored: Path) -> None:
    request = AbFolder.open(stored, read_only=True).asked()
    assert not changed_since(request, request.begun_with)
    assert changed_since(request, {**request.begun_with, "source_tree_sha256": "0" * 64})
    new = replace(request.sides["new"], source=str(stored), sha256="0" * 64)
    assert changed_since(replace(request, sides={**request.sides, "new": new}), request.begun_with)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--margin-pct", "9"), "--resume together with --margin-pct"),
        (("--processes", "4,8"), "give one number"),
        (("--processes", "0"), "ascending numbers"),
        (("--processes", "four"), "ascending numbers"),
    ],
)
def test_only_the_number_of_processes_can_be_said_again(
    cli: Cli, undecided: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in resumed(cli, undecided, *arguments, code=2)


def test_a_folder_that_is_no_comparison_is_named(cli: Cli) -> None:
    assert "is not a comparison" in resumed(cli, cli.folder, code=2)


def test_what_is_left_of_a_crash_ends_as_if_there_had_been_none(cli: Cli, undecided: Path) -> None:
    whole = deciding(undecided)
    for name in ("ab.json", "ab.html", "ab.md", "junit.xml", MANIFEST):
        (undecided / name).unlink()
    processes = json.loads((undecided / "processes.json").read_text())
    finished = [p for p in processes["found"] if p["number"] < 2]
    (undecided / "processes.json").write_text(json.dumps({**processes, "found": finished, "ended": ""}))
    blocks = undecided / "new" / "samples" / "blocks.jsonl"
    lines = blocks.read_text().splitlines(keepends=True)
    blocks.write_text("".join(lines[:19]) + lines[19][:40])  # in the third of four pairs, which have eight blocks each
    output = resumed(cli, undecided, code=3)
    assert "continued at" in output and "after 2 process pairs" in output
    assert deciding(undecided) == whole
    assert len(blocks.read_text().splitlines()) == len(lines)
    assert cli.run("runs", "verify", undecided, pair=False).returncode == 0


@pytest.mark.slow("engine processes, and a harness that is ended")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_comparison_that_is_ended_from_outside_goes_on(cli: Cli, stored: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-m", UNDRAWN, "ab", *FIXED, *BY_PROMPT, "--processes", "4", "--plain"]
    command += ["--target", str(cli.target), "--draft", str(cli.draft)]
    with (
        in_process.interruptible(),
        subprocess.Popen(
            command, cwd=cli.folder, env=cli.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[20/"):
                process.send_signal(how)
        assert process.wait(60) in (130, -how)
    folder = newest(cli)
    assert "after 1 process pairs" in resumed(cli, folder, code=3)
    assert deciding(folder) == deciding(stored)
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0


@pytest.mark.slow("engine processes with code of their own")
def test_the_revision_is_built_again_from_its_commit_and_a_checkout_that_moved_on_is_refused(
    tmp_path: Path, cli: Cli
) -> None:
    for name in ("tiny.yaml", "policy.yaml", "gate.yaml"):
        shutil.copy(cli.folder / name, tmp_path)
    checkout = write_build(tmp_path / "checkout", 2_000_000)
    git(checkout, "init", "-q")
    for options in ("", ', "prompt_jitter": "0.02"'):
        engine = checkout / "src" / "toy_engine" / "__init__.py"
        engine.write_text(engine.read_text().replace('"200000"', f'"200000"{options}'))
        git(checkout, "add", "-A")
        git(checkout, "commit", "-q", "--allow-empty", "-m", f"options{options}")
    inside = Cli(checkout, cli.target, cli.draft)
    for name in ("tiny.yaml", "policy.yaml", "gate.yaml"):
        (checkout / name).unlink()  # untracked files of `Cli`
    git(checkout, "branch", "base", "HEAD~1")
    files = ("--scenario", "../tiny.yaml", "--policy", "../policy.yaml", "--out", "../runs", "--backend", "toy")
    inside.run_apart("ab", "--base", "base", *files, "--processes", "3", code=3)
    (folder,) = (tmp_path / "runs").glob("*-ab-*")
    git(checkout, "branch", "-f", "base", "HEAD")  # the name now means the new build
    before = git_worktrees(checkout)
    done = inside.run_apart("ab", "--resume", folder, "--processes", "1", pair=False)
    assert done.returncode in (1, 3) and "from 3 to 4 process pairs" in done.stdout, done.stdout + done.stderr
    assert [result(folder)["sides"][name]["revision"] for name in ("old", "new")] == commits(checkout)
    assert git_worktrees(checkout) == before
    write_build(checkout, 2_060_000)
    done = inside.run_apart("ab", "--resume", folder, "--processes", "4", pair=False)
    assert done.returncode == 2 and ("new: sha256: was" in done.stderr or "it ended with" in done.stderr), done.stderr
