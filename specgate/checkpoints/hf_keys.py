"""Strict reading of a Hugging Face `config.json`.

Every error names the file, the key, the value, and what would be right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import isdir, isfile
from pathlib import Path
from typing import Final, TypeGuard

from specgate.errors import CheckpointError, UsageError
from specgate.files import yamlfile
from specgate.files.json_text import parse_json, read_bytes
from specgate.files.panics import first_line

PLANTED: Final = "planted"
"""The section of a planted pair's configs that says how its weights are generated. Other engines ignore it."""
DRAFT_ARCHITECTURE: Final = "LlamaForCausalLMEagle3"
"""Under this name drafts are written."""
LARGEST_FILE: Final = 64 << 20
"""Bytes of a config, or of the index of a checkpoint's shards."""
LARGEST_COUNT: Final = 1 << 24
"""Of a size, a position or a token id. The longest context in use has 10 Mi positions."""
LARGEST_NUMBER: Final = 1e30
"""Of a base, a factor or an epsilon. Its square root is still a float32."""
MOST_IDS: Final = 1000


@dataclass(frozen=True, slots=True)
class Keys:
    """One JSON object of `file`. `section` is its dotted path inside the file. A null counts as an absent key.

    `names`: key → its name in the file, where that is another.
    """

    file: Path
    values: Mapping[str, object]
    section: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def path(self, key: str) -> str:
        """The dotted path of `key` inside the file."""
        key = self.names.get(key, key)
        name = key if key.isprintable() else ascii(key)
        return f"{self.section}.{name}" if self.section else name

    def wrong(self, key: str, right: str) -> CheckpointError:
        """The error to raise about `key`. `right` says what would be right."""
        state = f"= {_short(json.dumps(self.values[key]))}" if key in self.values else "is missing"
        return CheckpointError(f"{self.file}: {self.path(key)} {state}", hint=right)

    def refuse(self, key: str, harmless: object, reason: str) -> None:
        """Raise CheckpointError with `reason` where `key` is present and its value is not `harmless`."""
        if key in self and self.values[key] != harmless:
            raise self.wrong(key, reason)

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer, at most `LARGEST_COUNT`. Required where there is no default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not is_integer(value) or value <= 0:
            raise self.wrong(key, "a positive integer is needed")
        if value > LARGEST_COUNT:
            raise self.wrong(key, f"at most {LARGEST_COUNT} is accepted")
        return value

    def optional_count(self, key: str) -> int | None:
        return self.count(key) if key in self else None

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number, at most `LARGEST_NUMBER`. Required where there is no default."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(key, "a positive number is needed")
        if value > LARGEST_NUMBER:
            raise self.wrong(key, f"at most {LARGEST_NUMBER:g} is accepted")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false is needed")
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a string is needed")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """A list of non-negative integers, or a single one; () where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        entries = value if isinstance(value, list | tuple) else [value]
        items = [i for i in entries if is_integer(i) and i >= 0]
        if len(items) < len(entries):
            raise self.wrong(key, "an integer ≥ 0 or a list of them is needed")
        if len(items) > MOST_IDS or any(i > LARGEST_COUNT for i in items):
            raise self.wrong(key, f"at most {MOST_IDS} of at most {LARGEST_COUNT} are accepted")
        return tuple(items)

    def part(self, key: str) -> Keys:
        """The object below `key`; an empty one where the key is absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "an object is needed")
        return Keys(self.file, value or {}, self.path(key))


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:119] + "…"


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def read_config(folder: Path) -> Keys:
    """`folder/config.json`. Raises CheckpointError where folder or file is missing or the text is not a JSON object."""
    return read_json(folder / "config.json")


def read_yaml(file: Path) -> Keys:
    """Read a YAML file that holds one mapping. Raises CheckpointError with file and line."""
    try:
        return Keys(file, yamlfile.load(file).data)
    except UsageError as error:
        raise CheckpointError(error.message, hint=error.hint) from error


def read_json(file: Path) -> Keys:
    if not isfile(file):
        hint = "a Hugging Face checkpoint folder is needed" if isdir(file.parent) else "there is no such folder"
        raise CheckpointError(f"{file}: no such file", hint=hint)
    try:
        values = parse_json(read_bytes(file, LARGEST_FILE))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not readable as JSON ({first_line(error)})") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: holds a {type(values).__name__}", hint="a JSON object is needed")
    return Keys(file, values)
