"""`--isolate`: the sandbox of a command, in which every engine's process of it runs."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.errors import EnvironmentRefused
from specgate.sandbox import probe
from specgate.sandbox.box import Box
from specgate.sandbox.bubblewrap import installed
from specgate.sandbox.view import View

PACKAGE: Final = Path(__file__).parent.parent
"""The folder of specgate's own source."""
FACT: Final = "sandbox"
"""The key of a run's fingerprint that names its sandbox."""
TRIAL_S: Final = 20.0
PRINTED: Final = 65536
"""Bytes of its errors that are read of a sandbox that does not start: all that a pipe holds."""
MOST_PROCESSES: Final = 4
"""Processes that a process alone in its sandbox may see: itself, and what the sandbox needs."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The sandbox of a command.

    `sandbox`: its name and version.
    `hidden`: folders that no engine may see.
    `sources`: specgate's Python sources before the first engine, path below the folder of the package → SHA-256.
    """

    sandbox: str
    hidden: Sequence[Path]
    sources: Mapping[str, str]

    def box(self, shown: Sequence[Path], writable: Sequence[Path], *, network: bool) -> Box:
        """Return a sandbox for one process, which sees the code that this process imports besides."""
        return Box(View(self.hidden, (*code_folders(), *shown), writable, network))


_current: ContextVar[Isolation | None] = ContextVar("isolation", default=None)


def current() -> Isolation | None:
    """The sandbox that engines run in now; None without `--isolate`."""
    return _current.get()


def facts() -> dict[str, str]:
    """Return what a fingerprint says of the sandbox: nothing without one."""
    isolation = current()
    return {FACT: isolation.sandbox} if isolation else {}


@contextmanager
def isolated(wanted: bool, *hidden: Path) -> Iterator[None]:
    """Within the body, engines run in a sandbox that hides the folders `hidden`, if that is `wanted`.

    Raises EnvironmentRefused where no sandbox is installed, or where it does not hold.
    """
    if not wanted:
        yield
        return
    for folder in hidden:
        if within := next((path for path in code_folders() if path.resolve() == folder.resolve()), None):
            hint = "choose another --out: the folder of runs is hidden from engines"
            raise EnvironmentRefused(f"--isolate: engines import code from {within}, where the runs are", hint=hint)
    token = _current.set(Isolation(chosen(), tuple(path.absolute() for path in hidden), own_sources()))
    try:
        yield
    finally:
        _current.reset(token)


def chosen() -> str:
    """Return the sandbox of this machine, by name and version. Raises EnvironmentRefused unless one holds."""
    hint = "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap), or leave --isolate out"
    sandbox = installed()
    if sandbox is None:
        raise EnvironmentRefused("--isolate: bubblewrap is not installed", hint=hint)
    if reason := leak():
        raise EnvironmentRefused(f"--isolate: {sandbox} does not hold here: it {reason}", hint=hint)
    return sandbox


def leak() -> str | None:
    """Return why a sandbox does not hold here, as a process in it sees it; None if it holds."""
    with tempfile.TemporaryDirectory(prefix="specgate-trial-") as folder:
        hidden = Path(folder, "runs")
        hidden.mkdir()
        (hidden / "ledger").touch()
        box = Box(View((hidden,), (*code_folders(), Path(folder)), (), network=False))
        environment = {"PATH": os.defpath, "HOME": str(box.home)}
        program = [sys.executable, "-I", probe.__file__, str(hidden), __file__]
        process = subprocess.Popen(
            box.command(program, Path("/")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert process.stdout is not None and process.stderr is not None
        try:
            line = first_line(process.stdout.fileno())
        finally:
            box.end(process)
        # The child that the program has left holds the pipe open as long as it lives.
        survives = bool(line) and first_line(process.stdout.fileno(), 2.0) is None
        printed = "" if survives else os.read(process.stderr.fileno(), PRINTED).decode(errors="replace").strip()
        process.stdout.close()
        process.stderr.close()
    return leak_in(json.loads(line) if line else None, printed, survives=survives)


def leak_in(seen: Mapping[str, object] | None, printed: str, *, survives: bool) -> str | None:
    """Reason in what the program `probe` has seen, and in whether its child survived the sandbox's end."""
    if seen is None:
        return f"does not start: {printed.splitlines()[-1] if printed else 'it printed nothing'}"
    if int(str(seen["processes"])) > MOST_PROCESSES:
        return f"shows {seen['processes']} processes"
    if seen["hidden"]:
        return "shows a hidden folder"
    if isinstance(written := seen["written"], list) and written:
        return f"lets {', '.join(written)} be written"
    return "leaves processes behind when it is ended" if survives else None


def first_line(descriptor: int, limit_s: float = TRIAL_S) -> str | None:
    """Return the first line that comes within `limit_s` seconds, "" at the end of the file, or None."""
    until, line = time.monotonic() + limit_s, b""
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        piece = os.read(descriptor, 4096)
        if not piece:
            return ""
        line += piece
    return line.decode(errors="replace")


def own_sources() -> dict[str, str]:
    """Return path below the folder that holds the package → SHA-256 of every Python source of specgate."""
    sources, above = {}, str(PACKAGE.parent)
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    sources[os.path.relpath(path, above)] = hashlib.file_digest(file, "sha256").hexdigest()
    return sources


def code_folders() -> list[Path]:
    """Return the folders that this process imports code from, and those of its interpreter."""
    interpreter = Path(sys.executable).resolve().parent.parent
    paths = (*map(Path, (*sys.path, sys.prefix, sys.base_prefix)), PACKAGE.parent, interpreter)
    return list(dict.fromkeys(path.absolute() for path in paths if path.exists()))
