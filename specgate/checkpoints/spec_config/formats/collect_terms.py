"""Terms collected from what a config gives: stated, the engine's default, or fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from specgate.checkpoints.spec_config.flags import Given
from specgate.checkpoints.spec_config.terms import How, Said, StatedConfig

Terms = dict[str, Said]
AS_THE_CHECKPOINT: Final = "as the checkpoint has it"
SUGGESTS: Final = re.compile(r"speculator|eagle|dflash|dspark|medusa|draft|hass", re.IGNORECASE)
"""Names of checkpoints that may be drafts."""


@dataclass(slots=True)
class Reading(StatedConfig):
    """A config while it is read. `terms`: those that are known so far."""

    terms: Terms
    places: dict[str, str] = field(default_factory=dict)

    def take(self, given: Given, key: str, term: str, made: Callable[[object], object] = lambda value: value) -> None:
        """Take what `given` says under `key` as `term`; nothing where it does not say it."""
        if key in given and (value := made(given.get(key))) is not None:
            self.say(term, value, given.names.get(key, key))

    def take_each(self, given: Given, **terms: str) -> None:
        """Take what `given` says under each key of `terms` as the term beside it."""
        for key, term in terms.items():
            self.take(given, key, term)

    def say(self, term: str, value: object, by: str) -> None:
        """Set a term that the config states."""
        self.terms[term] = Said(value, "stated", by)

    def name(self, term: str, path: str, by: str, revision: str | None = None) -> None:
        """Set a checkpoint, target or draft, that the config names."""
        self.say(term, name_of(path) + (f"@{revision}" if revision else ""), by)
        self.places[term] = path

    def look_up(self, given: Given, keys: Iterable[str]) -> None:
        """Set what the config says of looked up n-grams, under any of `keys`."""
        if lookups := {key: given.get(key) for key in keys if key in given}:
            self.say("lookup", object_text(lookups), next(iter(lookups)))

    def default(self, **values: object) -> None:
        """The engine's defaults, where nothing else was said."""
        for term, value in values.items():
            self.terms.setdefault(term, Said(value, "default"))

    def fixed(self, **values: object) -> None:
        """Set terms that the engine fixes whatever the config says, if nothing else set them."""
        for term, value in values.items():
            self.terms.setdefault(term, Said(value, "fixed"))

    def follow(self, term: str, other: str, how: How = "default") -> None:
        """Let `term` be what `other` is, unless something else set it."""
        if other in self.terms:
            self.terms.setdefault(term, Said(self.terms[other].value, how))

    def chain(self) -> None:
        """The sizes of a chain of K draft tokens, for an engine that drafts nothing else."""
        if isinstance(k := self.value("k"), int):
            self.fixed(path_len=k + 1, verified=k + 1, topk=1, tree="chain", non_leaves=1)


def dummy(form: object) -> str | None:
    """Weights that are made up when they are loaded; None for all formats that read the checkpoint."""
    return "dummy" if form == "dummy" else None


def name_of(path: object) -> str:
    """The last part of a folder's path or of a model's name, by which two configs tell drafts apart.

    A folder of the Hugging Face cache has the name of its model; a GGUF file has none of its suffix.
    """
    parts = PurePath(str(path)).parts
    if cached := [part for part in parts if part.startswith("models--")]:
        return cached[-1].rsplit("--", 1)[-1]
    return (parts[-1] if parts else str(path)).removesuffix(".gguf")


def count_of(value: object) -> int | None:
    """A count; None for anything else, such as `auto`. Takes 8192, 8k (8000) and 8K (8192), as vLLM does."""
    match = re.fullmatch(r"(\d{1,11})([kKmMgG]?)", str(value))
    if match is None:
        return None
    factor = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(match[1]) * factor[match[2]]


def layers_of(ids: object) -> str:
    """A list of layers in words."""
    return f"layers {list(ids) if isinstance(ids, list | tuple) else ids}"


def object_text(value: object) -> str | None:
    """Keys and values of an object, sorted; None for an empty one."""
    if not isinstance(value, Mapping):
        return str(value) or None
    return ", ".join(f"{key} = {value[key]}" for key in sorted(value)) or None
