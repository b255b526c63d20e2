"""The view `builds`: what differs between two runs, the verdicts, and every figure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.rows import Row, place
from specgate.analysis.verdict import overall_of_contrast
from specgate.contract import Cell, Run, State, Value, Verdict
from specgate.contract.comparisons import Change, Contrast, How
from specgate.contract.metrics import metric
from specgate.errors import ExitCode
from specgate.reports.common import figures, provenance
from specgate.reports.common.parts import Entry, Table
from specgate.reports.common.summary import about, gravity, worst
from specgate.reports.pictures import effects
from specgate.reports.pictures.effects import Effect
from specgate.reports.sheets.formats import SheetView, Tables
from specgate.reports.sheets.sheet import Ending, Section, Sheet
from specgate.reports.texts.csv import worst as gravest
from specgate.reports.views.differences import Difference, differences

_HASH = re.compile(r"[0-9a-f]{40,}")
UNPAIRED = (
    "Unpaired in time: A and B were measured one after the other, so whatever changed in between is in their times. "
    "The intervals allow for what differs between processes, and for nothing else of that."
)
MEANS = "A and B are geometric means over prompt sets, so that B / A divides them. Each run's own page has medians."
INTERVALS = "Below a change: its 95 % interval. Below a verdict: its reason."
SHORT: Final[Mapping[str, str]] = {
    "speedup_vs_ar_ratio": "speed-up",
    "decode_speedup_ratio": "speed-up",
    "joint_decode_speedup_ratio": "speed-up",
    "step_ms": "step time",
    "p50_e2e_ms": "request time",
    "p50_ttft_ms": "time to first token",
    "acceptance_length": "acceptance length",
}
"""The figures that stand on top → their names there."""


def sheet(contrast: Contrast) -> Sheet:
    """The page: the changes that decide, verdicts, runs, what differs, then every figure of each cell, and tokens."""
    a, b = contrast.a, contrast.b
    differing, means = differences(contrast), any(c.mean_a is not None for c in contrast.changes)
    return Sheet(
        title="Run B against run A",
        subtitle=f"A: {a.id} · B: {b.id}",
        ending=ending(contrast),
        banners=list(banners(contrast)),
        facts=facts(contrast),
        sections=[
            in_short(contrast),
            Section("Verdicts", verdicts(contrast), None if contrast.verdicts else "Nothing was judged."),
            sides(contrast),
            Section("What differs", difference_table(differing), None if differing else "Nothing that is recorded."),
            *(changes(contrast, cell, MEANS if n == 0 and means else None) for n, cell in enumerate(contrast.cells)),
            Section("Tokens", tokens(contrast)),
            *alone(contrast),
        ],
    )


# ── what decides ─────────────────────────────────────────────────────────────────────────────────────────────────────


def in_short(contrast: Contrast) -> Section:
    """The changes that somebody decides by, the gravest verdict first, as a table and as a picture."""
    judged = [(c, verdict_on(contrast, c)) for c in contrast.changes]
    judged = [(c, v) for c, v in judged if c.metric in SHORT or (v is not None and v.required)]
    judged.sort(key=lambda pair: gravity([pair[1]] if pair[1] else ()))
    one_point = len({c.cell.point for c, _ in judged}) == 1
    effects_of = [effect for c, v in judged if (effect := effect_of(c, v, contrast, one_point=one_point)) is not None]
    picture = effects.effects("changes", "Changes from A to B", effects_of)
    head = ("cell", "figure", "A", "B", "change", "verdict")
    return Section(
        "In short",
        Table(head, [short_row(c, v, contrast) for c, v in judged], texts=2),
        INTERVALS if judged else "The two runs have no figure in common.",
        pictures=[picture] if picture.svg else [],
    )


def verdict_on(contrast: Contrast, change: Change) -> Verdict | None:
    """The gravest verdict on a change; None where no rule judges it."""
    about_it = [v for v in contrast.verdicts if v.cell == change.cell.key and v.evidence.get("metric") == change.metric]
    return min(about_it, key=lambda v: (gravity([v]), not v.required), default=None)


def short_row(change: Change, verdict: Verdict | None, contrast: Contrast) -> list[str | Entry]:
    changed = figures.NONE if change.ratio is None else percent(change.ratio)
    note = "unpaired in time" if change.how is How.UNPAIRED and verdict is None else None
    partner = "" if change.partner.role == change.cell.role else f" → {change.partner.role_name}"
    return [
        cell_name(change.cell.key, contrast.b.scenarios) + partner,
        Entry(name_of(change) + (", ms" if metric(change.metric).unit == "ms" else ""), note),
        *both(change),
        Entry(changed, percents(change) or (change.reason_code or "").replace("_", " ") or None),
        "not judged" if verdict is None else judged_as(verdict, verdict.reason_code.replace("_", " ")),
    ]


def name_of(change: Change) -> str:
    """The name of a change's figure on top of the page."""
    return SHORT.get(change.metric, change.metric)


def judged_as(verdict: Verdict, why: str | None = None) -> Entry:
    """The state of a verdict. `why`: its reason in a few words."""
    note = ", ".join(filter(None, (why, None if verdict.required else "advisory")))
    return Entry(verdict.state.value, note or None, advisory=not verdict.required)


def effect_of(change: Change, verdict: Verdict | None, contrast: Contrast, *, one_point: bool) -> Effect | None:
    """The change as a row of the picture; None if it has no ratio. `one_point`: all rows are of one point."""
    if change.ratio is None:
        return None
    up = metric(change.metric).direction == "higher"
    low, high = change.ci_low, change.ci_high
    ends = (low, high) if up or low is None or high is None else (1 / high, 1 / low)
    margin = verdict.evidence.get("margin_pct") if verdict else None
    words = percent(change.ratio) + (", unpaired" if change.how is How.UNPAIRED else "")
    where = str(change.cell.role) if one_point else cell_name(change.cell.key, contrast.b.scenarios)
    return Effect(
        name=f"{where}: {name_of(change)}",
        ratio=change.ratio if up else 1 / change.ratio,
        low=ends[0],
        high=ends[1],
        margin=margin / 100 if isinstance(margin, float) else None,
        said=words,
    )


def percent(ratio: float) -> str:
    """`+2.5 %` for 1.025; three digits where the change is large."""
    return f"{100 * (ratio - 1):+.1f} %"


def percents(change: Change) -> str | None:
    """The interval of a change in percent, without the sign, which stands above it; None if there is none."""
    if change.ci_low is None or change.ci_high is None:
        return None
    low, high = (percent(end).removesuffix(" %") for end in (change.ci_low, change.ci_high))
    return f"{low} … {high}"


def facts(contrast: Contrast) -> list[tuple[str, str]]:
    """(name, value): the policy, then commit, device and driver of both runs; once where they are the same."""
    of_both: dict[str, tuple[str | None, str | None]] = {
        "commit": (provenance.commit(contrast.a), provenance.commit(contrast.b)),
        "device": (provenance.device(contrast.a), provenance.device(contrast.b)),
        "driver": (provenance.driver(contrast.a), provenance.driver(contrast.b)),
    }
    rows = [("policy", contrast.policy)] if contrast.policy else []
    for name, (a, b) in of_both.items():
        if a == b:
            rows += [(f"{name}, both", a)] if a else []
        else:
            rows += [(f"{name} {side}", value or figures.NONE) for side, value in (("A", a), ("B", b))]
    return rows


# ── the comparison as a whole ────────────────────────────────────────────────────────────────────────────────────────


def ending(contrast: Contrast) -> Ending:
    """The state, exit code and reason of the comparison as a whole."""
    state, code = overall_of_contrast(contrast)
    if code is ExitCode.BACKEND_ERROR:
        return Ending(code.name, code, next(cut_short(contrast)))
    culprit = worst(contrast.verdicts)
    if culprit is not None:
        step = f"; next: {culprit.next_step}" if culprit.next_step else ""
        return Ending(state.value, code, f"{about(culprit, contrast.b.scenarios)}: {culprit.message}{step}")
    green = sum(v.required and v.state in (State.PASS, State.IMPROVED) for v in contrast.verdicts)
    words = f"All {green} required verdicts are green." if green else "No required gate judged anything."
    return Ending(state.value, code, words)


def banners(contrast: Contrast) -> Iterator[str]:
    """Yield warnings that a reader of the figures needs."""
    if any(c.how is How.UNPAIRED and c.ratio is not None for c in contrast.changes):
        yield UNPAIRED
    a, b = contrast.a, contrast.b
    if {a.acceptance, b.acceptance} != {"real"}:
        yield (
            f"Acceptance is {a.acceptance} in both."
            if a.acceptance == b.acceptance
            else f"Acceptance is {a.acceptance} in A, {b.acceptance} in B: lengths are not compared."
        )
    yield from cut_short(contrast)
    if any(t.reason_code == "prompts_differ" for t in contrast.tokens):
        yield "The prompts differ: acceptance and tokens depend on them, and neither can be paired."


def cut_short(contrast: Contrast) -> Iterator[str]:
    """Yield a sentence per failure that left blocks of a run missing."""
    for name, run in (("A", contrast.a), ("B", contrast.b)):
        for where, why in run.failures.items():
            yield f"{name} was cut short ({cell_name(where, run.scenarios)}): {why.splitlines()[0]}"


# ── everything ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sides(contrast: Contrast) -> Section:
    rows = [
        [name, run.id, engine_of(run), run.started.replace("T", " ").replace("+00:00", " UTC"), run.status]
        for name, run in (("A", contrast.a), ("B", contrast.b))
    ]
    return Section("Runs", Table(("side", "run", "engine", "started", "status"), rows, texts=5))


def engine_of(run: Run) -> str:
    engine = next(iter(run.engines.values()), None)
    if engine is None:
        return str(run.environment.get("tool", "none was loaded"))
    return f"{engine.backend}, {engine.device}, {engine.dtype}"


def difference_table(differing: Sequence[Difference]) -> Table:
    return Table(("of", "what", "A", "B"), [[d.group, d.key, cut(d.a), cut(d.b)] for d in differing], texts=4)


def cut(text: str) -> str:
    """`text`, shortened: the first 12 digits of a hash, or the first 48 characters of anything else."""
    length = 12 if _HASH.fullmatch(text) else 48
    return (text if len(text) <= length else f"{text[:length]}…") or figures.NONE


def verdicts(contrast: Contrast) -> Table:
    """Every verdict, the gravest first."""
    rows: list[list[str | Entry]] = [
        [
            judged_as(v),
            v.rule,
            cell_name(v.cell, contrast.b.scenarios) if v.cell else figures.NONE,
            Entry(v.message, f"next: {v.next_step}" if v.next_step else None),
        ]
        for v in sorted(contrast.verdicts, key=lambda v: gravity([v]))
    ]
    return Table(("verdict", "rule", "cell", "because"), rows, texts=4)


def changes(contrast: Contrast, cell: Cell, note: str | None) -> Section:
    """Every figure of one cell. `note`: what to know to read it."""
    rows = [change_row(c) for c in contrast.changes if c.cell == cell]
    head = ("figure", "A", "B", "B / A", "95 % interval", "rests on")
    why = note if rows else "Neither run has a figure of this cell."
    return Section(cell_name(cell.key, contrast.b.scenarios), Table(head, rows), why, folded=True)


def change_row(change: Change) -> list[str | Entry]:
    span = figures.ends(change.ci_low, change.ci_high)
    return [
        change.metric,
        *both(change),
        figures.NONE if change.ratio is None else f"{change.ratio:.3f}×",
        Entry(span, f"n = {change.n}{assumed(change)}")
        if span
        else Entry(figures.NONE, (change.reason_code or "").replace("_", " ")),
        change.how.value,
    ]


def assumed(change: Change) -> str:
    """In which runs the spread between processes is assumed and not measured; empty where it is in neither."""
    sides = [(name, spread) for name, spread in zip("AB", change.between or (), strict=False)]
    names = [name for name, spread in sides if spread.process_freedom is None]
    sd = max((spread.process_sd for _, spread in sides if spread.process_freedom is None), default=0.0)
    return f"; process to process {100 * sd:.2g} % assumed in {' and '.join(names)}" if names else ""


def both(change: Change) -> tuple[str, str]:
    """The figures of A and B that the ratio divides; without a ratio, those that the runs state."""
    stated = (change.a, change.b) if change.mean_a is None else (change.mean_a, change.mean_b)
    a, b = (shown(change.metric, value) for value in stated)
    return a, b


def shown(name: str, value: float | None) -> str:
    return figures.figure(Value(name, value))


def tokens(contrast: Contrast) -> Table:
    rows = [
        [
            cell_name(t.cell.key, contrast.b.scenarios),
            "not compared" if t.reason_code else f"{t.differing} differ" if t.differing else "all the same",
            f"{t.compared_tokens:,}",
            str(t.sequences),
            figures.NONE if t.first is None else str(t.first),
            (t.reason_code or "").replace("_", " ") or figures.NONE,
        ]
        for t in contrast.tokens
    ]
    return Table(("cell", "sequences of B", "tokens", "sequences", "first at", "why not"), rows, texts=2)


def alone(contrast: Contrast) -> Iterator[Section]:
    """The cells that only one of the two runs has."""
    rows = [[name, cell_name(c.key)] for name, cells in (("A", contrast.only_a), ("B", contrast.only_b)) for c in cells]
    if rows:
        yield Section("Cells without a partner", Table(("only in", "cell"), rows, texts=2))


def rows(contrast: Contrast) -> Iterator[Row]:
    """Yield a row per cell and figure."""
    a, b = contrast.a, contrast.b
    for change in contrast.changes:
        about_it = (v for v in contrast.verdicts if v.cell == change.cell.key)
        verdict = gravest(v for v in about_it if v.evidence.get("metric") == change.metric)
        yield {
            "run_a": a.id,
            "run_b": b.id,
            "kind": a.kind,
            **place(change.cell),
            "backend_b": change.partner.point.backend,
            "metric": change.metric,
            "unit": metric(change.metric).unit,
            "direction": metric(change.metric).direction,
            "how": change.how.value,
            **{name: getattr(change, name) for name in ("a", "b", "ratio", "ci_low", "ci_high", "n")},
            "acceptance_a": a.acceptance,
            "acceptance_b": b.acceptance,
            "verdict": verdict.state.value if verdict else None,
            "reason_code": change.reason_code,
            "mean_a": change.mean_a,
            "mean_b": change.mean_b,
        }


def tables(contrast: Contrast) -> Tables:
    """Return every figure, then the tokens, the verdicts, and what else differs."""
    return {
        "figures": rows(contrast),
        "tokens": ({**asdict(t), "cell": t.cell.key} for t in contrast.tokens),
        "verdicts": map(asdict, contrast.verdicts),
        "differences": map(asdict, differences(contrast)),
    }


VIEW = SheetView("builds", sheet, tables)
