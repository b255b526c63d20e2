"""Gate `since-green`: is a cell no slower than in the last green run and in the best one, but for a margin each?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Final, Literal

from specgate.analysis.intervals.between_runs import half_width
from specgate.analysis.intervals.decision import FALSE_PASS, decide, false_fail, spent
from specgate.analysis.references import (
    AcceptanceChange,
    acceptance_change,
    between_of_times,
    clock_change,
    clocks_of,
    decide_at_equal_clocks,
    long_enough,
    paired_by_round,
    unlike,
)
from specgate.analysis.stats import Decision, side_of
from specgate.analysis.two_builds.estimates import LEAST, Difference
from specgate.contract import BetweenRuns, Cell, CellResult, Rule, RunView, Scenario, State, Verdict
from specgate.contract.references import CellTimes, EarlierRun
from specgate.gates.samples import allowance, looks_of, time_spent
from specgate.gates.select import CellGate, for_other_tokens, verdict

Evidence = dict[str, float | int | str | None]

ANCHOR: Final = "anchor_margin_pct"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result for one quantity of a cell. `state`: None if it cannot be compared. `summary`: in words."""

    state: State | None
    code: str
    summary: str
    evidence: Evidence = field(default_factory=dict)


class SinceGreen(CellGate):
    """A test of non-inferiority against the last green run of the same kind and subject on the same machine, and
    against an anchor: the best one, or one that is pinned (`analysis.references.anchors_after`).

    `time_margin_pct`: how much more time an engine step may take, in percent; of every role, the baseline too.
    `prefill_margin_pct`: the same of the prefill time in full runs; where it is not set, `time_margin_pct`.
    `acceptance_margin_pct`: by how much the old acceptance length may exceed the new one, in percent. At least one of
    the first and this one must be set.
    `anchor_margin_pct`: the margin of every quantity against the anchor, but no less than the quantity's own. If it is
    not set, there is no anchor.

    Times are paired by rounds (`analysis.references.since`), and decided at the scenario's looks: PASS if the interval
    excludes a loss of more than the margin, FAIL if it excludes a smaller one, else INCONCLUSIVE. A PASS is IMPROVED
    where a step is proven faster. The interval allows for the difference between two processes. If the mean SM clocks
    of both runs differ, the decision must be the same without what the clock may have changed.

    Acceptance is decided by count, without an interval, where every prompt has the text that it had. Where texts have
    changed, the prompts that keep theirs can show that nothing was lost, and the interval over all prompts that
    something was. If fewer than three keep their text and nothing is proven, acceptance is left to its own rules.

    A cell that has nothing to be compared with is SKIPPED, once it was measured as far as the next run needs, which is
    compared with it.
    """

    name = "since-green"
    needs = "the steps of both runs"
    needs_earlier_run: Literal[True] = True
    params: Mapping[str, type | UnionType] = {
        "time_margin_pct": float | None,
        "prefill_margin_pct": float | None,
        "acceptance_margin_pct": float | None,
        ANCHOR: float | None,
    }
    sequential: Literal[True] = True

    def decisions(self, rule: Rule, cell: Cell, scenario: Scenario) -> int:
        """One for each time and one for acceptance; against the last run and against the anchor."""
        times = len(time_margins(rule, scenario))
        quantities = times + int(cell.role.speculative and "acceptance_margin_pct" in rule.params)
        return quantities * (2 if ANCHOR in rule.params else 1)

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a rule without a margin."""
        if not {"time_margin_pct", "acceptance_margin_pct"} & set(rule.params):
            yield "gate", "neither time_margin_pct nor acceptance_margin_pct is set: there is nothing to judge"

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        cell, earlier = result.cell, earlier_of(result.cell, run)
        if isinstance(earlier, str):
            return nothing_earlier(rule, result, run, earlier)
        comparison = run.comparison(cell.key)
        if comparison is not None and comparison.tokens.defects:
            message = "no speed may be quoted: its tokens are not the baseline's"
            return verdict(rule, cell.key, for_other_tokens(result), "token_mismatch", message)
        new = run.times.get(cell.key)
        if new is None:
            return verdict(rule, cell.key, State.INCONCLUSIVE, "no_times", "this run keeps no times of its blocks")
        sides = [Side(earlier, tuple(findings_of(rule, result, run, earlier, new)))]
        anchor = anchor_of(cell, run) if ANCHOR in rule.params else earlier
        if isinstance(anchor, EarlierRun) and anchor is not earlier:
            least = float(rule.params[ANCHOR])
            sides.append(Side(anchor, tuple(findings_of(rule, result, run, anchor, new, least))))
        return summed_up(rule, result, sides, anchor)


def earlier_of(cell: Cell, run: RunView) -> EarlierRun | str:
    """Return the earlier run that `cell` is compared with, or the reason why there is none."""
    name = cell.point.scenario
    none = "this run was begun without looking for one"
    if run.earlier is None or name not in run.earlier.runs:
        return none if run.earlier is None else run.earlier.missing.get(name, none)
    earlier = run.earlier.runs[name]
    return unlike(earlier, cell, run) or earlier


def anchor_of(cell: Cell, run: RunView) -> EarlierRun | str | None:
    """Return the run that losses which add up are found against, where that is not the last green one; or the reason
    why a pinned one cannot serve.
    """
    anchors = run.earlier.anchors.get(cell.point.scenario, ()) if run.earlier else ()
    anchor = next((anchor for anchor in anchors if anchor.pinned or cell.key in anchor.cells), None)
    why = unlike(anchor, cell, run) if anchor else None
    return anchor if why is None else f"the pinned {why}" if anchor and anchor.pinned else None


def nothing_earlier(rule: Rule, result: CellResult, run: RunView, why: str) -> Verdict:
    """The verdict on a cell without an earlier run: later runs are compared with what it measures, so
    it is measured as far as they need.

    A run that is judged by another policy than its own has not looked for one, and is not measured any further. Neither
    is one of unknown weights, since no later run can be compared with it.
    """
    key = result.cell.key
    if run.earlier is None:
        return verdict(rule, key, State.SKIPPED, "not_looked_for", why)
    spent, facts = time_spent(result, run), run.engines.get(result.cell.point.key)
    whole = result.blocks >= looks_of(result, run)[-1] or (spent is not None and spent.seconds >= spent.budget_s)
    if facts is not None and facts.target_sha256 is None:
        message = f"{why}; nor can a later run be held against this one: nothing shows its weights"
        return verdict(rule, key, State.SKIPPED, "weights_unknown", message)
    if not whole and not serves_later_runs(rule, result, run):
        message = f"{why}; later runs are held against this one, so it needs more rounds of its plan"
        return verdict(rule, key, State.INCONCLUSIVE, "plan_unfinished", message, next_step="continue with --resume")
    message = f"{why}; once this run is green, later ones are held against it"
    return verdict(rule, key, State.SKIPPED, "no_earlier_run", message)


def serves_later_runs(rule: Rule, result: CellResult, run: RunView) -> bool:
    """True if more rounds would hardly help a later run of this cell to detect a loss."""
    times, margins = run.times.get(result.cell.key), time_margins(rule, run.scenarios[result.cell.point.scenario])
    between = between_of_times(result.cell, run.between_runs)
    return times is not None and all(long_enough(times, what, between) for what in margins)


def time_margins(rule: Rule, scenario: Scenario) -> dict[str, float]:
    """Field of `CellTimes` → the margin of that time, in percent."""
    if "time_margin_pct" not in rule.params:
        return {}
    step = float(rule.params["time_margin_pct"])
    prefill = {"prefill_ns": float(rule.params.get("prefill_margin_pct", step))} if scenario.whole_requests else {}
    return {"step_ns": step, **prefill}


def findings_of(
    rule: Rule, result: CellResult, run: RunView, earlier: EarlierRun, new: CellTimes, least: float = 0.0
) -> Iterator[Finding]:
    """Every quantity of a cell that the rule speaks of. `least`: the smallest margin, in percent."""
    cell, old = result.cell, earlier.cells[result.cell.key]
    clocks = earlier.clocks.get(cell.key, {}), clocks_of(run, cell)
    between = between_of_times(cell, run.between_runs)
    error = false_fail(rule.required, run.required_decisions)
    for what, own in time_margins(rule, run.scenarios[cell.point.scenario]).items():
        if what == "step_ns" and old.unit is not new.unit:
            message = f"step time was counted per {old.unit}, now per {new.unit}: not comparable"
            yield Finding(State.INCONCLUSIVE, "counted_differently", message)
            continue
        pairs, margin = paired_by_round(old, new, what), max(own, least)
        floor, clock = -math.log1p(margin / 100), clock_change(*(of.get(what) for of in clocks))
        decision = decide(pairs, result.blocks, looks_of(result, run), floor, between, error, alone=True)
        if clock is not None:
            decision = decide_at_equal_clocks(decision, pairs, floor, clock, error)
        per = new.unit.words if what == "step_ns" else ""
        yield of_time(what.removesuffix("_ns"), margin, decision, between, per, clock)
    if cell.role.speculative and "acceptance_margin_pct" in rule.params:
        change = acceptance_change(old, new)
        if change is None:
            yield Finding(None, "no_drafts", "no prompt had a draft in both runs")
        else:
            yield of_acceptance(max(float(rule.params["acceptance_margin_pct"]), least), change, error)


# ── one quantity ─────────────────────────────────────────────────────────────────────────────────────────────────────


def of_time(
    name: str, margin: float, decision: Decision, between: BetweenRuns, per: str, clock: float | None
) -> Finding:
    """Judge the looks at a time. The interval of `decision` is of ln(old / new). `per`: see `StepUnit.words`. `clock`:
    see `clock_change`.
    """
    interval = decision.interval
    if interval is None:
        message = f"{name} time: {decision.pairs} rounds in common: too few for an interval"
        return Finding(State.INCONCLUSIVE, "few_pairs", message)
    low, high = math.exp(-interval.high), math.exp(-interval.low)
    evidence: Evidence = {
        f"{name}_ratio": math.exp(-interval.mean),
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_margin_pct": margin,
        f"{name}_pairs": decision.pairs,
        f"{name}_look": decision.look,
        f"{name}_error_pass": decision.alpha,
        f"{name}_error_fail": decision.alpha_below,
        f"{name}_process_sd": between.process_sd,
        f"{name}_correlation": interval.correlation,
    }
    of_processes = spent(FALSE_PASS, 1)  # at every look
    allowed = allowance(between, of_processes)
    message = f"{name} time{per} {percent(math.exp(-interval.mean))} ({percent(low)} … {percent(high)}, {allowed})"
    if clock is not None:
        evidence[f"{name}_clock_ratio"] = math.exp(clock)
        message += f" at an SM clock {percent(math.exp(clock))}"
    if decision.side == "below":
        return Finding(State.FAIL, "slower", f"{message}: more than {margin:g} % slower", evidence)
    if decision.side == "above":
        if interval.low > max(0.0, clock or 0.0):
            return Finding(State.IMPROVED, "faster", f"{message}: faster", evidence)
        return Finding(State.PASS, "within_margin", f"{message}: at most {margin:g} % slower", evidence)
    if clock is not None and side_of(interval, -math.log1p(margin / 100)) != "open":
        message = f"{message}: how much of it is the clock's decides at a margin of {margin:g} %, and that is unknown"
        return Finding(State.INCONCLUSIVE, "clocks_differ", message, evidence)
    proven = "; proven slower: suspect" if interval.high < 0 else ""
    alone = half_width(between, of_processes)
    apart = alone >= abs(interval.mean + math.log1p(margin / 100))
    process = f"; two processes alone may differ by {100 * math.expm1(alone):.1f} %" if apart else ""
    message = f"{message}: a margin of {margin:g} % lies inside{proven}{process}"
    return Finding(State.INCONCLUSIVE, "margin_not_excluded", message, evidence)


def of_acceptance(margin: float, change: AcceptanceChange, error: float) -> Finding:
    """Judge the change of acceptance. `error`: the error of a FAIL."""
    floor, difference = -math.log1p(margin / 100), change.over_all
    evidence: Evidence = {
        "acceptance_old": change.old,
        "acceptance_new": change.new,
        "acceptance_margin_pct": margin,
        "prompts": change.prompts,
        "same_texts": change.same,
        "acceptance_of_same_texts": None if change.of_same is None else math.exp(change.of_same),
    }
    lengths = f"acceptance length {change.new:.3f}, was {change.old:.3f}"
    if change.same == change.prompts and change.of_same is not None:
        if change.of_same < floor:
            return Finding(
                State.FAIL,
                "accepts_less",
                f"{lengths}, with the same texts: a loss of more than {margin:g} %",
                evidence,
            )
        same = "the same by count" if change.of_same == 0 else f"{percent(change.new / change.old)} by count"
        return Finding(State.PASS, "within_margin", f"{lengths}: {same}", evidence)
    summary = f"{lengths}; {change.prompts - change.same} of {change.prompts} prompts have another text"
    if difference is not None and difference.mean + difference.half_width(error) < floor:
        return Finding(
            State.FAIL, "accepts_less", f"{summary}, and a loss of more than {margin:g} % is proven", evidence
        )
    if change.of_same is not None and change.same >= LEAST:
        of_same = f"{percent(math.exp(change.of_same))} over the others, by count"
        if change.of_same >= floor:
            return Finding(State.PASS, "within_margin", f"{summary}; {of_same}", evidence)
        return Finding(State.INCONCLUSIVE, "margin_not_excluded", f"{summary}; {of_same}", evidence)
    if excludes_loss(difference, floor):
        return Finding(State.PASS, "within_margin", f"{summary}; at most {margin:g} % lower over all", evidence)
    return Finding(None, "texts_changed", f"{summary}: not compared", evidence)


def excludes_loss(difference: Difference | None, floor: float) -> bool:
    return difference is not None and difference.mean - difference.half_width(FALSE_PASS) >= floor


def percent(ratio: float) -> str:
    """A ratio as a change: `+1.25 %`."""
    return f"{100 * (ratio - 1):+.2f} %"


# ── the cell ─────────────────────────────────────────────────────────────────────────────────────────────────────────

WORST_FIRST = (State.FAIL, State.INCONCLUSIVE, State.IMPROVED, State.PASS)


@dataclass(frozen=True, slots=True)
class Side:
    """An earlier run that a cell is compared with, and what came out."""

    earlier: EarlierRun
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> str:
        """Kind of anchor that the run is."""
        return "pinned" if self.earlier.pinned else "best"

    def __str__(self) -> str:
        known = filter(None, (self.earlier.time[:10], (self.earlier.commit or "")[:12]))
        return f"{self.earlier.run} ({', '.join(known)})"


def summed_up(rule: Rule, result: CellResult, sides: list[Side], anchor: EarlierRun | str | None) -> Verdict:
    """The verdict on a cell: the worst of its quantities, IMPROVED where nothing is worse than that.

    A gain since the anchor alone is none: `sides` begins with the last green run.
    """
    judged = [(side, f) for side in sides for f in side.findings if f.state is not None]
    message, evidence = in_words(sides, anchor), evidence_of(sides)
    if not judged:
        findings = sides[0].findings
        code = findings[0].code if findings else "nothing_to_compare"
        return verdict(rule, result.cell.key, State.SKIPPED, code, message, evidence)
    state = next(state for state in WORST_FIRST if any(f.state is state for _, f in judged))
    side, worst = next((side, f) for side, f in judged if f.state is state)
    step = None if state in (State.PASS, State.IMPROVED) else would_tell(result.cell, side.earlier)
    return verdict(rule, result.cell.key, state, worst.code, message, evidence, step)


def in_words(sides: list[Side], anchor: EarlierRun | str | None) -> str:
    """Every quantity against the last green run, then against the anchor, each run with its date and commit."""
    last, *others = sides
    parts = ["; ".join(f.summary for f in last.findings), f"against {last}"]
    if anchor is None:
        parts[-1] += f", the {last.kind} run, too"
    elif isinstance(anchor, str):
        parts.append(f"not compared with an anchor: {anchor}")
    for side in others:
        parts.append(f"since the {side.kind} run {side}: {'; '.join(f.summary for f in side.findings)}")
    return "; ".join(parts)


def evidence_of(sides: list[Side]) -> Evidence:
    """The figures of every quantity; those against the anchor have names that begin with `anchor_`."""
    evidence: Evidence = {}
    for prefix, side in zip(("", "anchor_"), sides, strict=False):
        figures: Evidence = {"against": side.earlier.run, "against_commit": side.earlier.commit}
        for finding in side.findings:
            figures |= finding.evidence
        evidence |= {f"{prefix}{key}": value for key, value in figures.items()}
    return evidence


def would_tell(cell: Cell, earlier: EarlierRun) -> str:
    """Return the next step for a loss that is proven, or not excluded."""
    base = earlier.commit or "REF"
    where = "" if earlier.commit else " (that run was not made from a commit: name one)"
    command = f"specgate ab --base {base} --scenario {cell.point.scenario} --backend {cell.point.backend}"
    return f"{command} compares the two builds in one session, process by process{where}"


GATE = SinceGreen()
