"""Common parts of the gates that judge pairs of blocks: interim looks, evidence, and the number of pairs that would
decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from specgate.analysis.intervals import decision as over_runs
from specgate.analysis.intervals.between_runs import ASSUMED, half_width, least_counts
from specgate.analysis.intervals.decision import false_fail, pairs_needed
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.stats import MIN_PAIRS, UNTIL_DECIDED, Decision, Interval, Pairs, planned_interim_looks
from specgate.contract import BetweenRuns, CellResult, Rule, RunView, TimeEnd
from specgate.contract.verdict import RESUME

Evidence = Mapping[str, float | int | str | None]
HOPELESS = 1.0
"""A difference, as a ratio less 1, that helps no reader if nothing smaller can be told: a factor of 2."""


def looks_of(result: CellResult, run: RunView) -> tuple[int, ...]:
    """The numbers of pairs after which the cell may be judged; see `analysis.stats.planned_interim_looks`."""
    point = result.cell.point
    return planned_interim_looks(run.scenarios[point.scenario], run.time_ends.get(point.key, ()))


def time_spent(result: CellResult, run: RunView) -> TimeEnd | None:
    """Return the end of the cell's point, if its time was spent; None if it ended otherwise."""
    *_, last = (None, *run.time_ends.get(result.cell.point.key, ()))
    return last if last is not None and last.rounds >= result.blocks else None


def decision_on(
    pairs: Pairs, rule: Rule, result: CellResult, run: RunView, floor: float, between: BetweenRuns | None = None
) -> Decision:
    """Decide if the mean of `pairs` of the cell `result` is at least `floor` (log scale).

    `between`: what differs between runs, where that is not what it is for the cell's ratio to the baseline.
    """
    looks, error = looks_of(result, run), false_fail(rule.required, run.required_decisions)
    return over_runs.decide(pairs, result.blocks, looks, floor, between or between_of(result.cell.key, run), error)


def between_of(cell: str, run: RunView) -> BetweenRuns:
    """Return the noise between runs in the cell's ratio to the baseline: as calibrated, else as assumed."""
    return run.between_runs.get(cell, ASSUMED)


def evidence_of(decision: Decision, mde: float | None) -> Evidence:
    """The figures of the look that decided, or of the last look if none did. They are ratios, not logarithms.

    `mde`: the machine's minimum detectable effect, or None.
    """
    interval = decision.interval
    return {
        "ratio": math.exp(interval.mean) if interval else None,
        "ci_low": math.exp(interval.low) if interval else None,
        "ci_high": math.exp(interval.high) if interval else None,
        "confidence": decision.confidence,
        "pairs": decision.pairs,
        "look": decision.look,
        "looks": decision.looks,
        "pair_sd": interval.sd if interval else None,
        "order_effect": interval.order_effect if interval else None,
        "mde": mde,
        **level_of(decision),
    }


def level_of(decision: Decision) -> Evidence:
    """Error levels, and what the interval allows for between runs."""
    interval, between = decision.interval, decision.between
    return {
        "error_pass": decision.alpha,
        "error_fail": decision.alpha_below,
        "process_sd": between.process_sd,
        "processes": None if between.process_freedom is None else between.process_freedom + 1,
        "machine_sd": between.machine_sd if between.machine_freedom else None,
        "correlation": interval.correlation if interval else None,
        **({"least_process_sd": between.least_process_sd} if between.least_process_sd else {}),
    }


def span(decision: Decision, interval: Interval, floor: float) -> str:
    """In words: the ratio, its interval, the number of pairs, and which look it was.

    An interval that decides nothing, and reaches farther than HOPELESS, is left out.
    """
    ratio, low, high = (math.exp(log) for log in (interval.mean, interval.low, interval.high))
    ratio_text, *ends = (told_from(floor, value, 3) for value in (ratio, low, high))
    look = f", look {decision.look} of {decision.looks}" if decision.looks > 1 else ""
    if decision.side == "open" and max(ratio / low, high / ratio) > 1 + HOPELESS:
        return f"{ratio_text}x, {decision.pairs} pairs{look}, too few to bound it within a factor of {1 + HOPELESS:g}"
    level = f"{100 * decision.confidence:.4g} % interval {'–'.join(ends)}"
    return f"{ratio_text}x, {level}, {decision.pairs} pairs{look}, {allowance(decision.between, decision.alpha)}"


def allowance(between: BetweenRuns, error: float) -> str:
    """Describe the noise between processes that an interval with this error on a side allows for."""
    text = f"process to process {100 * between.process_sd:.2g} % (sd, "
    if between.process_freedom is None:
        return f"{text}assumed)"
    least = f"; {100 * between.least_process_sd:.2g} % is the least that counts" if least_counts(between, error) else ""
    return f"{text}{between.process_freedom + 1} measured{least})"


def smallest_effect(mde: float | None) -> str:
    """The machine's minimum detectable effect as the end of a message; empty if it is not known, or HOPELESS."""
    return f"; this machine can tell {100 * mde:.1f} %" if mde is not None and mde <= HOPELESS else ""


def more_pairs(decision: Decision, floor: float, result: CellResult, run: RunView) -> str:
    """Return what to do to get a decision, in words.

    A run that ended before its last look should be continued. Otherwise the run needs more rounds, since pairs of two
    runs are not pooled. If the mean lies at the floor itself, no number of rounds would decide.
    """
    spent = time_spent(result, run)
    if spent is None and not decision.final:
        return f"the run ended before its last interim look: continue it with {RESUME}"
    if decision.interval is None:
        if spent is None:
            return f"at least {MIN_PAIRS} pairs are needed: {RESUME} --measurement-runs 4"
        took = f"{spent.seconds / spent.rounds:.2g} s"
        return f"at least {MIN_PAIRS} pairs are needed, and one takes {took}: {more_time(spent, UNTIL_DECIDED)}"
    gap = abs(decision.interval.mean - math.log(floor)) if floor > 0 else 0.0
    return more_rounds(decision, decision.interval.sd, gap, floor, result, run)


def more_rounds(decision: Decision, sd: float, gap: float, floor: float, result: CellResult, run: RunView) -> str:
    """Return the rounds that should tell a log-ratio of `gap` from 0, in words; or why no number of them would.

    `sd`: of a pair. Processes alone may differ by more than the gap.
    """
    between, error = decision.between, min(decision.alpha, decision.alpha_below)
    pairs = f"{decision.pairs} pair{'s' * (decision.pairs != 1)}"
    if half_width(between, error) >= gap:
        if between.process_freedom is None:
            how = "specgate machine calibrate measures how much they do"
            return f"so near {floor:.4g}x two processes may differ by chance (assumed): {how}"
        return (
            f"processes differ by more than the distance to {floor:.4g}x on this machine: no number of rounds would do"
        )
    scenario, look, measured = run.scenarios[result.cell.point.scenario], decision.look, result.blocks
    sets = scenario.workload.prompt_sets
    needed = pairs_needed(sets, measured, look, sd, gap, between, error * look * (look + 1))
    if needed is None:
        return f"not enough data: {pairs}; the ratio is so near {floor:.4g}x that no number of rounds would do"
    if (spent := time_spent(result, run)) is not None:
        seconds = budget_for(spent, needed) - spent.seconds
        return f"not enough data: {pairs}; about {seconds:,.0f} s more should decide it: {more_time(spent, needed)}"
    more = needed // sets - scenario.rounds
    seconds = run.check_seconds.get("blocks", 0.0) * more / scenario.rounds
    took = f" ({seconds:,.0f} s)" if seconds >= 1 else ""
    option = f"{RESUME} --measurement-runs {needed // sets}"
    return f"not enough data: {pairs}; about {more} more rounds{took} should decide it: {option}"


def more_time(spent: TimeEnd, pairs: int) -> str:
    """Return the option that gives a point the time of so many pairs."""
    return f"{RESUME} --budget {budget_for(spent, pairs)}s"


def budget_for(spent: TimeEnd, pairs: int) -> int:
    """Return the seconds of measuring for so many pairs, with a tenth to spare; more than were spent."""
    return math.ceil(max(1.1 * spent.seconds / spent.rounds * pairs, spent.seconds + 0.5))
