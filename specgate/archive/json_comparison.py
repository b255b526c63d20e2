"""Stored JSON beside the same JSON computed again: every place where they differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from specgate.files.manifest import Difference
from specgate.files.writing import as_json, without_home
from specgate.redaction import masked_data


def differences_of(file: str, stored: object, again: Mapping[str, Any]) -> Iterator[Difference]:
    """Every place where the stored JSON differs from `again`, after that has been converted as it is for storing."""
    text = without_home(as_json(again, ensure_ascii=False))
    yield from _differing(file, "", masked_data(stored), json.loads(text))


def _differing(file: str, place: str, was: object, now: object) -> Iterator[Difference]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*now, *(k for k in was if k not in now)]:
            inner = f"{place}.{key}" if place else str(key)
            if key not in was or key not in now:
                why = "is missing" if key not in was else "does not follow from the samples"
                yield Difference(file, inner, why, absent=key not in was)
            elif was[key] is not now[key]:
                yield from _differing(file, inner, was[key], now[key])
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differing(file, f"{place}[{i}]", old, new)
    elif isinstance(was, float) and isinstance(now, float):
        if not same_figure(was, now):
            yield Difference(file, place, f"{short(was)}; recomputed: {short(now)}")
    elif type(was) is not type(now) or was != now:
        yield Difference(file, place, f"{short(was)}; recomputed: {short(now)}", absent=was is None)


def same_figure(was: float, now: float) -> bool:
    """True if two figures agree but for rounding: on another machine, linear algebra may add in another order."""
    return math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-12)


def short(value: object) -> str:
    """`value` as JSON, or as itself if it is text, in at most 80 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
