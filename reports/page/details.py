"""Details of the page, and the gaps in what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.environment_diff import flat
from specgate.contract import Run
from specgate.reports.common import machine, memory, provenance, summary, tables
from specgate.reports.common.figures import NONE
from specgate.reports.common.parts import Picture, Table
from specgate.reports.page.points import Section
from specgate.reports.texts.explain import bandwidth_line

FILES: Final[Mapping[str, str]] = {
    "run.json": "the whole result",
    "gates.json": "policy and verdicts",
    "summary.csv": "one row per cell",
    "metrics.csv": "one row per value",
    "config.resolved.yaml": "what was asked, resolved",
    "env.json": "the machine",
    "samples/blocks.jsonl": "every block: tokens, accept counts, times",
    "samples/environment.jsonl": "what the machine did meanwhile",
    "samples/engines.jsonl": "what the engines said of themselves",
    "samples/margins.jsonl": "top-2 logits where tokens diverged",
    "samples/texts.jsonl": "the baseline's texts, as long as the longest spec text",
    "samples/logits.jsonl": "digests of logits at drawn positions, per role",
    "samples/rescored.jsonl": "what a second engine says of drawn tokens",
    "samples/followed.jsonl": "how plain decoding goes on from texts that left the baseline's",
    "samples/draws.jsonl": "texts drawn for their distribution",
    "samples/answers.jsonl": "what was answered to questions with a known answer",
    "samples/starts.jsonl": "when engines were started, and how long that took",
    "samples/ends.jsonl": "points whose time was spent",
    "samples/traces.jsonl": "what a profiler saw of one block per cell",
    "MANIFEST.sha256": "hashes of all files",
}
"""File of a run folder → what it holds."""
_AFTER_THE_PAGE: Final = ("run.json", "summary.csv", "metrics.csv", "MANIFEST.sha256")


NO_SANDBOX: Final = (
    "none: code of the engine could read and rewrite this run, disturb other processes, and change what the second "
    "engine loads. --isolate holds it"
)


def details(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, rows) of every list that the page shows folded. Points with the same engine share one list."""
    engines: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for key, engine in run.engines.items():
        stated = {name: value for name, value in asdict(engine).items() if value is not None}
        engines.setdefault(tuple(flat(stated)), []).append(cell_name(key, run.scenarios))
    return [
        ("Provenance", provenance_of(run)),
        ("Fingerprint", list(flat(run.fingerprint))),
        *((f"Engine of {', '.join(names)}", list(rows)) for rows, names in engines.items()),
        *((f"Prompts of {cell_name(key, run.scenarios)}", list(flat(about))) for key, about in run.prompts.items()),
        *([("Memory bandwidth", [("read", bandwidth_line(run.bandwidth))])] if run.bandwidth else []),
        ("Environment", list(flat(run.environment))),
    ]


def provenance_of(run: Run) -> list[tuple[str, str]]:
    """Return (name, value) of the engine's build and settings, of specgate itself, and of the run."""
    engine = next(iter(run.engines.values()), None)
    rows = [*provenance.engine(run), *([("back end", engine.backend), ("dtype", engine.dtype)] if engine else [])]
    rows += [("driver", driver)] if (driver := provenance.driver(run)) else []
    rows += [("specgate", f"{run.tool_version}, {provenance.source(run)}"), ("run", run.id), ("status", run.status)]
    rows.append(("sandbox", run.fingerprint.get("sandbox") or NO_SANDBOX))
    return rows


def changes(run: Run) -> Table:
    """Return the differences from the last green run, in fingerprint and environment."""
    differences = (run.last_green.differences if run.last_green else None) or ()
    rows = [[key, then or NONE, now or NONE] for key, then, now in differences]
    return Table(("what", "then", "now"), rows, texts=3)


def files(run: Run) -> list[tuple[str, str, str | None]]:
    """(file, what it holds, its SHA-256) of the files in the run folder.

    The hash is None for a file that is written after this page. A run that was stored without hashes is assumed to have
    every file.
    """
    there = {*run.files, *_AFTER_THE_PAGE} if run.files else FILES
    return [(name, what, run.files.get(name)) for name, what in FILES.items() if name in there]


def empty_sections(run: Run, together: Sequence[Picture]) -> dict[str, tuple[str, str]]:
    """Id of a section that is empty → (its name, why it is). `together`: the pictures of all cells."""
    compared = sum(c.tokens.compared_tokens for c in run.comparisons)
    green = run.last_green
    forced = "acceptance was forced, so the tokens of spec blocks are wrong by design"
    why: Mapping[str, tuple[str, str | None]] = {
        "gates": ("Gates", None if run.verdicts else "nothing has been judged"),
        "cells": ("Cells", None if run.cells else "the plan has no cell"),
        "machine": (
            "The machine",
            None
            if machine.sentences(run) or machine.clocks(run).rows or memory.table(run).rows
            else "no round was set aside, no GPU's highest clock was read, and no CPU was seen to be slow",
        ),
        "speed": (
            "Speed, all cells",
            None if any(p.svg for p in together) else "no pair of blocks whose speed may be quoted",
        ),
        "tokens": (
            "Tokens",
            None if compared else forced if run.acceptance == "forced" else "no pair of blocks to compare",
        ),
        "loops": ("Loops", None if tables.loops(run).rows else "no text was generated"),
        "perf-mode": (
            "PERF_MODE",
            None if tables.certificates(run).rows else "no scenario of this run asks for PERF_MODE",
        ),
        "order": (
            "Micro gates",
            "no micro gates come before a load run"
            if run.kind == "load"
            else None
            if summary.advances(run)
            else "this run is none of the policy's micro gates"
            if run.promotion
            else "this run was stored without its place in the order micro → full",
        ),
        "changes": (
            "Since the last green run",
            "the ledger beside this run knows no earlier green run of this kind"
            if green is None
            else f"the last green run, {green.run} of {green.time}, can no longer be read"
            if green.differences is None
            else None
            if changes(run).rows
            else f"nothing changed, fingerprint and environment are those of {green.run} of {green.time}",
        ),
    }
    return {id_: (name, reason) for id_, (name, reason) in why.items() if reason is not None}


def gaps(empty: Mapping[str, tuple[str, str]], together: Sequence[Picture], sections: Sequence[Section]) -> list[str]:
    """A sentence for everything that the page leaves out: sections, then pictures. `together`: those of all cells."""
    sentences = [f"{name}. Left out: {why}." for name, why in empty.values()]
    if "speed" not in empty:
        sentences += [f"{picture.name}. {picture.caption}" for picture in together if not picture.svg]
    for section in sections:
        sentences += [f"{section.name}: {p.name}. {p.caption}" for p in section.pictures if not p.svg]
    return sentences
