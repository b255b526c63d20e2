"""YAML that remembers where every key stood, so that an error found much later can still name `file:line`.

Plain data only: keys are text, no key is there twice, and there are no anchors, aliases or tags of Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

from specgate.errors import UsageError

KeyPath = tuple[str | int, ...]


class Mark(NamedTuple):
    """The place of a key; `line` counts from 1."""

    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file, or several merged into one.

    `head`: the text of the file's first line where that is a comment, else None.
    `marks`: the place of every key and list item.
    """

    path: Path
    head: str | None
    data: Mapping[str, object]
    marks: Mapping[KeyPath, Mark]

    def where(self, key: KeyPath) -> Mark:
        """The place of `key`, or of the nearest enclosing key that exists."""
        while key and key not in self.marks:
            key = key[:-1]
        return self.marks[key]

    def over(self, base: Document) -> Document:
        """This document merged over `base`: mappings are merged key by key, everything else, lists included, is
        replaced.
        """
        return Document(self.path, self.head, _merge(base.data, self.data), {**base.marks, **self.marks})


def load(path: Path) -> Document:
    """Read a YAML file that holds one mapping. Raises UsageError with file and line."""
    return _document(path, _read(path))


@lru_cache(maxsize=256)  # scenarios share their bases, and one run reads all of them more than once
def _document(path: Path, text: str) -> Document:
    try:
        marks, data = _parse(path, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{path}:{line}: not valid YAML: character U+{ord(text[error.position]):04X}") from None
    except ValueError as error:  # a scalar that looks like a number or date and is none, e.g. 2026-02-31
        raise UsageError(f"{path}: not valid YAML: {error}", hint="put text that looks like a date in quotes") from None
    first = text.partition("\n")[0].strip()
    head = first.lstrip("#").strip() if first.startswith("#") else ""
    return Document(path, head or None, data, {(): Mark(path, 1), **marks})


def _parse(path: Path, text: str) -> tuple[dict[KeyPath, Mark], dict[str, object]]:
    loader = _Loader(text)
    node = loader.get_single_node()
    if not isinstance(node, yaml.MappingNode):
        kind = "an empty file" if node is None else _kind(node)
        line = 1 if node is None else node.start_mark.line + 1
        raise UsageError(f"{path}:{line}: {kind} where a mapping was expected", hint="write `key: value` lines")
    return dict(_marks(node, path, ())), loader.construct_document(node)


class _Loader(yaml.SafeLoader):
    """SafeLoader without anchors and aliases. Scenarios share through `extends` instead, and cyclic data cannot
    arise.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it untyped
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not used here", event.start_mark)
        return super().compose_node(parent, index)


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        wrong = f"{path}:{line}: byte 0x{raw[error.start]:02X} is not UTF-8"
        raise UsageError(wrong, hint="save the file as UTF-8") from None


def _marks(node: yaml.Node, path: Path, key: KeyPath) -> Iterator[tuple[KeyPath, Mark]]:
    """Every key below `node` with its place. Raises UsageError for keys that are not text or are there twice."""
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*key, i), Mark(path, item.start_mark.line + 1)
            yield from _marks(item, path, (*key, i))
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if name.tag != "tag:yaml.org,2002:str":
                shown = name.value if isinstance(name, yaml.ScalarNode) else _kind(name)
                raise UsageError(f"{path}:{line}: key {shown}: not text", hint="put the key in quotes")
            if name.value in seen:
                dotted_key = dotted((*key, name.value))
                raise UsageError(f"{path}:{line}: {dotted_key}: this key is already on line {seen[name.value]}")
            seen[name.value] = line
            yield (*key, name.value), Mark(path, line)
            yield from _marks(value, path, (*key, name.value))


def _kind(node: yaml.Node) -> str:
    return {"mapping": "a mapping", "sequence": "a list"}.get(getattr(node, "id", ""), "a single value")


def _merge(base: Mapping[str, object], top: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def dotted(key: KeyPath) -> str:
    """`("grid", "context", 1)` → `grid.context[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")
