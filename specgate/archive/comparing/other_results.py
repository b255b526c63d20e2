"""Compare results of other tools, A and B: every figure that both have, over repetitions where there are some."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.archive.comparing.builds import COMPARED, TIMED, with_interval
from specgate.archive.comparing.two_samples import of_repetitions
from specgate.archive.other_tools.cells import cell_of, merged, run_of, with_scenarios
from specgate.archive.other_tools.reading import Result, results_at
from specgate.contract.comparisons import Change, Contrast, How, TokenContrast
from specgate.contract.metrics import METRICS
from specgate.errors import UsageError


def contrast_of_results(a: Path, b: Path) -> Contrast:
    """Compare the results in the file or folder `b` with those in `a`. Nothing is judged yet.

    Results are matched by what was asked, such as rate and concurrency. Raises UsageError if nothing was asked of both.
    """
    sides = [merged(map(named, side)) for side in with_scenarios(results_at(a), results_at(b))]
    both = list(matched(*sides))
    if not both:
        questions = ("; ".join(dict.fromkeys(str(r.scenario) for r in side)) for side in sides)
        hint = "compare results of one question: the same rate, concurrency and lengths"
        raise UsageError("nothing was asked of both: A has {}; B has {}".format(*questions), hint=hint)
    paired = [id(result) for pair in both for result in pair]
    alone = [tuple(cell_of(r).cell for r in side if id(r) not in paired) for side in sides]
    return Contrast(
        a=run_of(str(a), sides[0]),
        b=run_of(str(b), sides[1]),
        changes=tuple(change for pair in both for change in changes(*pair)),
        tokens=tuple(TokenContrast(cell_of(r).cell, 0, 0, 0, None, "not_in_file") for r, _ in both),
        only_a=alone[0],
        only_b=alone[1],
    )


def named(result: Result) -> Result:
    """Return the result with a draft length: the least that its acceptance length can come of, where none is known."""
    if result.speculates and not result.k:
        return replace(result, k=max(1, math.ceil((result.length or 2.0) - 1)), least_k=True)
    return result


def matched(a: Sequence[Result], b: Sequence[Result]) -> Iterator[tuple[Result, Result]]:
    """Yield the pairs of one question: of one draft length, or else where each side has a single result of it."""
    for result in a:
        mine, theirs = ([r for r in side if r.scenario == result.scenario] for side in (a, b))
        same = [r for r in theirs if r.k == result.k]
        if len(same) == 1 or len(mine) == len(theirs) == 1:
            yield result, (same or theirs)[0]


def changes(a: Result, b: Result) -> Iterator[Change]:
    """Yield every figure that one of two results has."""
    for metric in COMPARED:
        if metric in a.figures or metric in b.figures:
            yield change(a, b, metric)


def change(a: Result, b: Result, metric: str) -> Change:
    """Return one figure of both with the ratio B / A, and its 95 % interval where both were repeated."""
    each = [result.figures.get(metric, ()) for result in (a, b)]
    means = [statistics.fmean(side) if side else None for side in each]
    timed = METRICS[metric].unit in TIMED
    n = min(map(len, each))
    bare = Change(
        cell=cell_of(a).cell,
        partner=cell_of(b).cell,
        metric=metric,
        how=How.UNPAIRED if timed else How.BY_PROMPT,
        a=means[0],
        b=means[1],
        ratio=None,
        ci_low=None,
        ci_high=None,
        n=n,
        same_prompts=True,
        reason_code="few_repetitions" if n else "not_measured",
    )
    if means[0] is None or means[1] is None:
        return bare
    if not all(means):
        return replace(bare, reason_code="zero")
    stated = replace(bare, ratio=means[1] / means[0])
    if timed and (a.failed or b.failed):  # the others had the server to themselves
        return replace(stated, reason_code="requests_failed")
    if (estimate := of_repetitions(*each)) is None:
        return stated
    between = (OF_TIME, OF_TIME) if timed else None
    return with_interval(replace(stated, how=How.REPEATED, between=between, reason_code=None), estimate, n)
