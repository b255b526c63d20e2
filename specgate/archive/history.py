"""Follow figures over many stored runs.

Only figures that rest on the same facts are put into one series: the same machine, weights, prompts and settings. In
code and reports these facts are called the group of a figure. Where weights are known by their hashes, the name of the
pair is no part of it: the same files may be found under two names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specgate.archive.stored_runs import StoredRun, load_run
from specgate.contract import Cell, CellResult, Run, Scenario, Value
from specgate.contract.comparisons import Reading, Series, Trends
from specgate.errors import SpecgateError, UsageError
from specgate.promotion.claim import digests, subject_of

FOLLOWED = (
    *("speedup_vs_ar_ratio", "decode_speedup_ratio", "acceptance_length", "output_tok_s", "decode_tok_s"),
    *("p50_ttft_ms", "joint_decode_speedup_ratio", "joint_decode_tok_s"),
)
"""Figures that are followed."""


def trends_of(folder: Path) -> Trends:
    """The trends over all runs at or below `folder`.

    A run that cannot be read is left out, and `unread` says why. Raises UsageError if there is no run folder at all.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="give the folder that holds run folders")
    stored: list[StoredRun] = []
    unread: list[str] = []
    for config in sorted(folder.rglob("config.resolved.yaml")):
        try:
            stored.append(load_run(config.parent))
        except SpecgateError as error:
            unread.append(error.message)
    if not stored and not unread:
        raise UsageError(f"{folder} holds no run folder", hint="give the folder that holds run folders")
    once = {one.run.id: one for one in stored}  # a run that was copied counts once
    ordered = sorted(once.values(), key=lambda one: (one.run.started, one.run.id))
    groups = {name: facts for one in ordered for c in one.run.cells for name, facts in [group_of(one, c.cell)]}
    return Trends(tuple(one.run for one in ordered), tuple(series(ordered)), groups, tuple(unread))


def series(stored: Sequence[StoredRun]) -> Iterator[Series]:
    """One series per group, cell and followed metric. `stored`: oldest first."""
    readings_by_key: dict[tuple[str, Cell, str], list[Reading]] = {}
    for place, one in enumerate(stored):
        for result in one.run.cells:
            name, _ = group_of(one, result.cell)
            for value in followed(one.run, result):
                if value.value is not None:
                    reading = Reading(place, value.value, value.ci_low, value.ci_high)
                    readings_by_key.setdefault((name, result.cell, value.metric), []).append(reading)
    for (name, cell, metric), readings in sorted(readings_by_key.items(), key=order):
        yield Series(cell, metric, name, tuple(readings))


def followed(run: Run, result: CellResult) -> Iterator[Value]:
    """The figures of a cell that are followed. None of them if the cell is incomplete."""
    if result.status == "ok":
        comparison = run.comparison(result.cell.key)
        ratios = (comparison.speedup, *comparison.beside) if comparison else ()
        values = {**result.values, **{ratio.metric: ratio for ratio in ratios}}
        yield from (values[name] for name in FOLLOWED if name in values)


def order(item: tuple[tuple[str, Cell, str], object]) -> tuple[object, ...]:
    name, cell, metric = item[0]
    point = cell.point
    return point.scenario, point.backend, point.context, point.batch, name, FOLLOWED.index(metric), cell.role.k


def group_of(stored: StoredRun, cell: Cell) -> tuple[str, Mapping[str, str]]:
    """The group of a cell's figures: (name, facts). The name is the first 8 digits of the SHA-256 of the facts."""
    run, point = stored.run, cell.point
    engine, scenario = run.engines.get(point.key), run.scenarios.get(point.scenario)
    facts: dict[str, object] = {
        "back end": point.backend,
        "options": subject_of(stored.config)["options"] or None,
        "device": engine.device if engine else None,
        "CPU": nested(run.environment, "host", "cpu"),
        "dtype": engine.dtype if engine else None,
        "pair": None if engine and engine.target else run.pair.name,
        "target": engine.target if engine else None,
        "draft": engine.draft_sha256 if engine else None,
        "tape": engine.tape_sha256 if engine else None,
        "acceptance": run.acceptance,
        "prompts": nested(run.prompts, point.key, "sha256"),
        "scenario": scenario_digest(scenario, named=not (engine and engine.target)) if scenario else None,
    }
    stated = {name: str(value) for name, value in facts.items() if value is not None}
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:8], stated


def scenario_digest(scenario: Scenario, *, named: bool) -> str:
    """SHA-256 of what a scenario measures. `named`: whether the name of its pair belongs to it."""
    return digests([scenario if named else replace(scenario, pair="")])[scenario.name]


def nested(facts: Mapping[str, object], *path: str) -> object:
    """The value under a path of keys, or None if one of the keys is missing."""
    value: object = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
