"""YAML files of engines, and those that a command line refers to: read as the engines read them, which is YAML 1.1 with
anchors, within bounds; named as missing where they are not on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import expanduser, isfile
from pathlib import Path
from typing import Final

import yaml

from specgate.checkpoints.spec_config.flags import Given, from_mapping
from specgate.checkpoints.spec_config.tables import Table
from specgate.errors import UsageError
from specgate.files.json_text import read_bytes
from specgate.files.panics import first_line

LARGEST: Final = 1 << 18
"""Bytes of a file. PyYAML reads about 100 KB per second."""
MOST: Final = 100_000
"""Values of a file, with all that its aliases stand for."""


@dataclass(frozen=True, slots=True)
class Referred:
    """Keys of a file that a command line names. `missing`: it is not on this machine, so nothing in it is known."""

    given: Given = field(default_factory=Given)
    undecided: tuple[str, ...] = ()
    missing: bool = False


def referred(name: str | None, table: Table) -> Referred:
    """The keys of the YAML file `name`; nothing where none is named. Raises UsageError for one that cannot be read."""
    if name is None:
        return Referred()
    if not isfile(expanduser(name)):
        return Referred(undecided=(f"--config {name}: no such file here, so nothing in it is known",), missing=True)
    path = Path(expanduser(name))
    return Referred(from_mapping(document(file_text(path), path), table, str(path), dashes=True))


def file_text(path: Path, largest: int = LARGEST) -> str:
    """The text of a file. Raises UsageError for one that cannot be read, or that has more than `largest` bytes."""
    try:
        return read_bytes(path, largest).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not readable: {first_line(error)}") from error


def document(text: str, path: Path) -> Mapping[str, object]:
    """The mapping in a YAML text; an empty one in an empty text.

    Raises UsageError with file and line for what is no YAML or no mapping, and for aliases that stand for too much.
    """
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path}:{node.start_mark.line + 1}: no mapping", hint="lines of `key: value` are needed")
        if node is not None and values_in(node, {}) > MOST:
            raise UsageError(f"{path}: its aliases stand for more than {MOST} values")
        loaded = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise UsageError(f"{path}: not valid YAML: {first_line(error)}") from None
    except RecursionError:
        raise UsageError(f"{path}: too deep, or an alias inside itself") from None
    return named_keys(loaded or {})


def values_in(node: yaml.Node, counted: dict[int, int]) -> int:
    """Number of values in `node`, each alias counted as what it stands for."""
    if id(node) not in counted:
        below = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else []
        below = node.value if isinstance(node, yaml.SequenceNode) else below
        counted[id(node)] = 1 + sum(values_in(part, counted) for part in below)
    return counted[id(node)]


def named_keys(data: Mapping[object, object]) -> dict[str, object]:
    """`data` with its keys as text, as JSON has them."""
    return {str(k): named_keys(value) if isinstance(value, Mapping) else value for k, value in data.items()}
