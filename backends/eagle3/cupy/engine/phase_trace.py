"""Phases of every step as a Chrome trace, from the GPU's own time stamps: NVTX ranges end with a graph's capture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.state.slots import Stamp
from specgate.errors import EnvironmentRefused, UsageError

RANGES: Final = {
    "EAGLE_DRAFT": (Stamp.STEP_BEGAN, Stamp.DRAFTED),
    "TARGET_VERIFY": (Stamp.DRAFTED, Stamp.VERIFIED),
    "EAGLE_ACCEPT": (Stamp.VERIFIED, Stamp.ACCEPTED),
    "EAGLE_TAIL_COMMIT": (Stamp.ACCEPTED, Stamp.COMMITTED),
}
"""Range → the stamps that it lies between. That of the step, which has its graph's name, holds them all."""


class PhaseTrace:
    """A file that grows by the steps of every decode run, in the array form of Chrome's Trace Event Format, which needs
    no end. Perfetto and `specgate diagnose trace` open it.
    """

    def __init__(self, file: Path, device: str) -> None:
        """Raises UsageError where `file` holds something else, EnvironmentRefused where it cannot be read."""
        self.file, self.device, self.base = file, device, 0
        if file.exists():
            try:
                with file.open(encoding="utf-8") as opened:
                    self.base = int(json.loads(opened.readline().lstrip("[").rstrip(",\n"))["args"]["base_ns"])
            except OSError as error:
                raise EnvironmentRefused(f"option phase_trace = {file}: {error.strerror}") from error
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"option phase_trace = {file}: holds no such trace", hint="name a new file") from error

    def add(self, name: str, stamps: Tensor) -> None:
        """Append the steps `name` of a decode run. `stamps`: int64 [steps, 5], nanoseconds on the GPU's clock, see
        `Stamp`. Raises EnvironmentRefused where the file cannot be written.
        """
        rows = stamps.tolist()
        if not rows:
            return
        try:
            with self.file.open("a", encoding="utf-8") as opened:
                if opened.tell() == 0:
                    self.base = rows[0][Stamp.STEP_BEGAN]
                    args = {"name": self.device, "base_ns": self.base}
                    opened.write("[" + line({"name": "process_name", "ph": "M", "pid": 0, "args": args}))
                for number, row in enumerate(rows):
                    opened.writelines(map(line, self.events(name, number, row)))
        except OSError as error:
            raise EnvironmentRefused(f"option phase_trace = {self.file}: {error.strerror}") from error

    def events(self, name: str, number: int, row: list[int]) -> Iterator[dict[str, Any]]:
        """The step's range, then those in it. Times are microseconds behind the first step of the file."""
        for of, (since, to) in {name: (Stamp.STEP_BEGAN, Stamp.COMMITTED), **RANGES}.items():
            times = {"ts": (row[since] - self.base) / 1e3, "dur": (row[to] - row[since]) / 1e3}
            yield {"name": of, "cat": "phase", "ph": "X", **times, "pid": 0, "tid": 0, "args": {"step": number}}


def line(event: dict[str, Any]) -> str:
    return json.dumps(event) + ",\n"
