"""What the gates that judge pairs of blocks share: interim looks, evidence, and how many more pairs would decide."""

from __future__ import annotations

import math
from collections.abc import Mapping

from specgate.analysis.stats import Decision, Interval, pairs_needed, planned_looks
from specgate.core import CellResult, Run

Evidence = Mapping[str, float | int | str | None]


def looks_of(result: CellResult, run: Run) -> tuple[int, ...]:
    """The numbers of pairs after which the cell may be judged; see `analysis.stats.planned_looks`."""
    return planned_looks(run.scenarios[result.cell.point.scenario])


def evidence_of(decision: Decision, mde: float | None) -> Evidence:
    """The figures of the look that decided, or of the last look if none did. They are ratios, not logarithms.

    `mde`: the machine's minimum detectable effect, or None. The stored key `slot_effect` holds the order effect.
    """
    found = decision.interval
    return {
        "ratio": math.exp(found.mean) if found else None,
        "ci_low": math.exp(found.low) if found else None,
        "ci_high": math.exp(found.high) if found else None,
        "confidence": 1 - 2 * decision.alpha,
        "pairs": decision.pairs,
        "look": decision.look,
        "looks": decision.looks,
        "pair_sd": found.sd if found else None,
        "slot_effect": found.order_effect if found else None,
        "mde": mde,
    }


def span(decision: Decision, found: Interval) -> str:
    """In words: the ratio, its interval, the number of pairs, and which look it was."""
    low, high = math.exp(found.low), math.exp(found.high)
    level = f"{100 * (1 - 2 * decision.alpha):.4g} % interval {low:.3f}–{high:.3f}"
    look = f", look {decision.look} of {decision.looks}" if decision.looks > 1 else ""
    return f"{math.exp(found.mean):.3f}x, {level}, {decision.pairs} pairs{look}"


def smallest_effect(mde: float | None) -> str:
    """The machine's minimum detectable effect as the end of a message; empty if it is not known."""
    return f"; this machine can tell {100 * mde:.1f} %" if mde is not None else ""


def more_pairs(decision: Decision, floor: float, result: CellResult, run: Run) -> str:
    """What to do to get a decision, in words.

    A run that ended before its last look should be continued. Otherwise a new run with more pairs is needed, since
    pairs of two runs are not pooled. If the mean lies at the floor itself, no number of pairs would decide.
    """
    if not decision.final:
        return "continue with --resume: the run ended before its last look"
    found = decision.interval
    if found is None:
        return "needs at least 3 pairs"
    gap = abs(found.mean - math.log(floor)) if floor > 0 else 0.0
    if gap < found.sd / 30:
        return f"the true ratio is too close to {floor:.4g}x to tell from it"
    fitted = decision.pairs - found.freedom
    more = pairs_needed(found.sd, gap, decision.pairs, decision.alpha, fitted)
    sets = run.scenarios[result.cell.point.scenario].workload.prompt_sets
    rounds = math.ceil((decision.pairs + more) / sets)
    return f"needs about {more} more pairs: a new run with --measurement-runs {rounds + rounds % 2}"
