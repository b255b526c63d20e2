"""Gate `load`: does speculation pay up to a level of load, and does the server take every request?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import UnionType

from specgate.analysis.load.break_even import Level, pays_up_to
from specgate.analysis.load.figures import counted, in_words, level_in_words, unit_of
from specgate.analysis.load.sweeps import FASTER_CLIENT, fell_behind, levels_of, sweep_of, sweeps
from specgate.contract import BASELINE, Comparison, Floor, Kind, Rule, RunView, State, Verdict
from specgate.contract.load import BreakEven
from specgate.gates.select import LESS_LOAD, more_rounds, nothing_selected, verdict
from specgate.gates.speed import with_source


class LoadGate:
    """`min_break_even`: speculation must pay at every level of load up to this one; left out, at the smallest one that
    was measured. `max_refused`: the largest share of the requests, from 0 to 1, that the server may refuse at any
    level; left out, that is 0.

    One verdict per sweep, on its cell at the greatest level up to `min_break_even`. PASS where the whole interval of
    the ratio lies above 1 at every level up to there, interpolated in between, FAIL where it lies below 1 at one of
    them, else INCONCLUSIVE. INVALID where a level was not measured, too many requests were refused, or the client of an
    open loop fell behind: that is not the load that was asked for.
    """

    name = "load"
    params: Mapping[str, type | UnionType] = {"min_break_even": float | None, "max_refused": float | None}

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return the kind of these verdicts."""
        return ("speed",)

    def floor(self, rule: Rule) -> Floor:
        """Return the least break-even."""
        least = rule.params.get("min_break_even")
        return Floor(
            "break_even", float(least or 0), "pays at all" if least is None else f"pays up to {float(least):g}"
        )

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a share above 1."""
        if float(rule.params.get("max_refused", 0.0)) > 1:
            yield "max_refused", "no share: it lies between 0 and 1"

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        mine = [c for c in run.comparisons if rule.matches(c.cell)]
        selected = list(sweeps(run.scenarios, mine))
        if not selected:
            yield nothing_selected(rule)
        for sweep in selected:
            made = with_source(self.judge_sweep(rule, sweep, run), run)
            yield replace(made, covers=others_of(rule, made.cell, run))

    def judge_sweep(self, rule: Rule, sweep: Sequence[Comparison], run: RunView) -> Verdict:
        least = float(rule.params.get("min_break_even", sweep[0].cell.point.level))
        within = [c for c in sweep if c.cell.point.level <= least] or sweep[:1]
        key, unit = within[-1].cell.key, unit_of(sweep[0].cell.point.rate is not None)
        if problem := unfit(rule, sweep, run):
            code, message, step = problem
            return verdict(rule, key, State.INVALID, code, message, next_step=step)
        levels = levels_of(sweep, run.scenarios[sweep[0].cell.point.scenario], run.between_runs)
        known = next(b for b in run.break_even if b.levels and b.levels[0].cell == sweep[0].cell.key)
        summary, evidence = in_words(known), evidence_of(known, least)
        if len(levels) < len(sweep):
            few = ", ".join(f"{c.cell.point.level:g}" for c in sweep if not measured_at(c, levels))
            step = more_rounds(sweep[0], run)
            message = f"{summary}: too few pairs for an interval at {few} {unit}"
            return verdict(rule, key, State.INCONCLUSIVE, "few_pairs", message, evidence, step)
        if not levels[0].level <= least <= levels[-1].level:
            option = "" if sweep[0].cell.point.rate is not None else f": --batch 1,…,{least:g}"
            step = f"a sweep that reaches {least:g} {unit}{option}"
            message = f"{summary}: {least:g} {unit} lie outside {levels[0].level:g} to {levels[-1].level:g}"
            return verdict(rule, key, State.INCONCLUSIVE, "outside_the_sweep", message, evidence, step)
        side = pays_up_to(levels, least)
        if side == "above":
            message = f"{summary}: it pays up to {counted(least, unit)}"
            return verdict(rule, key, State.PASS, "pays_up_to_min", message, evidence)
        if side == "below":
            worst = min((x for x in known.levels if x.level <= least), key=lambda x: x.ratio or math.inf)
            message = f"{summary}: {level_in_words(worst, unit)}, where {counted(least, unit)} were asked for"
            step = "a shorter draft, or speculation switched off above the break-even"
            return verdict(rule, key, State.FAIL, "costs_before_min", message, evidence, step)
        step = f"{more_rounds(sweep[0], run)}: the intervals of a verdict, which is seldom wrong, have to leave 1"
        message = f"{summary}: not decided at {counted(least, unit)}"
        return verdict(rule, key, State.INCONCLUSIVE, "one_not_excluded", message, evidence, step)


def others_of(rule: Rule, cell: str, run: RunView) -> tuple[str, ...]:
    """Return the keys of the other cells that `rule` selects of the sweep of `cell`."""
    of = {result.cell.key: sweep_of(result.cell) for result in run.cells if rule.matches(result.cell)}
    return tuple(key for key, sweep in of.items() if sweep == of.get(cell) and key != cell)


def unfit(rule: Rule, sweep: Sequence[Comparison], run: RunView) -> tuple[str, str, str] | None:
    """(reason code, message, next step) why a sweep cannot be judged; None where it can."""
    most, refused = float(rule.params.get("max_refused", 0.0)), ("", 0.0, 0)
    unit = unit_of(sweep[0].cell.point.rate is not None)
    for comparison in sweep:
        point = comparison.cell.point
        for result in (
            r for r in run.cells if r.cell.point == point and r.cell.role in (comparison.cell.role, BASELINE)
        ):
            if result.status != "ok":
                why = (run.failures.get(point.key) or result.reason or "incomplete").splitlines()[0]
                return "not_measured", f"{counted(point.level, unit)}: {why}", "continue the run with --resume"
            refusals = result.values.get("refused_requests")
            share = refusals.value / refusals.n if refusals is not None and refusals.value else 0.0
            if share > max(refused[1], most):
                assert refusals is not None and refusals.value is not None
                refused = (result.cell.key, share, round(refusals.value))
            if late := fell_behind(result):
                return "client_fell_behind", late, FASTER_CLIENT
        if comparison.speedup.value is None:
            code = comparison.speedup.reason_code or "withheld"
            return code, f"{counted(point.level, unit)}: no speed-up may be quoted: {code}", "see the tokens rule"
    key, share, count = refused
    if not key:
        return None
    message = f"{count} requests ({100 * share:.1f} %) were refused in {key}: at most {100 * most:g} % may be"
    return "requests_refused", message, LESS_LOAD


def measured_at(comparison: Comparison, levels: Sequence[Level]) -> bool:
    return any(level.level == comparison.cell.point.level for level in levels)


def evidence_of(break_even: BreakEven, least: float) -> dict[str, float | int | str | None]:
    return {
        "break_even": break_even.value,
        "min": least,
        "ci_low": break_even.low,
        "ci_high": break_even.high,
        "confidence": break_even.confidence,
        "outcome": break_even.outcome,
        **{f"ratio_at[{level.level:g}]": level.ratio for level in break_even.levels},
    }


GATE = LoadGate()
