"""Headers of a small head: names, shapes and types, changed as a test needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from specgate.checkpoints.heads.reading import Head, read_head
from specgate.checkpoints.heads.tensors import draft_tensors
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf.target import target_geometry
from tests.checkpoints.folders import DRAFT, LLAMA, keys

TARGET = target_geometry(keys(LLAMA))


class Header(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: str = "BF16"


Headers = dict[str, Header]


def headers(**changes: object) -> Headers:
    """The tensors of a head whose config is DRAFT with `changes`, in the layout of the EAGLE authors."""
    geometry, _ = draft_geometry(keys(DRAFT, **changes), TARGET, ())
    return {
        name: Header(want.shape, want.dtype or "BF16") for name, want in draft_tensors(geometry, True, True).items()
    }


def renamed(entries: Mapping[str, Header], rename: Callable[[str], str]) -> Headers:
    return {rename(name): entry for name, entry in entries.items()}


def read(entries: Mapping[str, Header], **changes: object) -> Head:
    """Read a head with the config DRAFT and `changes`; `...` removes a key."""
    return read_head(keys(DRAFT, **changes), TARGET, entries)
