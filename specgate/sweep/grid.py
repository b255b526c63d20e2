"""The settings of a sweep: from values per option to all their combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

from specgate.contract.scenarios.scenario import OptionName, option_text
from specgate.contract.sweeps import Setting
from specgate.contract.types import Convert, Length, Text
from specgate.errors import UsageError
from specgate.files.yaml_schema import parse
from specgate.files.yamlfile import load

GRID: Final = "specgate.sweep-grid/v1"
Value = Annotated[Text, Convert(option_text, {"type": "number"})]


@dataclass(frozen=True, slots=True)
class GridFile:
    """A grid file: option → values to try."""

    grid: Annotated[Mapping[OptionName, Annotated[tuple[Value, ...], Length(1)]], Length(1)]


def read_grid(file: Path) -> Mapping[str, tuple[str, ...]]:
    """Values per option from a YAML file, whose values may hold commas. Raises UsageError with file and line."""
    return parse(GridFile, load(file), GRID).grid


def values_of(pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Values per option from `--try NAME=V1,V2`; a name that is repeated has all of its values, each once.

    Raises UsageError for an empty value.
    """
    grid: dict[str, tuple[str, ...]] = {}
    for name, text in pairs:
        values = [value.strip() for value in text.split(",")]
        if not all(values):
            raise UsageError(f"--try {name}={text}: a value is empty", hint="write it as --try NAME=VALUE,VALUE")
        grid[name] = tuple(dict.fromkeys((*grid.get(name, ()), *values)))
    return grid


def settings_of(grid: Mapping[str, Sequence[str]], most: int, least: int = 2) -> tuple[Setting, ...]:
    """All combinations of the values in `grid`, the last option fastest.

    Raises UsageError for no grid, for fewer points than `least`, and for more than `most`, which the budget cannot
    visit.
    """
    count = prod(map(len, grid.values())) if grid else 0
    if count == 0:
        raise UsageError("nothing to try", hint="--try NAME=VALUE,VALUE for an option or env.NAME, or --grid FILE")
    if count < least:
        one = " ".join(f"--new {name}={values[0]}" for name, values in grid.items())
        hint = f"a sweep chooses among several; specgate ab {one} compares one setting with the default"
        raise UsageError("the grid has one point", hint=hint)
    if count > most:
        lists = " x ".join(f"{len(values)} of {name}" for name, values in grid.items())
        raise UsageError(
            f"the grid has {count:,} points ({lists}): even at one second each, the budget visits {max(most, 0):,}",
            hint="try fewer values, or raise --budget",
        )
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def in_words(setting: Setting) -> str:
    """A setting as it is printed: `env.A=1 env.B=2`."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def baked(setting: Setting) -> str:
    """What makes a setting the default: `export NAME=VALUE …` of the environment, `-o NAME=VALUE` of all other
    options.
    """
    words = [f"{name}={quote(value)}" for name, value in setting.items()]
    exported = [word.removeprefix("env.") for word in words if word.startswith("env.")]
    options = [f"-o {word}" for word in words if not word.startswith("env.")]
    return " ".join((*(["export", *exported] if exported else []), *options))
