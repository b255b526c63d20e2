"""Terms collected from what a config gives: stated, the engine's default, or fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Final

from specgate.checkpoints.spec_config.flags import Given
from specgate.checkpoints.spec_config.terms import How, Said

Terms = dict[str, Said]
AS_THE_CHECKPOINT: Final = "as the checkpoint has it"
SUGGESTS: Final = re.compile(r"speculator|eagle|dflash|dspark|medusa|draft|hass", re.IGNORECASE)
"""Names of checkpoints that may be drafts."""


def take(
    terms: Terms, flags: Given, key: str, term: str, made: Callable[[object], object] = lambda value: value
) -> None:
    """Put what `flags` says under `key` into `terms` as `term`; nothing where it does not say it."""
    if key in flags and (value := made(flags.get(key))) is not None:
        terms[term] = Said(value, "stated", flags.names.get(key, key))


def default(terms: Terms, **values: object) -> None:
    """The engine's defaults, where nothing else was said."""
    for term, value in values.items():
        terms.setdefault(term, Said(value, "default"))


def fixed(terms: Terms, **values: object) -> None:
    """Set terms that the engine fixes whatever the config says, if nothing else set them."""
    for term, value in values.items():
        terms.setdefault(term, Said(value, "fixed"))


def follow(terms: Terms, term: str, other: str, how: How = "default") -> None:
    """Let `term` be what `other` is, unless something else set it."""
    if other in terms:
        terms.setdefault(term, Said(terms[other].value, how))


def chain(terms: Terms) -> None:
    """The sizes of a chain of K draft tokens, for an engine that drafts nothing else."""
    if "k" in terms and isinstance(k := terms["k"].value, int):
        fixed(terms, path_len=k + 1, verified=k + 1, topk=1, tree="chain", non_leaves=1)


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
