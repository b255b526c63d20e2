"""YAML that remembers where every key stood, so that an error found much later can still name `file:line`.

Plain data only: keys are text, no key is there twice, and there are no anchors, aliases or tags. Unquoted scalars mean
what the core schema of YAML 1.2 says (section 10.3.2). A scalar that YAML 1.1 reads as something else, such as `yes`,
`1:30`, `010` or a date, is refused: a reader cannot tell which of the two was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from specgate.contract.types import KeyPath, dotted, shortened
from specgate.errors import UsageError

LARGEST: Final = 256 * 1024
"""Bytes. PyYAML reads about 100 KB per second, and the longest file that specgate writes has 25 KB."""
DEEPEST: Final = 32
"""Mappings and lists inside each other. The deepest file that specgate reads has five levels."""
DIGITS: Final = 100
"""Of an integer. Python refuses to read more than 4300, and no key takes more than 19."""


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


def loads(text: str, path: Path) -> Document:
    """As `load`, of a file that is not written yet: `text` is what `path` will hold."""
    return _document(path, text)


def dump_yaml(data: object, *, flow: bool | None = False, width: int = 120) -> str:
    """`data` as YAML that `load` reads back as it is, and a reader of YAML 1.1 too: text that either of the two would
    take for something else is in quotes. `flow`: as `default_flow_style` of PyYAML.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, width=width)


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
    except (ValueError, OverflowError) as error:  # an escape beyond the last character, e.g. "\U00110000"
        raise UsageError(f"{path}: not valid YAML: {error}") from None
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


# ── the core schema ──────────────────────────────────────────────────────────────────────────────────────────────────

_TAG: Final = "tag:yaml.org,2002:"
_CORE: Final = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
)
"""Tag, pattern and possible first characters of every kind of unquoted scalar that is not text. `\\0` stands for the
empty scalar.
"""
_OLD_MEANINGS: Final = {
    "bool": ("true or false", "write true or false, or put the text in quotes"),
    "int": ("a number in another notation", "write a plain decimal number, or put the text in quotes"),
    "float": ("a number in another notation", "write a plain decimal number, or put the text in quotes"),
    "timestamp": ("a date", "put text that looks like a date in quotes"),
    "merge": ("a merge key", "put the text in quotes"),
    "value": ("a default key", "put the text in quotes"),
}
"""Tag of YAML 1.1 → what it reads in a scalar that YAML 1.2 reads as text, and what to write instead."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2, and without anchors, aliases and tags. Scenarios share through `extends`
    instead, and cyclic data cannot arise.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it untyped
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not used here", event.start_mark)
        if getattr(event, "tag", None):
            raise yaml.composer.ComposerError(None, None, "tags are not used here", event.start_mark)
        if self.depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"more than {DEEPEST} levels deep", event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what YAML 1.2 takes for more than text, besides what YAML 1.1 does."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _core_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    return int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)


def _core_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.yaml_implicit_resolvers = {}  # without those of YAML 1.1
for _name, _pattern, _first in _CORE:
    _characters = [c.replace("\0", "") for c in _first]
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})$"), _characters)
_Loader.add_constructor(_TAG + "int", _core_int)
_Loader.add_constructor(_TAG + "float", _core_float)


def _check_scalar(node: yaml.ScalarNode, path: Path, key: KeyPath) -> None:
    """Raise UsageError for an unquoted scalar that YAML 1.1 reads differently, or a number that is too long to read."""
    if node.style is not None:  # in quotes, or a block of text
        return
    where = f"{path}:{node.start_mark.line + 1}: {dotted(key)}"
    digits = node.value.lstrip("-+")
    if node.tag == _TAG + "int" and len(digits) > 1 and digits.isdigit() and digits.startswith("0"):
        right = f"write {int(digits[:20])}, or 0o{digits.lstrip('0')} for octal, or put the text in quotes"
        raise UsageError(
            f"{where}: {shortened(node.value)}: a number with a leading 0 is octal in YAML 1.1", hint=right
        )
    if node.tag == _TAG + "int" and len(digits) > DIGITS:
        raise UsageError(f"{where}: {shortened(node.value)}: more than {DIGITS} digits", hint="is this a number?")
    old = _tag_in_yaml_1_1(node.value)
    if node.tag == _TAG + "str" and old != "str":
        meant, right = _OLD_MEANINGS[old]
        wrong = f"{where}: {shortened(node.value)}: not valid YAML here: version 1.1 reads {meant}, version 1.2 text"
        raise UsageError(wrong, hint=right)


def _tag_in_yaml_1_1(text: str) -> str:
    candidates = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    return next((tag.removeprefix(_TAG) for tag, pattern in candidates if pattern.match(text)), "str")


# ── files and keys ───────────────────────────────────────────────────────────────────────────────────────────────────


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL byte, or half a surrogate pair
        raise UsageError(f"{str(path)!r}: no name of a file: {error}") from None
    if len(raw) > LARGEST:
        raise UsageError(f"{path}: more than {LARGEST} bytes", hint="is this the file that was meant?")
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        wrong = f"{path}:{line}: byte 0x{raw[error.start]:02X} is not UTF-8"
        raise UsageError(wrong, hint="save the file as UTF-8") from None


def _marks(node: yaml.Node, path: Path, key: KeyPath) -> Iterator[tuple[KeyPath, Mark]]:
    """Every key below `node` with its place.

    Raises UsageError for keys that are not text or are there twice, and for scalars that `_check_scalar` refuses.
    """
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, path, key)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*key, i), Mark(path, item.start_mark.line + 1)
            yield from _marks(item, path, (*key, i))
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if not _is_text(name):
                text = shortened(name.value) if isinstance(name, yaml.ScalarNode) else _kind(name)
                hint = "put the key in quotes; within braces a comma begins the next key, so write 2.0 for 2,0"
                raise UsageError(f"{path}:{line}: key {text}: not text", hint=hint)
            if name.value in lines:
                dotted_key = dotted((*key, name.value))
                raise UsageError(f"{path}:{line}: {dotted_key}: this key is already on line {lines[name.value]}")
            lines[name.value] = line
            yield (*key, name.value), Mark(path, line)
            yield from _marks(value, path, (*key, name.value))


def _is_text(key: yaml.Node) -> bool:
    """True if a key is text in YAML 1.1 and 1.2."""
    if not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
        return False
    return key.style is not None or _tag_in_yaml_1_1(key.value) == "str"


def _kind(node: yaml.Node) -> str:
    return {"mapping": "a mapping", "sequence": "a list"}.get(getattr(node, "id", ""), "a single value")


def _merge(base: Mapping[str, object], top: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
