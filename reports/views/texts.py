"""The view `texts`: several engines' texts and acceptance beside a reference's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from specgate.analysis.cell_names import cell_name
from specgate.analysis.rows import Row, place
from specgate.analysis.verdict import overall_of_agreement
from specgate.contract import Divergence, State
from specgate.contract.comparisons import Agreement, Match
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry, Table
from specgate.reports.sheets.formats import SheetView, Tables
from specgate.reports.sheets.sheet import Ending, Section, Sheet
from specgate.reports.views.engines import engine_table, facts

SHOWN_DIVERGENCES = 50
CUT = "Chains end with the request: the reference is counted as if its did too."


def sheet(agreement: Agreement) -> Sheet:
    """The page: engines, acceptance, texts, and where texts differ."""
    reference, *others = agreement.sides
    drafting = [m for m in agreement.matches if m.cell.role.speculative]
    return Sheet(
        title="Engines beside a reference",
        subtitle=f"{', '.join(s.label for s in others)} beside {reference.label}",
        ending=ending(agreement),
        banners=list(banners(agreement)),
        sections=[
            Section("Engines", engine_table(agreement.sides)),
            Section(
                "Acceptance",
                Table(SHARE_HEAD, [row for m in drafting for row in share_rows(m)], texts=3),
                "Of steps with a draft, on prompts whose texts are the same in both. accepted[i]: the share of steps "
                "that accepted draft i.",
            ),
            Section("Texts", Table(TEXT_HEAD, [text_row(m) for m in agreement.matches], texts=2)),
            *divergences(agreement),
        ],
    )


def ending(agreement: Agreement) -> Ending:
    state, code = overall_of_agreement(agreement)
    if state is State.PASS:
        return Ending(state.value, code, f"Same texts but for near ties; acceptance within {agreement.margin_pct:g} %.")
    return Ending(state.value, code, next(reasons(agreement, state), "nothing was compared."))


def reasons(agreement: Agreement, state: State) -> Iterator[str]:
    """A sentence for everything that is in `state`, which is the gravest state of the comparison."""
    yield from (f"{side.label} was cut short: {side.cut_short}" for side in agreement.sides if side.cut_short)
    for match in agreement.matches:
        where = f"{match.label}, {cell_name(match.cell.key)}"
        if match.tokens is state:
            differing = f"texts differ in {match.prompt_sets - match.alike} of {match.prompt_sets} prompt sets"
            yield f"{where}: {match.why_not or differing}."
        for share in match.shares:
            if share.state is state:
                ends = figures.ends(share.ci_low, share.ci_high) or figures.NONE
                yield (
                    f"{where}: {share.name} is {share.engine:.3f}, the reference's {share.reference:.3f}; 95 % "
                    f"interval of the ratio {ends}, {agreement.margin_pct:g} % either way are let through."
                )


def banners(agreement: Agreement) -> Iterator[str]:
    """Yield warnings: those of engines, other weights, and shortened chains."""
    reference, *others = agreement.sides
    for side in others:
        yield from side.warnings
        for what in ("target", "draft"):
            name = f"{what}_sha256"
            if getattr(side.engine, name, None) != getattr(reference.engine, name, None):
                yield f"{side.label} has another {what} than {reference.label}."
    if any(m.cut for m in agreement.matches):
        yield CUT


SHARE_HEAD = ("cell", "engine", "figure", "reference", "engine's", "ratio", "95 % interval", "verdict")


def share_rows(match: Match) -> Iterator[list[str | Entry]]:
    for share in match.shares:
        yield [
            cell_name(match.cell.key),
            Entry(match.label, f"{match.alike} of {match.prompt_sets} prompt sets" + (", cut" if match.cut else "")),
            share.name,
            f"{share.reference:.3f}",
            f"{share.engine:.3f}",
            figures.NONE if share.ratio is None else f"{share.ratio:.3f}×",
            figures.ends(share.ci_low, share.ci_high) or figures.NONE,
            share.state.value,
        ]
    if not match.shares:
        reason = match.why_not or "no steps with a draft on texts that are the same"
        yield [cell_name(match.cell.key), match.label, Entry(figures.NONE, reason), *[figures.NONE] * 5]


TEXT_HEAD = ("cell", "engine", "prompt sets alike", "tokens compared", "differ", "near ties", "verdict")


def text_row(match: Match) -> list[str | Entry]:
    ties = sum(d.near_tie for d in match.divergences)
    return [
        cell_name(match.cell.key),
        match.label,
        Entry(f"{match.alike} of {match.prompt_sets}", match.why_not),
        f"{match.compared_tokens:,}",
        str(len(match.divergences) - ties),
        str(ties),
        match.tokens.value,
    ]


def divergences(agreement: Agreement) -> Iterator[Section]:
    rows = [divergence_row(m, d) for m in agreement.matches for d in m.divergences]
    if rows:
        head = ("cell", "engine", "prompt set", "round", "slot", "position", "reference", "engine's", "top-2 margin")
        yield Section("Where texts part", Table(head, rows[:SHOWN_DIVERGENCES], texts=2), MARGINS)


MARGINS = "Margins are the gap between the reference's two largest logits at that place."


def divergence_row(match: Match, d: Divergence) -> list[str | Entry]:
    places = (d.prompt_set, d.round, d.slot, d.position, d.expected, d.got)
    margin = "unknown" if d.margin is None else f"{d.margin:.2g}"
    return [
        cell_name(match.cell.key),
        match.label,
        *map(str, places),
        Entry(margin, "near tie" if d.near_tie else None),
    ]


def rows(agreement: Agreement) -> Iterator[Row]:
    """Yield a row for the tokens of each cell, and one per figure."""
    runs = {side.label: side.run.id for side in agreement.sides}
    for match in agreement.matches:
        ties = sum(d.near_tie for d in match.divergences)
        about: Row = {
            "reference": agreement.sides[0].label,
            "engine": match.label,
            "run_id": runs[match.label],
            **place(match.cell),
            "prompt_sets": match.prompt_sets,
            "alike": match.alike,
            "compared_tokens": match.compared_tokens,
            "differing": len(match.divergences) - ties,
            "near_ties": ties,
            "why_not": match.why_not,
        }
        empty = dict.fromkeys(("reference_value", "value", "ratio", "ci_low", "ci_high"))
        yield {**about, "figure": "tokens", **empty, "state": match.tokens.value}
        for share in match.shares:
            yield {
                **about,
                "figure": share.name,
                "reference_value": share.reference,
                "value": share.engine,
                "ratio": share.ratio,
                "ci_low": share.ci_low,
                "ci_high": share.ci_high,
                "state": share.state.value,
            }


def tables(agreement: Agreement) -> Tables:
    """Return every figure, then the engines, and where texts differ."""
    parted = ((match, d) for match in agreement.matches for d in match.divergences)
    return {
        "figures": rows(agreement),
        "engines": map(facts, agreement.sides),
        "divergences": ({"engine": match.label, **place(match.cell), **asdict(d)} for match, d in parted),
    }


VIEW = SheetView("texts", sheet, tables)
