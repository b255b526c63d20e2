"""The best draft length at each level of load, where several were measured beside one baseline.

Roles of one round are paired: the log-ratio of two draft lengths is the difference of theirs to the baseline of that
round. Each of the others is compared with the one of the greatest mean, the baseline among them; with m of them each
comparison has 1/m of the error (Bonferroni), and those that are not told to be slower are as good (compare Hsu,
Multiple Comparisons, 1996, chapter 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from specgate.analysis.grouping import grouped
from specgate.analysis.intervals.between_runs import ASSUMED, half_width
from specgate.analysis.intervals.decision import interval
from specgate.analysis.stats import ALPHA, Pairs
from specgate.contract import BetweenRuns, Comparison, Point, Scenario
from specgate.contract.load import BestDraft


def best_drafts(
    scenarios: Mapping[str, Scenario], comparisons: Iterable[Comparison], between: Mapping[str, BetweenRuns]
) -> tuple[BestDraft, ...]:
    """Return the best draft length of every level with two or more whose speeds may be quoted. `between`: what differs
    between runs, by cell key.
    """
    loaded = (c for c in comparisons if scenarios[c.cell.point.scenario].load is not None)
    of = grouped((c for c in loaded if c.speedup.value is not None), lambda c: c.cell.point)
    levels = sorted((p for p, same in of.items() if len(same) > 1), key=lambda p: (p.scenario, p.context, p.level))
    return tuple(best for point in levels if (best := best_of(point, of[point], between)) is not None)


def best_of(point: Point, same: Sequence[Comparison], between: Mapping[str, BetweenRuns]) -> BestDraft | None:
    """Return the best draft length of one level; None for too few pairs."""
    of_k = {comparison.cell.role.k: comparison for comparison in same}
    means = {0: 0.0, **{k: math.fsum(c.log_ratios) / max(len(c.log_ratios), 1) for k, c in of_k.items()}}
    best, following, *_ = ranked = sorted(means, key=lambda k: (-means[k], k))
    allowed = max((between.get(c.cell.key, ASSUMED) for c in same), key=lambda b: half_width(b, ALPHA))
    leads = {k: difference(of_k, best, k) for k in ranked[1:]}
    lead, error = interval(leads[following], allowed), ALPHA / len(leads)
    strict = {k: interval(pairs, allowed, error, error) for k, pairs in leads.items()}
    if lead is None or any(of is None for of in strict.values()):
        return None
    as_good = tuple(sorted(k for k, of in strict.items() if of is not None and of.low <= 0))
    of_level = (point.scenario, point.context, point.level, point.rate is not None)
    return BestDraft(*of_level, best, following, math.exp(lead.mean), math.exp(lead.low), math.exp(lead.high), as_good)


def difference(of_k: Mapping[int, Comparison], best: int, other: int) -> Pairs:
    """Return the log-ratios of the speeds of two draft lengths, over the rounds that both have. 0 is the baseline."""
    tables = [{(t, s): (x, o) for t, s, x, o in columns(of_k[k])} for k in (best, other) if k]
    shared = [pair for pair in tables[0] if all(pair in table for table in tables)]
    signs = [1.0 if k == best else -1.0 for k in (best, other) if k]
    values = [sum(sign * table[pair][0] for sign, table in zip(signs, tables, strict=True)) for pair in shared]
    orders = [tables[0][pair][1] for pair in shared]
    return Pairs(values, orders, [prompt_set for _, prompt_set in shared], [turn for turn, _ in shared])


def columns(comparison: Comparison) -> Iterator[tuple[int, int, float, int]]:
    """Yield turn, prompt set, log-ratio and order of every pair."""
    yield from zip(comparison.turns, comparison.prompt_sets, comparison.log_ratios, comparison.orders, strict=True)
