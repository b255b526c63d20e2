"""The libraries, by the name of their back end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specgate.backends.offline import lmdeploy, vllm
from specgate.backends.offline.library import Library
from specgate.backends.offline.options import OfflineOptions

LIBRARIES: Final[Mapping[str, Library]] = {library.name: library for library in (vllm.LIBRARY, lmdeploy.LIBRARY)}


def library_named(name: str) -> Library:
    return LIBRARIES[name]


def parse(library: Library, raw: Mapping[str, str]) -> OfflineOptions:
    """The options of a library's back end. Raises UsageError for bad ones."""
    return OfflineOptions.parse(raw, library.prefix, library.own_options, library.ours)
