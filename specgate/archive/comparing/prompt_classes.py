"""The class of a prompt: its category in the user's file, else the kind of text that it was cut from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.contract import Point, Run
from specgate.pairs.assets import TEXTS
from specgate.run.recompute import categories_of

KINDS: Final[Mapping[str, str]] = {asset.package: asset.kind for asset in TEXTS}
"""Corpus → its kind of text."""
UNNAMED: Final = "no category"
SEVERAL: Final = "several classes"
"""Of requests that a server counts together although their prompts are of different classes."""
MIXED: Final = "mixed"
"""Of a prompt that is cut from text of several kinds."""


def class_of(run: Run, point: Point, prompt_set: int, slots: Sequence[int]) -> str:
    """The class that the prompts in these slots of a prompt set have in common, by what run.json says of them."""
    classes = {class_in(run, point, prompt_set, slot) for slot in slots}
    return classes.pop() if len(classes) == 1 else SEVERAL


def class_in(run: Run, point: Point, prompt_set: int, slot: int) -> str:
    """The class of one prompt."""
    if categories := categories_of(run, point):
        return categories.get((prompt_set, slot)) or UNNAMED
    about = run.prompts.get(point.key, {})
    kinds = {kind_of(excerpt) for excerpt in element(element(about.get("sources"), prompt_set), slot)}
    if not kinds or None in kinds:
        source = about.get("source")
        return source if isinstance(source, str) else run.scenarios[point.scenario].workload.source
    return str(kinds.pop()) if len(kinds) == 1 else MIXED


def element(value: object, index: int) -> Sequence[object]:
    """The list at `index` of a stored list; () where there is none."""
    entry = value[index] if isinstance(value, list | tuple) and index < len(value) else ()
    return entry if isinstance(entry, list | tuple) else ()


def kind_of(excerpt: object) -> str | None:
    """The kind of text of a part of a prompt; its corpus where that is of no known kind. None where none is named."""
    corpus = excerpt.get("corpus") if isinstance(excerpt, Mapping) else None
    return KINDS.get(corpus, corpus) if isinstance(corpus, str) else None
