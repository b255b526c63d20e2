"""YAML files that are merged over others of their kind: scenarios (`extends`) and policies (`base`).

The key names a shipped file (`extends: base/cpu`), a file relative to the one that has it (`base: mine.yaml`), or a
list of these, the last one on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os.path import isfile
from pathlib import Path
from typing import Final

from specgate.contract.reading import Problem, nearest
from specgate.contract.types import KeyPath
from specgate.files.yaml_schema import refusal
from specgate.files.yamlfile import Document, Mark, load

LONGEST_CHAIN: Final = 16
"""Files that are merged over each other."""


def merged(own: Document, base: Document | None) -> Document:
    """Return `own` over `base`: mappings are merged key by key, everything else is replaced."""
    return own if base is None else own.over(base)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The way in which files of one kind are merged.

    `noun`: the kind in messages. `key`: the key that names what a file is merged over. `shipped`: the folder of the
    files that may be named without a path. `merge`: puts a document over what it names, None where it names nothing.
    """

    noun: str
    key: str
    shipped: Path
    merge: Callable[[Document, Document | None], Document] = merged

    def whole(self, document: Document, inside: tuple[Path, ...] = ()) -> Document:
        """Return `document` merged over everything it names. `inside`: the files that name it. Raises UsageError where
        a name is wrong, and where files name each other in a circle.
        """
        chain = (*inside, document.path.resolve())
        if len(chain) > LONGEST_CHAIN:
            raise refusal(document, [Problem((self.key,), f"a chain of more than {LONGEST_CHAIN} files")])
        below: Document | None = None
        for base in self._bases(document):
            if base.resolve() in chain:
                circle = " → ".join(p.name for p in (*chain, base))
                raise refusal(document, [Problem((self.key,), f"a {self.noun} cannot extend itself: {circle}")])
            layer = self.whole(load(base), chain)
            below = self.merge(layer, below) if below else layer
        whole = self.merge(document, below)
        return replace(whole, data={k: v for k, v in whole.data.items() if k != self.key})

    def names(self, *, bases: bool = False) -> list[str]:
        """Return the names of the shipped files; with `bases`, those in folders inside too."""
        files = sorted(self.shipped.rglob("*.yaml")) if bases else sorted(self.shipped.glob("*.yaml"))
        return [f.relative_to(self.shipped).with_suffix("").as_posix() for f in files]

    def _bases(self, document: Document) -> list[Path]:
        stated = document.data.get(self.key, [])
        names = [stated] if isinstance(stated, str) else stated
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise refusal(document, [Problem((self.key,), "a name, a file, or a list of them was expected")])
        paths = [self._file(n, document.path.parent) for n in names]
        if missing := [at for at, path in enumerate(paths) if not isfile(path)]:
            key = (self.key,) if isinstance(stated, str) else (self.key, missing[0])
            why = f"no such base; {nearest(names[missing[0]], self.names(bases=True))}, or a .yaml file"
            raise refusal(document, [Problem(key, why)])
        return paths

    def _file(self, name: str, folder: Path) -> Path:
        return folder / name if name.endswith((".yaml", ".yml")) else self.shipped / f"{name}.yaml"


# ── lists that are merged by id ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list, with the places of its keys relative to it."""

    data: Mapping[str, object]
    marks: Mapping[KeyPath, Mark]

    def over(self, base: Item) -> Item:
        """Return this item's keys over those of `base`."""
        return Item({**base.data, **self.data}, {**base.marks, **self.marks})


def items_of(document: Document, key: str) -> list[Item] | None:
    """Return the items of the list `key`; None unless it is a list of mappings."""
    values = document.data.get(key, [])
    if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
        return None
    marks: list[dict[KeyPath, Mark]] = [{} for _ in values]
    for place, mark in document.marks.items():
        if len(place) > 1 and place[0] == key and isinstance(place[1], int) and place[1] < len(values):
            marks[place[1]][place[2:]] = mark
    return [Item(*both) for both in zip(values, marks, strict=True)]


def with_items(document: Document, key: str, items: list[Item]) -> Document:
    """Return `document` with these items as the list `key`."""
    marks = {place: mark for place, mark in document.marks.items() if place[:1] != (key,) or len(place) == 1}
    for i, item in enumerate(items):
        marks |= {(key, i, *place): mark for place, mark in item.marks.items()}
    return replace(document, data={**document.data, key: [dict(item.data) for item in items]}, marks=marks)
