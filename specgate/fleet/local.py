"""This host's GPUs, or shares of its CPUs, as places to measure in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specgate.errors import UsageError
from specgate.files.json_record import stored_json
from specgate.files.manifest import FOLDERS
from specgate.fleet.machines import CUDA, Files, NodeLost, Slot
from specgate.fleet.tasks import DONE
from specgate.machine import host, inventory

NODE: Final = "specgate.fleet.measuring"
LOG: Final = "logs/node.log"
ENDING_S: Final = 20.0
"""Seconds that a task has to end after it was asked to: it may have a server to stop."""


class LocalMachines:
    """A slot for each GPU that CUDA programs are allowed to see, or `count` of them. On a host without a GPU, `count`
    slots (1) that share its CPUs, and disturb each other there.
    """

    def __init__(self, count: int | None = None) -> None:
        uuids = visible_uuids()
        if not uuids and inventory.has_cuda_gpu():
            raise UsageError(
                f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}: no GPU that a slot can be",
                hint="name whole GPUs, by index or by UUID (GPU-…)",
            )
        if uuids and count is not None and count > len(uuids):
            raise UsageError(
                f"--slots {count}: this host shows {len(uuids)} GPUs", hint="a GPU measures one point at a time"
            )
        gpus = uuids[:count] if count is not None else uuids
        self._gpu: dict[Slot, str] = {Slot(f"GPU {n}", uuid): uuid for n, uuid in enumerate(gpus)}
        me = host.identity()
        self.slots = tuple(self._gpu) or tuple(Slot(f"slot {n}", f"{me} {n}") for n in range(count or 1))
        self._running: dict[Slot, subprocess.Popen[bytes]] = {}
        self._lock, self._stopped = threading.Lock(), False

    def carry_out(self, slot: Slot, files: Files) -> Files:
        variables = {CUDA: self._gpu[slot]} if slot in self._gpu else {}
        with tempfile.TemporaryDirectory(prefix="specgate-task-") as name:
            folder = Path(name)
            put(folder, files)
            for sub in FOLDERS:
                (folder / sub).mkdir()
            with self._lock:
                if self._stopped:
                    raise NodeLost("the fleet is ending")
                process = self._running[slot] = started(folder, variables)
            try:
                process.wait()
            finally:
                end(process)  # whatever it has left of its own
                if process.stdin is not None:
                    process.stdin.close()
                with self._lock:
                    del self._running[slot]
            return left_by(folder, process.returncode)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running.values())
        for process in running:
            signalled(process, signal.SIGINT)
        deadline = time.monotonic() + ENDING_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                signalled(process, signal.SIGKILL)


def visible_uuids() -> list[str]:
    """The UUIDs of the GPUs that CUDA programs are allowed to see, in their order."""
    return [str(gpu["uuid"]) for gpu in inventory.visible_gpus() if gpu.get("uuid")]


def put(folder: Path, files: Files) -> None:
    """Write `files` below `folder`."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def started(folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The process of a node on the task in `folder`. It imports what this process imports, and has the variables that
    can change a figure from the run. It leads a group of its own, so that a Ctrl-C at the terminal is the coordinator's
    alone, and ends with its standard input, however this process ends.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    inherited = {name: value for name, value in os.environ.items() if name == CUDA or name not in inventory.VARIABLES}
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", NODE, str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**inherited, **variables_of(folder), "PYTHONPATH": path, **variables},
            start_new_session=True,
        )


def variables_of(folder: Path) -> dict[str, str]:
    """The variables that can change a figure, as they were where the run began (env.json), but for its GPU."""
    began: Any = stored_json(folder / "env.json")
    return {name: str(value) for name, value in (began.get("variables") or {}).items() if name != CUDA}


def left_by(folder: Path, code: int) -> Files:
    """The files that a node left. Raises NodeLost where it did not end its task, with the end of what it said."""
    if not (folder / DONE).is_file():
        log = (folder / LOG).read_text(errors="replace").strip().splitlines()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise NodeLost(f"its process {how}" + (f": {log[-1][:200]}" if log else ""))
    names = [DONE, *(f"{sub}/{file.name}" for sub in sorted(FOLDERS) for file in sorted((folder / sub).iterdir()))]
    return {name: (folder / name).read_bytes() for name in names}


def end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process's group."""
    signalled(process, signal.SIGKILL)


def signalled(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
