"""Differences between what a run stored, as JSON and as reports, and what is made anew from its samples.

If this source tree wrote them, every line must be the same but for the last digits of decimal fractions. Of a picture
that is its text alternative, which has its figures; what is drawn is not compared. Another version may word and lay out
a report differently: its reports are not compared. The manifest has the hashes of reports; the ledger has not, since it
gets the verdict before any report is rendered.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from specgate.contract import Run
from specgate.files.config import Config
from specgate.files.journal import JOURNALS
from specgate.files.manifest import UNLISTED, Difference, plain_files
from specgate.files.writing import as_json, as_stored, without_home
from specgate.machine import inventory
from specgate.redaction import masked_data
from specgate.run.ending import report_files

EMPTY: Final[tuple[object, ...]] = (None, False, [], {})
"""Values of a key that has nothing to say."""


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
                yield Difference(file, inner, why, later=key not in was and now[key] in EMPTY)
            elif was[key] is not now[key]:
                yield from _differing(file, inner, was[key], now[key])
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differing(file, f"{place}[{i}]", old, new)
    elif isinstance(was, float) and isinstance(now, float):
        if not same_figure(was, now):
            yield Difference(file, place, f"{short(was)}; recomputed: {short(now)}")
    elif type(was) is not type(now) or was != now:
        yield Difference(file, place, f"{short(was)}; recomputed: {short(now)}")


def same_figure(was: float, now: float) -> bool:
    """True if two figures agree but for rounding: on another machine, linear algebra may add in another order."""
    return math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-12)


def short(value: object) -> str:
    """`value` as JSON, or as itself if it is text, in at most 80 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


_DRAWING: Final = re.compile(r"(<svg[^>]*>).*?</svg>", re.DOTALL)
_DECIMAL: Final = re.compile(r"(-?\d+\.\d+(?:e[+-]?\d+)?)")


def report_differences(path: Path, run: Run, config: Config) -> tuple[list[Difference], list[str]]:
    """(where the reports of the run folder `path` differ from those of this version, what is worth knowing of them)."""
    if not made_here({"fingerprint": run.fingerprint}):
        return [], ["reports are not compared: another source tree words and lays them out otherwise"]
    rendered, differences = report_files(), list[Difference]()
    for file, report in rendered.items():
        if (path / file).is_file():
            stored = as_stored((path / file).read_text(encoding="utf-8", errors="replace"))
            differences += line_differences(file, stored, as_stored(report.render(run, config.policy)))
    missing = sorted(set(run.reports) - rendered.keys())
    return differences, [f"{file} is not compared: the plug-in that renders it is not installed" for file in missing]


def made_here(run: Mapping[str, Any]) -> bool:
    """Return whether this source tree made a run; true where its run.json, `run`, does not tell."""
    fingerprint = run.get("fingerprint")
    tree = fingerprint.get("source_tree_sha256") if isinstance(fingerprint, Mapping) else None
    return tree is None or tree == inventory.source_tree_sha256()


def missing_reports(path: Path, run: Run) -> Iterator[Difference]:
    """Reports that run.json says were written and are gone, and reports that it does not know."""
    for file in run.reports:
        if not (path / file).is_file():
            yield Difference(file, "", "is missing; run.json says that it was written")
    for known in report_files():
        if known not in run.reports and (path / known).is_file():
            yield Difference(known, "", "is there; run.json does not say that it was written")


def foreign_files(path: Path, run: Run) -> Iterator[Difference]:
    """Files that no run writes. Logs are left out: every engine has its own."""
    written = {"config.resolved.yaml", "env.json", "run.json", "gates.json", *JOURNALS, *UNLISTED}
    for file in sorted(plain_files(path) - written - {*report_files(), *run.reports}):
        if not file.startswith("logs/"):
            yield Difference(file, "", "is a file that no run writes")


# ── line by line ─────────────────────────────────────────────────────────────────────────────────────────────────────


def line_differences(file: str, stored: str, again: str) -> Iterator[Difference]:
    """The first line that differs. Of a picture, its text alternative counts."""
    old, new = (_DRAWING.sub(r"\1", text).splitlines() for text in (stored, again))
    for number, (was, is_) in enumerate(zip(old, new, strict=False), 1):
        if not same_line(was, is_):
            yield Difference(file, f"line {number}", f"{short(was)}; recomputed: {short(is_)}")
            return
    if len(old) != len(new):
        yield Difference(file, f"line {min(len(old), len(new)) + 1}", f"{len(old)} lines; recomputed: {len(new)}")


def same_line(was: str, now: str) -> bool:
    """True if two lines of a report agree. Decimal fractions are compared as numbers; see `same_figure`."""
    if was == now:
        return True
    old, new = _DECIMAL.split(was), _DECIMAL.split(now)
    if old[::2] != new[::2]:
        return False
    return all(same_figure(float(a), float(b)) for a, b in zip(old[1::2], new[1::2], strict=True))
