"""Measure the parts of one machine, as far as time and programs allow, and list what is missing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from bench.record import Part, Run, declared, filled
from specgate.errors import ExitCode
from specgate.machine import inventory

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_S: Final = 9 * 60
"""Seconds of a part that is not declared to take longer. What makes its folders counts."""
CUT: Final = 124
"""Exit code of a part that time ended, as of `timeout`."""
ENDED: Final = "ended.json"
FOLDERS: Final = frozenset({"out", "runs", "work"})
"""Placeholders that the other options give."""


@dataclass(frozen=True, slots=True)
class Session:
    """Where one call measures. `given`: what `--with` named."""

    out: Path
    work: Path
    given: Mapping[str, str]

    def values(self, name: str) -> dict[str, object]:
        """Placeholders of the run `name`."""
        folders = {"out": self.out / name, "runs": self.out / "runs", "work": self.work}
        return {**{each: self.work / each for each in declared().made}, **self.given, **folders}

    def missing(self, part: Part) -> list[str]:
        """Placeholders that nobody gave."""
        return sorted(part.needs - self.values(part.name).keys())

    def ended(self, name: str) -> int | None:
        """The exit code of a run that ended; None before."""
        file = self.out / name / ENDED
        return int(json.loads(file.read_text())["code"]) if file.is_file() else None


class NoPlace(click.ClickException):
    """A machine that has too few GPUs, or a folder that cannot be written."""

    exit_code = ExitCode.ENV_REJECTED


@click.command(epilog="\n".join(["\b", *(f"{name}: {machine.words}" for name, machine in declared().machines.items())]))
@click.argument("machine", type=click.Choice(list(declared().machines)), metavar="MACHINE")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Results; what is there is not run again.")
@click.option(
    "--work", type=click.Path(path_type=Path), default="/dev/shm/record", show_default=True, help="Large files."
)
@click.option("--with", "given", multiple=True, metavar="NAME=VALUE", help="A program or folder that a command names.")
@click.option("--only", multiple=True, metavar="PART", help="No other part or run; may be given again, in that order.")
@click.option("--minutes", type=float, default=1e6, help="Begin no part that takes longer than what is left of them.")
@click.option("--list", "listed", is_flag=True, help="Run nothing.")
def main(
    machine: str, out: Path, work: Path, given: tuple[str, ...], only: tuple[str, ...], minutes: float, listed: bool
) -> None:
    """Measure the parts of MACHINE that have no result in OUT. 0: none is missing; 3: some are, and are listed."""
    if wrong := [each for each in given if "=" not in each]:
        raise click.UsageError(f"--with {wrong[0]}: NAME=VALUE is meant")
    ours = [part for part in declared().parts if part.machine == machine]
    needs = {need for part in ours for need in part.needs} - FOLDERS
    runs = [(part, run) for part in ours for run in part.runs]
    refuse_unknown("--with", (each.partition("=")[0] for each in given), needs)
    refuse_unknown("--only", only, dict.fromkeys(name for part, run in runs for name in (part.name, run.name)))
    if not listed and len(inventory.gpus()) < declared().machines[machine].gpus:
        raise NoPlace(f"{machine}: {declared().machines[machine].words}; here are {len(inventory.gpus())} GPUs")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that a part ends with its runner
    session = Session(out.resolve(), work.resolve(), dict(each.split("=", 1) for each in given))
    deadline = time.monotonic() + 60 * minutes
    missing = 0
    for part, run in in_order(session, runs, only):
        why = reason(session, part, run.name, listed, deadline)
        if why is None and session.ended(run.name) not in part.ends:
            with refusing():
                most = max(MOST_S, 60 * part.minutes)
                why = measured(session, part, run, min(most, deadline - time.monotonic()))
        missing += why is not None
        click.echo(f"{run.name:20} {'done' if why is None else f'missing: {why}'}    {part.claim}")
    sys.exit(3 if missing else 0)


def in_order(session: Session, runs: Iterable[tuple[Part, Run]], only: Sequence[str]) -> list[tuple[Part, Run]]:
    """Return the runs that are meant, in the order that they are named in, else declared in. Repeats come after the
    first runs of all parts, and what failed comes last.
    """

    def place(named: tuple[Part, Run]) -> tuple[bool, int]:
        part, run = named
        order = min(only.index(name) for name in (part.name, run.name) if name in only) if only else run.repeat
        return session.ended(run.name) is not None, order

    return sorted(((part, run) for part, run in runs if not only or {part.name, run.name} & set(only)), key=place)


def refuse_unknown(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError for a name that no part of the machine has. Nothing would be missing then."""
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"{option} {name}: no part of this machine has it; known: {', '.join(sorted(known))}"
            )


@contextmanager
def refusing() -> Iterator[None]:
    """Turn errors of files into one line. The command then ends with 4."""
    try:
        yield
    except OSError as error:
        raise NoPlace(f"{error.filename}: {error.strerror}; choose another --out or --work") from error


def reason(session: Session, part: Part, name: str, listed: bool, deadline: float) -> str | None:
    """Why a run is not begun now; None if it is, or is done."""
    if (code := session.ended(name)) in part.ends:
        return None
    if lacking := session.missing(part):
        return "needs " + " ".join(f"--with {each}=…" for each in lacking)
    if listed:
        return f"{part.minutes:g} min" + (f", ended with {code}" if code is not None else "")
    if math.ceil(deadline - time.monotonic()) < 60 * part.minutes:  # of nine minutes, all are left at first
        return f"takes {part.minutes:g} min, less are left"
    return None


def measured(session: Session, part: Part, one: Run, seconds: float) -> str | None:
    """Run a part, keep its output and its run folders. Return what went wrong, if anything did."""
    name, values = one.name, session.values(one.name)
    folder, runs = session.out / name, session.out / "runs"
    for each in (folder, runs, session.work):
        each.mkdir(parents=True, exist_ok=True)
    before, began = set(runs.iterdir()), time.monotonic()
    command = filled(one.command, values)
    script = "\n".join([*makes(part, values), command])
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        output.write(f"{heading(name)}\n$ {command}\n")
        output.flush()
        code = run(script, programs(session.out / "bin"), output.fileno(), seconds)
    made = sorted(run for run in set(runs.iterdir()) - before if (run / "run.json").is_file())
    for number, each in enumerate(made):
        pack(each, session.out / f"run-{name}{f'.{number}' if number else ''}.tar.xz")
    ended = {"code": code, "seconds": round(time.monotonic() - began), "runs": [run.name for run in made]}
    (folder / ENDED).write_text(json.dumps(ended) + "\n", encoding="utf-8")
    return None if code in part.ends else f"ended with {code}, see {folder / 'output.txt'}"


def heading(name: str) -> str:
    """First line of an output: what was measured with, by which the age of stored evidence is judged."""
    gpus = ", ".join(str(gpu.get("name")) for gpu in inventory.gpus()) or "no GPU"
    return f"record: {name}, {datetime.now(UTC):%Y-%m-%d}, {gpus}, engine {inventory.backend_trees()['eagle3']}"


def makes(part: Part, values: Mapping[str, object]) -> Iterator[str]:
    """Yield commands that make the folders of `made` that a part needs, unless they are whole already."""
    for each, command in declared().made.items():
        if each in part.needs:
            yield f"[ -e {values[each]}.made ] || {{ {filled(command, values)} && touch {values[each]}.made; }}"


def programs(folder: Path) -> Path:
    """Make a folder of programs: `python` is this interpreter, `specgate` the command of this checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in (("python", ""), ("specgate", " -m specgate")):
        made = folder / f"{name}.{os.getpid()}"
        made.write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n', encoding="utf-8")
        made.chmod(0o755)
        made.replace(folder / name)  # another part may be running the one that is there
    return folder


def run(script: str, programs: Path, output: int, seconds: float) -> int:
    """Run a shell script in the checkout. Whatever is left of it when it ends, or time does, is killed."""
    packages = os.environ.get("PYTHONPATH")  # a machine may have them there alone
    path = os.pathsep.join([str(ROOT), *([packages] if packages else [])])
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": path}
    process = None
    try:
        with holding_back(signal.SIGTERM), holding_back(signal.SIGINT):
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return CUT
    finally:
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def holding_back(number: int) -> Iterator[None]:
    """Hold a signal back until the block ends. A part that was just being started would outlive its runner."""
    came: list[int] = []
    before = signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(number, before)
        if came:
            signal.raise_signal(number)


def pack(run: Path, archive: Path) -> None:
    """Pack a run folder as docs/results keeps it."""
    with tarfile.open(archive, "w:xz") as packed:
        packed.add(run, run.name)


if __name__ == "__main__":
    main()
