"""A run whose ending is cut, by a signal or a full disk, before any of its writes: nothing is lost, nothing hidden."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from specgate.ab import recording
from specgate.ab.folder import AbFolder
from specgate.ab.judging import result_of
from specgate.archive.recomputation import recompute
from specgate.archive.verification import unended
from specgate.contract import State
from specgate.errors import EnvironmentRefused
from specgate.files.manifest import ENDING, LOCK, MANIFEST, plain_files
from specgate.files.run_folder import RunFolder
from specgate.machine import inventory
from specgate.promotion import ending
from specgate.promotion.fingerprint import FLEET
from specgate.promotion.ledger import Ledger
from specgate.run.ending import decide, finish_cut, store
from tests.run.ends.cut import How, cut
from tests.support import stored_runs
from tests.support.command import Cli
from tests.support.factories import scenario


@dataclass
class Prepared:
    """A run or a comparison before its end. `end`: ends it. `finish`: finishes an ending that was cut."""

    path: Path
    end: Callable[[Path], int]
    finish: Callable[[Path], object]


def of_run(tmp_path: Path, *, fleet: bool) -> Prepared:
    path = stored_runs.store(tmp_path / "before" / "a-run", scenarios=(scenario(spec=(2,)),))
    run, plan, config = recompute(RunFolder.open(path, read_only=True))
    made_here = {"source_tree_sha256": inventory.source_tree_sha256(), **({FLEET: "2: here, there"} if fleet else {})}
    run = replace(run, fingerprint={**run.fingerprint, **made_here})
    for name in (*run.reports, MANIFEST, "gates.json"):
        (path / name).unlink()

    def end(path: Path) -> int:
        folder = RunFolder.open(path)
        try:
            stored, decided = decide(run, plan, config, folder)
            store(folder, decided, stored, config, Ledger(path.parent))
        except EnvironmentRefused:
            return 4
        return 0

    return Prepared(path, end, lambda path: finish_cut(path, Ledger(path.parent)))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    """A comparison of a build with itself."""
    cli = Cli(tmp_path_factory.mktemp("compared"), *pair)
    question = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake")
    cli.run("ab", "--same", "--processes", "3", *question, code=0)
    return next((cli.folder / "runs").glob("*-ab-*"))


def of_comparison(compared: Path, tmp_path: Path) -> Prepared:
    path = shutil.copytree(compared, tmp_path / "before" / compared.name)
    for name in ("ab.json", "ab.html", "ab.md", "junit.xml", MANIFEST):
        (path / name).unlink()

    def end(path: Path) -> int:
        folder = AbFolder.open(path, read_only=False)
        settings = folder.asked()
        try:
            result = result_of(folder, settings, folder.journals(), folder.processes())
            recording.store(folder, recording.decide(folder, settings, result))
        except EnvironmentRefused:
            return 4
        return 0

    def finish(path: Path) -> object:
        decided = ending.cut(path)
        return decided and recording.store(AbFolder.open(path, read_only=False), decided)

    return Prepared(path, end, finish)


def files_of(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in plain_files(path) - {LOCK}}


@pytest.mark.parametrize(
    ("subject", "how", "step"), [("run", "killed", 1), ("fleet", "disk full", 2), ("comparison", "killed", 2)]
)
def test_an_ending_that_is_cut_before_any_of_its_writes_is_finished_as_if_nothing_had_cut_it(
    subject: str, how: How, step: int, compared: Path, tmp_path: Path
) -> None:
    made = of_comparison(compared, tmp_path) if subject == "comparison" else of_run(tmp_path, fleet=subject == "fleet")
    before, uncut = files_of(made.path), shutil.copytree(made.path, tmp_path / "uncut" / made.path.name)
    assert made.end(uncut) == 0
    whole, (entry,) = files_of(uncut), Ledger(uncut.parent).read().entries
    for number in count(step=step):
        path = shutil.copytree(made.path, tmp_path / str(number) / made.path.name)
        status, ledger = cut(partial(made.end, path), path.parent, number, how), Ledger(path.parent)
        if status == 0:
            break
        assert status == (-9 if how == "killed" else 4)
        if (path / ENDING).is_file():
            assert f"its ending was cut: verdict {entry.state} (exit {entry.exit_code})" in str(unended(path))
            assert len(ledger.read().entries) == 1, "a verdict that was reached is not hidden"
            assert made.finish(path)
        else:
            assert {name: content for name, content in files_of(path).items() if not name.endswith(".tmp")} == before
            assert not ledger.read().entries
            assert made.end(path) == 0
        assert files_of(path) == whole and made.finish(path) is None
        (again,) = ledger.read().entries
        this = replace(entry, time=again.time, pid=again.pid, process_started=again.process_started)
        assert this == again and not ledger.read().cut
    assert number > 20, "fewer writes than an ending has"


@pytest.fixture(scope="module")
def cut_runs(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> dict[str, Path]:
    """The file before which it was killed → the folder of a red run, with its ledger."""
    cli = Cli(tmp_path_factory.mktemp("cut"), *pair)
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text().replace("1.0", "9.0"))
    runs: dict[str, Path] = {}
    assert cut(lambda: cli.micro("--backend", "fake").returncode, cli.folder, ENDING) == -9
    for file in ("report.html", ENDING):
        folder = cli.folder if file == ENDING else shutil.copytree(cli.folder, cli.folder.with_name("later"))
        (runs[file],) = (folder / "runs").glob("*-micro-*")
        if file != ENDING:
            there = Cli(folder, *pair)
            assert cut(partial(code_of_resuming, there, runs[file]), folder, file) == -9
    return runs


def test_a_run_that_a_full_disk_stopped_says_so_wherever_it_says_how_it_ended(cli: Cli) -> None:
    assert cut(lambda: cli.micro("--backend", "fake").returncode, cli.folder, "blocks.jsonl", "file full") == 4
    run = cli.newest()
    assert cli.run("runs", "verify", run, pair=False).returncode == 0
    shown = cli.run("runs", "show", run, pair=False).stdout
    assert "ENV_REJECTED: the run was cut short: " in shown and "verdict not reached (exit 4)" in shown
    (entry,) = Ledger(run.parent).read().entries
    assert (entry.state, entry.exit_code) == (State.ENV_REJECTED, 4)
    assert 'type="ENV_REJECTED"' in (run / "junit.xml").read_text()
    assert resume(cli, run).returncode == 0


def code_of_resuming(cli: Cli, run: Path) -> int:
    return resume(cli, run).returncode


def resume(cli: Cli, run: Path) -> subprocess.CompletedProcess[str]:
    return cli.run("micro", "--resume", run, pair=False)


@pytest.mark.parametrize("file", ["report.html", ENDING])
def test_verify_names_the_command_that_ends_a_run_and_it_ends_with_its_verdict(
    cli: Cli, cut_runs: dict[str, Path], file: str
) -> None:
    run = shutil.copytree(cut_runs[file].parent, cli.folder / "runs") / cut_runs[file].name
    shown = cli.run("runs", "verify", run, pair=False)
    assert shown.returncode == 3 and f"specgate micro --resume {run}" in shown.stdout, shown.stdout
    assert ("verdict FAIL (exit 1)" in shown.stdout) == (file != ENDING)
    readers: list[tuple[str, ...]] = [("check", "--policy", "policy.yaml")]
    if file != ENDING:  # else figures are shown of the blocks that there are
        readers += [("show",), ("explain",), ("report", "--csv"), ("compare",)]
    for name, *options in readers:
        read = cli.run("runs", name, run, *options, pair=False)
        assert (read.returncode, str(run) in read.stderr) == (3, True), (name, read.stdout, read.stderr)
    blocks = (run / "samples" / "blocks.jsonl").read_bytes()
    done = resume(cli, run)
    assert done.returncode == 1 and "verdict FAIL (exit 1)" in done.stdout, done.stdout + done.stderr
    assert (run / "samples" / "blocks.jsonl").read_bytes() == blocks
    assert cli.run("runs", "verify", run, pair=False).returncode == 0
    assert [e.state for e in Ledger(run.parent).read().entries] == [State.FAIL]
    assert resume(cli, run).returncode == 2, "its verdict stands"


def test_a_verdict_is_not_stored_over_samples_that_were_changed_since(cli: Cli, cut_runs: dict[str, Path]) -> None:
    run = shutil.copytree(cut_runs["report.html"].parent, cli.folder / "runs") / cut_runs["report.html"].name
    with (run / "samples" / "blocks.jsonl").open("a") as file:
        file.write("\n")
    done = resume(cli, run)
    assert done.returncode == 6 and "changed after the verdict had been reached" in done.stderr, done.stderr
