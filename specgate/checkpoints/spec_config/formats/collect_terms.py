"""Terms collected from what a config gives: stated, the engine's default, or fixed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath

from specgate.checkpoints.spec_config.flags import Given
from specgate.checkpoints.spec_config.terms import Said

Terms = dict[str, Said]


def take(
    terms: Terms, flags: Given, key: str, term: str, made: Callable[[object], object] = lambda value: value
) -> None:
    """Put what `flags` says under `key` into `terms` as `term`; nothing where it does not say it."""
    if key in flags and (value := made(flags.values[key])) is not None:
        terms[term] = Said(value, "stated", flags.names[key])


def default(terms: Terms, **values: object) -> None:
    """The engine's defaults, where nothing else was said."""
    for term, value in values.items():
        terms.setdefault(term, Said(value, "default"))


def fixed(terms: Terms, **values: object) -> None:
    """Set terms that the engine fixes whatever the config says, if nothing else set them."""
    for term, value in values.items():
        terms.setdefault(term, Said(value, "fixed"))


def chain(terms: Terms) -> None:
    """The sizes of a chain of K draft tokens, for an engine that drafts nothing else."""
    if "k" in terms and isinstance(k := terms["k"].value, int):
        fixed(terms, path_len=k + 1, verified=k + 1, topk=1, tree="chain", non_leaves=1)


def name_of(path: object) -> str:
    """The last part of a folder's path or of a model's name, by which two configs tell drafts apart."""
    return PurePath(str(path)).name or str(path)


def count_of(value: object) -> int | None:
    """A count; None for anything else, such as `auto`."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 12 else None


def layers_of(ids: object) -> str:
    """A list of layers in words."""
    return f"layers {list(ids) if isinstance(ids, list | tuple) else ids}"


def positions(value: object) -> int | None:
    """A context length; None for words such as `auto`."""
    return count_of(value)


def after(argv: tuple[str, ...], word: str) -> str | None:
    """The word after `word` in a command line, unless it is a flag."""
    for here, following in pairwise(argv):
        if here == word and not following.startswith("-"):
            return following
    return None
