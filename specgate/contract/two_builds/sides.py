"""The two sides of a comparison, and what was seen of each of their processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

SideName = Literal["old", "new"]
SIDES: Final[tuple[SideName, SideName]] = ("old", "new")


@dataclass(frozen=True, slots=True)
class Side:
    """One build of an engine: how its processes are started.

    `python`: the interpreter that runs it; None for the harness's own.
    `source`: the folder that its code is imported from before anything else; None for what is installed.
    `revision`: the git commit of `source`, where it lies in a git checkout.
    `changed`: whether that checkout differs from its commit; None where there is none.
    `sha256`: SHA-256 over the Python, C and CUDA files below `source`; None without `source`.
    """

    name: SideName
    backend: str
    options: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    source: str | None = None
    revision: str | None = None
    changed: bool | None = None
    sha256: str | None = None

    @property
    def label(self) -> str:
        """The build in a few words: its commit, else the folder, else what sets it apart."""
        if self.revision is not None:
            return f"{self.revision[:12]}{' with changes' if self.changed else ''}"
        return self.source or self.python or f"back end {self.backend}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a process's code.

    `backend_file`, `specgate_file`: paths of the modules that it imported.
    `python`: version of its interpreter.
    """

    backend_file: str
    specgate_file: str
    specgate_version: str
    python: str


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one side. Processes with the same `number` form a pair: they ran beside or after each other.

    `first`: whether it was started before the other one of its pair.
    `start_ns`: from starting the process until the engine was ready, in nanoseconds of the harness's clock.
    `device_bytes`: GPU memory that is in use after its warm-up and was not before it started, in bytes; None where
        there is no GPU, or the driver does not say.
    `host_bytes`: the most memory that it and its child processes have had on the host, in bytes; None where the
        system does not say.
    """

    side: SideName
    number: int
    first: bool
    start_ns: int
    device_bytes: int | None = None
    host_bytes: int | None = None
    origin: Origin | None = None
