"""The record: what measures each claim of the documents, and the runs that do.

    bench/record.sh gpu --out FOLDER                    # measure what is missing there; stops where time ends
    bench/record.sh gpu --out FOLDER --minutes 9 --with vllm=/opt/vllm/bin/vllm
    bench/record.sh two-gpus --out FOLDER --list        # what is done, and what is missing and why

parts.yaml   the parts: claim, machine, minutes, command, stored evidence
__main__.py  measure the parts of one machine
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specgate.files.yamlfile import load

FILE = Path(__file__).with_name("parts.yaml")
PLACEHOLDER = re.compile(r"\{([a-z][\w-]*)\}")
"""What stands for a folder or a program in a command; `${x}` of the shell is none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement. The keys are described in parts.yaml."""

    name: str
    machine: str
    minutes: float
    claim: str
    run: str
    times: int = 1
    ends: tuple[int, ...] = (0,)
    engine: str = "built-in"
    stored: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its runs, one for each time."""
        return (self.name,) if self.times == 1 else tuple(f"{self.name}-{n}" for n in range(1, self.times + 1))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(PLACEHOLDER.findall(self.run))


@dataclass(frozen=True, slots=True)
class Record:
    """The declaration. `made`: placeholder → the command that makes its folder."""

    machines: Mapping[str, str]
    awaiting: tuple[str, ...]
    made: Mapping[str, str]
    parts: tuple[Part, ...]


@cache
def declared() -> Record:
    """Return what parts.yaml declares."""
    data: Mapping[str, Any] = load(FILE).data
    parts = tuple(part_of(keys, data["words"]) for keys in data["parts"])
    return Record(data["machines"], tuple(data["awaiting"]), data["made"], parts)


def part_of(keys: Mapping[str, Any], words: Mapping[str, str]) -> Part:
    """Return a part, with the words that commands share filled in."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    return Part(**{**values, "run": filled(values["run"], words)})


def filled(command: str, values: Mapping[str, object]) -> str:
    """Return a command with those of its placeholders filled in that have a value."""
    return PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), command)
