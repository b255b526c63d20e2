"""Records of an environment: flattened, and the differences between two of them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

MOMENTARY: Final = (
    "env_before", "env_after", "host.load_average", "gpus[].sm_clock_mhz", "gpus[].temperature_c",
    "gpus[].clock_event_reasons",
)  # fmt: skip
"""Facts of one moment. They are never the same twice and do not count as a difference between two environments."""


def flat(facts: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`{"host": {"cpu": "x"}}` → `("host.cpu", "x")`, in the order of the mapping."""
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            for i, item in enumerate(value):
                yield from flat(item, f"{name}[{i}].")
        else:
            yield name, _plain(value)


def differences(then: Mapping[str, object], now: Mapping[str, object]) -> Iterator[tuple[str, str | None, str | None]]:
    """(key, what it was, what it is), in the order of `now`. A value is None where that side does not have the key.

    A package that the fingerprint names (`fingerprint.package:NAME`) is not told a second time (`packages.NAME`).
    """
    was, is_ = dict(flat(then)), dict(flat(now))
    reported = set[tuple[str, str | None, str | None]]()
    for key in [*is_, *(k for k in was if k not in is_)]:
        change = key.replace("fingerprint.package:", "packages."), was.get(key), is_.get(key)
        if was.get(key) != is_.get(key) and not _passing(key) and change not in reported:
            reported.add(change)
            yield key, was.get(key), is_.get(key)


def _passing(key: str) -> bool:
    generic = re.sub(r"\[\d+\]", "[]", key)
    return any(generic == name or generic.startswith(f"{name}.") for name in MOMENTARY)


def _plain(value: object) -> str:
    if value is None:
        return "unknown"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
