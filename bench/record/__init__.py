"""The record: what measures each claim of the documents, and the runs that do.

    bench/record.sh gpu --out FOLDER                    # measure what is missing there; stops where time ends
    bench/record.sh gpu --out FOLDER --minutes 9 --with vllm=/opt/vllm/bin/vllm
    bench/record.sh two-gpus --out FOLDER --list        # what is done, and what is missing and why
    PYTHON=python3 bench/record.sh gpu --out FOLDER     # without .venv; packages may lie on PYTHONPATH

parts.yaml   the parts: claim, machine, minutes, command, stored evidence
__main__.py  measure the parts of one machine
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from specgate.files.yamlfile import load

FILE = Path(__file__).with_name("parts.yaml")
PLACEHOLDER = re.compile(r"\{([a-z][\w-]*)\}")
"""What stands for a folder or a program in a command; `${x}` of the shell is none."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine: how many GPUs it has at least, and in words."""

    gpus: int
    words: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a part. `repeat`: how many runs of the same command come before it."""

    name: str
    command: str
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement. The keys are described in parts.yaml."""

    name: str
    machine: str
    minutes: float
    claim: str
    run: str
    times: int = 1
    each: tuple[str, ...] = ()
    ends: tuple[int, ...] = (0,)
    engine: str = "built-in"
    stored: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its runs: so many `times`, or one for each value of `each`."""
        commands = [filled(self.run, {"each": value}) for value in self.each] or [self.run] * self.times
        if len(commands) == 1:
            return (Run(self.name, commands[0]),)
        return tuple(Run(f"{self.name}-{n}", c, 0 if self.each else n - 1) for n, c in enumerate(commands, 1))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(PLACEHOLDER.findall(self.run)) - {"each"}


@dataclass(frozen=True, slots=True)
class Record:
    """The declaration. `made`: placeholder → the command that makes its folder. `counted_then`: SHA-256 of an engine as
    evidence names it → as it is counted since.
    """

    machines: Mapping[str, Machine]
    awaiting: tuple[str, ...]
    made: Mapping[str, str]
    parts: tuple[Part, ...]
    counted_then: Mapping[str, str] = field(default_factory=dict)


@cache
def declared() -> Record:
    """Return what parts.yaml declares."""
    data: Mapping[str, Any] = load(FILE).data
    machines = {name: Machine(**keys) for name, keys in data["machines"].items()}
    parts = tuple(part_of(keys, data["words"], data["lists"]) for keys in data["parts"])
    return Record(machines, tuple(data["awaiting"]), data["made"], parts, data["counted_then"])


def part_of(keys: Mapping[str, Any], words: Mapping[str, str], lists: Mapping[str, list[str]]) -> Part:
    """Return a part, with the words and lists that commands share filled in."""
    each = {"each": tuple(lists[keys["each"]])} if "each" in keys else {}
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    return Part(**{**values, **each, "run": filled(values["run"], words)})


def filled(command: str, values: Mapping[str, object]) -> str:
    """Return a command with those of its placeholders filled in that have a value."""
    return PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), command)
