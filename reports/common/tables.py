"""The tables of report.html: pure functions from a run to texts. The template adds the markup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specgate.analysis.cell_names import cell_name
from specgate.analysis.grouping import grouped
from specgate.contract import CellResult, Comparison, Held, Point, Policy, Run, State, Value, Verdict
from specgate.contract.metrics import metric
from specgate.reports.common import figures
from specgate.reports.common.parts import Entry as Entry
from specgate.reports.common.parts import Table
from specgate.reports.common.summary import QUIET, acceptance_label, cell_note, gravity


@dataclass(frozen=True, slots=True)
class Group:
    """The cells of one point and of its variants, with the question that its scenario asks."""

    title: str
    question: str
    rows: Sequence[Sequence[Entry]]


def title(run: Run, point: Point, *, variants: bool = False) -> str:
    """Return the name of a point, with the source of acceptance if that is not a trained pair. With `variants` all
    variants of the point share it.
    """
    name = cell_name(point.key_in(point.unvaried) if variants else point.key, run.scenarios)
    return " · ".join(part for part in (name, acceptance_label(run)) if part)


# ── cells ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CELL_HEAD = (
    *("role", "acceptance length", "drafts accepted", "tok/s", "ms/token", "ms/step"),
    *("speed-up", "tokens", "repeats", "blocks"),
)


def cell_groups(run: Run) -> list[Group]:
    of = grouped(run.cells, lambda result: replace(result.cell.point, scenario=result.cell.point.unvaried))
    return [
        Group(
            title(run, results[0].cell.point, variants=any(r.cell.point != results[0].cell.point for r in results)),
            run.scenarios[results[0].cell.point.scenario].question,
            [cell_row(run, r) for r in results],
        )
        for results in of.values()
    ]


def cell_row(run: Run, result: CellResult) -> list[Entry]:
    comparison = run.comparison(result.cell.key)
    values = result.values
    return [
        Entry(result.cell.role_name, cell_note(run, result)),
        _entry(values.get("acceptance_length")),
        _entry(values.get("draft_acceptance_rate")),
        *(_entry(figures.first(result, *names)) for names in (figures.SPEED, figures.PER_TOKEN, ("step_ms",))),
        speedup_entry(comparison.speedup if comparison else None, figures.others(run, comparison)),
        tokens_entry(run, comparison),
        _entry(values.get("repeated_8gram_share")),
        Entry(str(result.blocks)),
    ]


def _entry(value: Value | None) -> Entry:
    return Entry(figures.figure(value), figures.reason(value) or figures.span(value))


def speedup_entry(value: Value | None, others: str | None = None) -> Entry:
    """A speed-up over the baseline, marked where the whole interval lies below 1. `others`: what is known of prompts
    like these, in words.
    """
    entry = _entry(value)
    note = "\n".join(filter(None, (entry.note, others)))
    if value is None or value.value is None or value.ci_high is None or value.ci_high >= 1:
        return Entry(entry.text, note or None)
    return Entry(entry.text, f"{note}\nslower than baseline", mark="slower")


def tokens_entry(run: Run, comparison: Comparison | None) -> Entry:
    if comparison is not None and run.acceptance == "forced":
        return Entry(figures.NONE, "forced")
    if comparison is None or not comparison.tokens.compared_tokens:
        return Entry(figures.NONE)
    check = comparison.tokens
    ties = len(check.divergences) - len(check.mismatches)
    some = f"{check.compared_tokens:,} of {check.emitted_tokens:,}"
    note = f"{some if check.compared_tokens < check.emitted_tokens else f'all {check.emitted_tokens:,}'} compared"
    if check.lossy and check.equal_share is not None:
        return Entry(f"{check.equal_share:.1%} equal", f"lossy; {len(check.divergences)} texts differ")
    if check.mismatches:
        return Entry(f"{len(check.mismatches)} differ", note)
    if ties:
        return Entry(f"{ties} near tie{'s' * (ties > 1)}", note)
    result = run.result(comparison.cell.key)
    return Entry("texts equal" if result and "answers_as_texts" in result.values else "all equal", note)


# ── PERF_MODE ────────────────────────────────────────────────────────────────────────────────────────────────────────

INVARIANTS = {
    "I1": "no fall-back kernel",
    "I2": "tuned",
    "I3": "multi-token",
    "I4": "cache intact",
    "I5": "per slot",
    "I6": "quiet loop",
    "I7": "deterministic",
}
HELD_MARKS = {Held.HELD: "✓", Held.BROKEN: "✗ broken", Held.UNSEEN: "not observable"}


def certificates(run: Run) -> Table:
    """One row per cell that has a certificate, one column per invariant."""
    head = ["cell", *(f"{id_} {name}" for id_, name in INVARIANTS.items())]
    rows = [
        [cell_name(result.cell.key, run.scenarios), *(HELD_MARKS[i.held] for i in run.certificates[result.cell.key])]
        for result in run.cells
        if result.cell.key in run.certificates
    ]
    return Table(head, rows, texts=len(head))


def certificate_evidence(run: Run) -> Table:
    """Return a row per invariant and cell: its state, and the evidence for it."""
    rows = [
        [cell_name(result.cell.key, run.scenarios), i.id, i.held.value, i.message]
        for result in run.cells
        for i in run.certificates.get(result.cell.key, ())
    ]
    return Table(["cell", "invariant", "found", "by"], rows, texts=4)


# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Matrix:
    """The gate matrix: a row per cell, a column per rule.

    An entry is the index of the verdict in `Run.verdicts`, or None if the rule does not judge the cell.
    """

    rules: Sequence[str]
    rows: Sequence[tuple[str, Sequence[int | None]]]


def matrix(run: Run, policy: Policy) -> Matrix:
    """Return the matrix, with the gravest verdicts first. Rules that judge nothing in this run have no column."""
    at = {(v.rule, v.cell): i for i, v in enumerate(run.verdicts)}
    judging = {v.rule for v in run.verdicts if v.cell and v.state is not State.SKIPPED}
    rules = [r.id for r in policy.rules if r.id in judging]
    of: dict[str, list[Verdict]] = {result.cell.key: [] for result in run.cells}
    for verdict in run.verdicts:
        of.get(verdict.cell, []).append(verdict)
    keys = sorted(of, key=lambda key: gravity(of[key]))
    return Matrix(rules, [(cell_name(key, run.scenarios), [at.get((rule, key)) for rule in rules]) for key in keys])


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its index in `Run.verdicts`, the name of its cell, and its evidence in one line."""

    number: int
    verdict: Verdict
    where: str
    evidence: str

    @property
    def quiet(self) -> bool:
        """Return whether the verdict is green or skipped, so that nothing needs to be done."""
        return self.verdict.state in QUIET


def judgements(run: Run) -> Iterator[Judgement]:
    for i, v in enumerate(run.verdicts):
        yield Judgement(i, v, cell_name(v.cell, run.scenarios) if v.cell else "no cell", evidence(v))


def evidence(verdict: Verdict) -> str:
    def text(value: float | int | str | None) -> str:
        return figures.NONE if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    return " · ".join(f"{name} {text(value)}" for name, value in verdict.evidence.items())


def micro_gates(run: Run) -> Table:
    """The micro scenarios that must be green before a full run."""
    gates = run.promotion.gates if run.promotion else {}
    rows = [[name, "yes" if name in run.scenarios else "no", sha256] for name, sha256 in gates.items()]
    return Table(("scenario", "in this run", "SHA-256 of what it measures"), rows, texts=3)


# ── tokens and loops ─────────────────────────────────────────────────────────────────────────────────────────────────

SHOWN_DIVERGENCES = 50


def divergences(run: Run) -> Table:
    rows = [
        [
            cell_name(c.cell.key, run.scenarios),
            "near tie" if d.near_tie else "mismatch",
            *(str(n) for n in (d.prompt_set, d.round, d.slot, d.position, d.expected, d.got)),
            "unknown" if d.margin is None else f"{d.margin:.3g}",
        ]
        for c in run.comparisons
        for d in sorted(c.tokens.divergences, key=lambda d: d.near_tie)
    ]
    head = ("cell", "kind", "prompt set", "round", "slot", "position", "baseline", "spec", "top-2 margin")
    return Table(head, rows[:SHOWN_DIVERGENCES], texts=2)


def loops(run: Run) -> Table:
    shares = [(r, r.values.get("repeated_8gram_share")) for r in run.cells]
    rows = [[cell_name(r.cell.key, run.scenarios), figures.figure(v), str(v.n)] for r, v in shares if v is not None]
    return Table(("cell", "repeated 8-grams", "texts"), rows)


# ── everything ───────────────────────────────────────────────────────────────────────────────────────────────────────


def all_figures(run: Run, point: Point) -> Table:
    """Every value of a point's cells: a row per metric, a column per role."""
    results = [r for r in run.cells if r.cell.point == point]
    names = list(dict.fromkeys(name for r in results for name in r.values))
    rows = [[name, metric(name).unit, *(figures.of(r, name) for r in results)] for name in names]
    return Table(("metric", "unit", *(r.cell.role_name for r in results)), rows, texts=2)
