"""Parts of report.html that a run has no data for, with reasons. They are listed at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specgate.contract import Run
from specgate.reports.common import machine, memory, summary, tables
from specgate.reports.common.parts import Picture
from specgate.reports.page.details import changes
from specgate.reports.page.points import Section


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
