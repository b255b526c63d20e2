"""Differences of two fingerprints, and their words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

FLEET: Final = "fleet"
"""Key of the machines that a run on many of them began with."""
PACKAGE: Final = "package:"
LISTED: Final = (PACKAGE, "plugin:")
"""How keys begin of which a fingerprint has as many as there are packages and plug-ins."""


class Change(NamedTuple):
    """A key of the fingerprint and its two values. None: there is no such thing, or no such package or plug-in."""

    key: str
    then: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.key.removeprefix(PACKAGE)} was {short(self.then)}, is {short(self.now)}"


def changes(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[Change]:
    """Return what has changed from one fingerprint to another, in the order of `now`.

    A key that only one of them has does not count: an engine was not loaded there. Packages and plug-ins that only one
    of them has do count.
    """
    keys = [key for key in dict.fromkeys((*now, *then)) if (key in now and key in then) or key.startswith(LISTED)]
    return [Change(key, then.get(key), now.get(key)) for key in keys if then.get(key) != now.get(key)]


def in_words(differences: Iterable[Change]) -> str:
    """`torch was 2.11.0, is 2.12.0; device was cpu, is NVIDIA H200`."""
    return "; ".join(map(str, differences))


def incomplete(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> str | None:
    """Return why two fingerprints without `changes` are nevertheless not the same: the keys that one of them lacks.
    None if they are the same.
    """
    if (FLEET in then) != (FLEET in now):
        return f"{'a fleet' if FLEET in then else 'one machine'} measured it, whose green runs count apart"
    unlike = [key for key in (*now, *then) if key not in then or key not in now]
    names = dict.fromkeys("packages" if key.startswith(LISTED) else key for key in unlike)
    return f"its fingerprint is incomplete, without {', '.join(names)}" if names else None


def short(value: str | None) -> str:
    """The value for a sentence: of a SHA-256, the first twelve digits."""
    return "absent" if value is None else re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", value)
