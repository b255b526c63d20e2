"""Refusals of --resume: a finished run, and one that is not as it was left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specgate.files.manifest import FORMER, MANIFEST
from specgate.files.run_folder import RunFolder
from specgate.promotion.ledger import Ledger
from tests.conftest import Killed
from tests.support.command import Cli
from tests.support.stored_runs import as_if_killed, change_block, change_json


def resume(cli: Cli) -> tuple[int, str]:
    done = cli.run("micro", "--resume", cli.newest(), pair=False)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    """The folder of runs of a micro run on the fake engine that ended with FAIL."""
    cli = Cli(tmp_path_factory.mktemp("finished"), *pair)
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text().replace("1.0", "9.0"))
    cli.micro("--backend", "fake", code=1)
    return cli.folder / "runs"


def edited_sample(run: Path) -> None:
    journal = run / "samples" / "blocks.jsonl"
    journal.write_text(journal.read_text().replace('"elapsed_ns":', '"elapsed_ns":1', 1))


@pytest.fixture
def finished(finished_run: Path, cli: Cli) -> Path:
    """A copy of it."""
    shutil.copytree(finished_run, cli.folder / "runs")
    return cli.newest()


@pytest.fixture
def failed(finished: Path) -> Path:
    """A copy of it, of which the samples were improved."""
    edited_sample(finished)
    return finished


@pytest.fixture
def unfinished(finished: Path) -> Path:
    """A copy of it, as if it had been killed after nine blocks."""
    as_if_killed(finished, blocks=9)
    return finished


def forget_the_verdict(run: Path) -> None:
    change_json(run / "run.json", lambda data: data.update(status="interrupted"))
    change_json(run / "gates.json", lambda data: data.update(exit_code=130, verdict="not reached"))


def test_a_finished_run_is_not_continued(cli: Cli, failed: Path) -> None:
    before = (failed / "run.json").read_bytes()
    code, text = resume(cli)
    assert code == 2 and "run.json says that the run is complete" in text and "verify" in text
    assert (failed / "run.json").read_bytes() == before
    assert len(Ledger(failed.parent).read().entries) == 1


def test_nor_is_one_whose_verdict_was_taken_out_of_the_run_folder(cli: Cli, failed: Path) -> None:
    forget_the_verdict(failed)
    RunFolder(failed).write_manifest()
    code, text = resume(cli)
    assert code == 2 and "the ledger says that it ended with FAIL (exit 1)" in text


def test_without_a_ledger_a_manifest_is_not_enough_to_go_on_silently(cli: Cli, killed: Killed) -> None:
    for file in cli.newest().parent.glob("ledger.*"):
        file.unlink()
    code, text = resume(cli)
    assert code == 0 and "warning: resumed without an entry in the ledger" in text, text


def test_gates_json_alone_tells_a_finished_run(cli: Cli, failed: Path) -> None:
    change_json(failed / "run.json", lambda data: data.update(status="interrupted"))
    for file in failed.parent.glob("ledger.*"):
        file.unlink()
    code, text = resume(cli)
    assert code == 2 and "gates.json says that it ended with exit 1" in text


def edited_with_its_manifest(run: Path) -> None:
    edited_sample(run)
    RunFolder(run).write_manifest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited_sample, "samples/blocks.jsonl: its SHA-256 is"),
        (lambda run: (run / "logs" / "worker-0.log").write_text("edited"), "logs/worker-0.log: its SHA-256 is"),
        (lambda run: (run / "samples" / "more.jsonl").touch(), "samples/more.jsonl: is not in MANIFEST.sha256"),
        (lambda run: (run / MANIFEST).unlink(), "MANIFEST.sha256: is missing, and the ledger knows"),
        (edited_with_its_manifest, "MANIFEST.sha256: its SHA-256 is"),
    ],
    ids=["sample", "log", "more", "no manifest", "manifest made anew"],
)
def test_a_run_that_ended_unfinished_must_be_as_it_was_left(
    cli: Cli, killed: Killed, change: Callable[[Path], object], message: str
) -> None:
    change(cli.newest())
    code, error = resume(cli)
    assert code == 6 and message in error, error


def test_a_run_that_was_killed_is_continued_and_says_what_that_leaves_open(cli: Cli, unfinished: Path) -> None:
    code, text = resume(cli)
    assert code == 1, text
    assert "warning: resumed after the run had been killed: nothing vouches for those of its 9 earlier blocks" in text
    record = json.loads((unfinished / "run.json").read_text())
    assert record["status"] == "complete"
    assert any("nothing vouches" in warning for warning in record["warnings"])
    assert "nothing vouches" in (unfinished / "report.html").read_text()


def again(run: Path) -> None:
    file = run / "samples" / "blocks.jsonl"
    file.write_text(file.read_text() + file.read_text().splitlines()[-1] + "\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: change_block(run, lambda b: b.update(round=99)), "round 99 is not planned"),
        (lambda run: change_block(run, lambda b: b["role"].update(k=7)), "is not planned"),
        (lambda run: change_block(run, lambda b: b["tokens"][0].pop()), "emitted"),
        (again, "is there twice"),
    ],
    ids=["round", "role", "tokens", "twice"],
)
def test_what_a_killed_run_left_must_agree_with_itself(
    cli: Cli, unfinished: Path, change: Callable[[Path], object], message: str
) -> None:
    change(unfinished)
    code, error = resume(cli)
    assert code == 6 and message in error, error


@pytest.mark.parametrize("edited", [False, True])
def test_a_run_that_was_killed_after_it_had_been_resumed_is_held_to_the_manifest_from_before(
    cli: Cli, killed: Killed, edited: bool
) -> None:
    run = cli.newest()
    kept = (run / "samples" / "blocks.jsonl").read_text()
    folder = RunFolder(run)
    folder.put_manifest_aside()
    assert (run / FORMER).is_file()
    change_json(run / "run.json", lambda data: data.update(status="running"))
    if edited:
        edited_sample(run)
    code, text = resume(cli)
    if edited:
        assert code == 6 and f"samples/blocks.jsonl: does not begin with what {FORMER} lists" in text
    else:
        assert code == 0, text
        assert (run / "samples" / "blocks.jsonl").read_text().startswith(kept)
        assert (run / MANIFEST).is_file() and not (run / FORMER).exists()
