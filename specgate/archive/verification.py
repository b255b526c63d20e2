"""Check a run folder offline: its manifest first, then every figure, verdict and table, recomputed from the samples.

Recomputed are `run.json` (cells, comparisons, engines, verdicts, warnings and whatever else follows from `samples/`),
`gates.json`, and every report. Taken as given are the samples themselves, the environment, the hashes of the prompts
and the times of the run. The manifest vouches for these, and so does the hash of the manifest that the ledger holds, if
the ledger lies beside the run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from specgate import plugins
from specgate.core import Plan, Run
from specgate.errors import ExitCode, InvalidResult, SpecgateError
from specgate.files.config import Config
from specgate.files.json_text import read_json
from specgate.files.plain import to_plain
from specgate.files.redaction import masked_data
from specgate.files.run_folder import LATER_FIELDS, SCHEMA, SCHEMA_VERSION, RunFolder
from specgate.files.writing import as_json, as_stored, sha256_of, without_home
from specgate.machine import inventory
from specgate.planning.plan import build_plan
from specgate.promotion.ledger import Entry, Ledger
from specgate.run import early_stop
from specgate.run.recompute import ending, judge, judgement, speculation_blocks, with_figures

MANIFEST: Final = "MANIFEST.sha256"
UNLISTED: Final = {MANIFEST, ".lock"}
"""Files of a run folder that the manifest does not list."""
_DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)
"""Pictures are not compared: another version of the plotting library draws them differently, and their figures are in
the tables too.
"""
_DECIMAL = re.compile(r"(-?\d+\.\d+(?:e[+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in a file that is not what it should be. An empty `place` stands for the whole file."""

    file: str
    place: str
    why: str
    absent: bool = False
    """Whether the file stores nothing there, or null."""

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.why}" if self.place else f"{self.file}: {self.why}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What checking a run folder found.

    `run`: the run as it was recomputed, or None if it could not be. `files`: how many files the manifest lists.
    `notes`: what is no contradiction, but worth knowing.
    """

    run: Run | None
    files: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def verify(path: Path) -> Verification:
    """Check the run folder `path`. Nothing in it is written. Raises UsageError if it is not a run folder."""
    folder = RunFolder.open(path, read_only=True)
    differences = list(manifest_differences(path))
    notes: list[str] = []
    run: Run | None = None
    listed = path / MANIFEST
    files = len(listings(listed)) if listed.is_file() else 0
    if grounds := [d.file for d in differences if d.file == "config.resolved.yaml" or d.file.startswith("samples/")]:
        notes.append(f"figures were not recomputed, since their grounds were changed: {', '.join(grounds)}")
        return Verification(None, files, tuple(differences), tuple(notes))
    try:
        run, plan, config = recompute(folder)
        differences += result_differences(folder, run, plan, config)
        if blind := unclocked(path):
            notes.append(
                f"the engine's clock was not checked in {blind} blocks: they were stored without the harness's"
            )
        reports = list(report_differences(path, run, config))
        if run.fingerprint.get("source_tree_sha256") == inventory.source_tree_sha256():
            differences += reports
        else:
            notes.append("the run was made by another source tree: check that one out if figures differ")
            # Another version may word and lay out a report differently. Its figures are checked in run.json.
            notes += [f"{d.file} is not as this source tree would write it (from {d.place} on)" for d in reports]
        differences += ledger_differences(path, run, config)
    except (SpecgateError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        differences.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
    return Verification(run, files, tuple(differences), tuple(notes))


# ── the manifest ─────────────────────────────────────────────────────────────────────────────────────────────────────


def manifest_differences(path: Path) -> Iterator[Difference]:
    """Files that are missing, changed, or not listed, by the manifest of the run folder."""
    file = path / MANIFEST
    if not file.is_file():
        yield Difference(MANIFEST, "", "is missing: the run never ended (continue it with --resume), or it was removed")
        return
    listed = listings(file)
    present = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} - UNLISTED
    for name, sha256 in listed.items():
        if name not in present:
            yield Difference(name, "", f"is missing; {MANIFEST} lists it")
        elif (found := sha256_of(path / name)) != sha256:
            yield Difference(name, "", f"its SHA-256 is {found}; {MANIFEST} says {sha256}")
    for name in sorted(present - listed.keys()):
        yield Difference(name, "", f"is not in {MANIFEST}")


def listings(file: Path) -> dict[str, str]:
    """File name → SHA-256, in the format of sha256sum."""
    rows = (line.partition("  ") for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
    return {name: sha256 for sha256, _, name in rows}


def ledger_differences(path: Path, run: Run, config: Config) -> Iterator[Difference]:
    """Where the run's entry in the ledger beside it contradicts the run. Nothing if the ledger has no such entry."""
    try:
        entry = last_entry(path, run)
    except InvalidResult as error:
        yield Difference("../ledger.jsonl", "", str(error))
        return
    if entry is None:
        return
    where = f"../ledger.jsonl ({entry.run})"
    found = sha256_of(path / MANIFEST) if (path / MANIFEST).is_file() else None
    if found != entry.manifest_sha256:
        yield Difference(where, "manifest_sha256", f"{entry.manifest_sha256}; {MANIFEST} has {found}")
    if "run" in run.failures:
        return  # the run was stopped, and the ledger has the exit code of what stopped it
    _, code = ending(run, None)
    if entry.exit_code != code:
        yield Difference(where, "exit_code", f"{entry.exit_code}; recomputed: {int(code)}")


def last_entry(path: Path, run: Run) -> Entry | None:
    """The last entry of the run in the ledger beside its folder, or None."""
    entries = Ledger(path.absolute().parent).read().entries
    return next((e for e in reversed(entries) if e.run == run.id), None)


# ── what follows from the samples ────────────────────────────────────────────────────────────────────────────────────


def recompute(folder: RunFolder) -> tuple[Run, Plan, Config]:
    """The run with figures and verdicts computed anew from its samples, its plan without rounds that were not run
    because a point stopped early, and its configuration.
    """
    config = folder.read_config()
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    stored = replace(folder.read_run(), scenarios=config.scenarios, pair=config.pair, kind=config.kind)
    run = judge(with_figures(stored, plan, config.policy, folder.journal()), config.policy)
    if stored.files:  # a run that never ended, or that an older version wrote, has none
        run = replace(run, files=folder.evidence_hashes())
    return run, early_stop.truncated_plan(plan, run.ended_early), config


def unclocked(path: Path) -> int:
    """How many blocks of a run folder have no time by the harness's clock; an old version stored none."""
    with (path / "samples" / "blocks.jsonl").open(encoding="utf-8", errors="replace") as lines:
        return sum(json.loads(line).get("span_ns") is None for line in lines)


def result_differences(folder: RunFolder, run: Run, plan: Plan, config: Config) -> Iterator[Difference]:
    """Where run.json, gates.json and env.json are not what was recomputed."""
    stored = stored_json(folder.path / "run.json")
    version, later = later_fields(stored)
    again = {
        "schema": SCHEMA,
        "schema_version": version,
        **to_plain(Run, run),
        "eagle_speculation": speculation_blocks(run, plan, folder.journal()),
    }
    found = differences_of("run.json", stored, again)
    yield from (d for d in found if not (d.absent and any(fnmatchcase(d.place, pattern) for pattern in later)))
    if run.fingerprint.get("config_sha256") != config.digest:
        why = f"{run.fingerprint.get('config_sha256')}; config.resolved.yaml gives {config.digest}"
        yield Difference("run.json", "fingerprint.config_sha256", why)
    if run.status == "complete" and (wanting := [c.cell.key for c in run.cells if c.status != "ok"]):
        yield Difference("run.json", "status", f"complete; recomputed: {', '.join(wanting)} is not")
    gates = stored_json(folder.path / "gates.json")
    # What stopped a run does not follow from its samples, so the stored exit code is taken.
    end = ending(run, None) if "run" not in run.failures else ("not reached", stated_code(gates))
    yield from differences_of("gates.json", gates, judgement(run, config.policy, end))
    yield from differences_of("env.json", stored_json(folder.path / "env.json"), run.environment)


def later_fields(stored: object) -> tuple[str, list[str]]:
    """The schema version that the stored run.json states, and patterns of the places that later versions added.

    If it states no known version, the current one is returned.
    """
    version = stored.get("schema_version") if isinstance(stored, dict) else None
    known = ["1.0.0", *LATER_FIELDS]
    if version not in known:
        return SCHEMA_VERSION, []
    newer = known[known.index(version) + 1 :]
    return version, [pattern for name in newer for pattern in LATER_FIELDS[name]]


def stated_code(gates: object) -> ExitCode:
    """The exit code that gates.json states for a run that was stopped; INTERNAL if that is not a code of such a run."""
    code = gates.get("exit_code") if isinstance(gates, dict) else None
    stopping = {ExitCode(c) for c in ExitCode if c not in (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE)}
    return ExitCode(code) if code in stopping else ExitCode.INTERNAL


def report_differences(path: Path, run: Run, config: Config) -> Iterator[Difference]:
    """The first line of every stored report that differs when the report is rendered again."""
    for name in plugins.registered("specgate.reports"):
        report = plugins.report(name)
        if report.filename is None or not (path / report.filename).is_file():
            continue
        stored = (path / report.filename).read_text(encoding="utf-8", errors="replace")
        yield from line_differences(report.filename, as_stored(stored), as_stored(report.render(run, config.policy)))


def line_differences(file: str, stored: str, again: str) -> Iterator[Difference]:
    """The first line that differs."""
    old, new = (_DRAWING.sub("<svg/>", text).splitlines() for text in (stored, again))
    for number, (was, is_) in enumerate(zip(old, new, strict=False), 1):
        if not same_line(was, is_):
            yield Difference(file, f"line {number}", f"{_short(was)}; recomputed: {_short(is_)}")
            return
    if len(old) != len(new):
        yield Difference(file, f"line {min(len(old), len(new)) + 1}", f"{len(old)} lines; recomputed: {len(new)}")


def same_line(was: str, now: str) -> bool:
    """Whether two lines of a report agree. Decimal fractions are compared as numbers; see `same_figure`."""
    if was == now:
        return True
    old, new = _DECIMAL.split(was), _DECIMAL.split(now)
    return old[::2] == new[::2] and all(
        same_figure(float(a), float(b)) for a, b in zip(old[1::2], new[1::2], strict=True)
    )


def same_figure(was: float, now: float) -> bool:
    """Whether two figures agree but for rounding: on another machine, linear algebra may add in another order."""
    return math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-12)


def stored_json(file: Path) -> object:
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise InvalidResult(f"{file.name}: not readable as JSON: {error}") from error


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
            else:
                yield from _differing(file, inner, was[key], now[key])
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differing(file, f"{place}[{i}]", old, new)
    elif isinstance(was, float) and isinstance(now, float):
        if not same_figure(was, now):
            yield Difference(file, place, f"{_short(was)}; recomputed: {_short(now)}")
    elif type(was) is not type(now) or was != now:
        yield Difference(file, place, f"{_short(was)}; recomputed: {_short(now)}", absent=was is None)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
