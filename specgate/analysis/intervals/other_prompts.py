"""Two questions about a speed-up, and their names: how fast on these prompts, and how fast on prompts like these?

A gate judges the first: prompts are fixed, so their differences are no noise, and the interval narrows with every
round. The second takes the prompts for a sample. More rounds on the same prompts do not narrow its interval, more
prompts do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Final

from specgate.analysis.grouping import collected
from specgate.analysis.stats import ALPHA, Pairs, t_quantile
from specgate.contract import Value

THESE, LIKE_THESE = "on these prompts", "on prompts like these"
"""What an interval is about: the prompts that were measured, or all prompts of their kind."""
SPEEDUP_LIKE_THESE: Final = "speedup_like_these_ratio"
LEAST_SETS: Final = 4
"""Of fewer prompt sets it happens too often that all are alike by chance."""


def like_these(pairs: Pairs, these: Value) -> Value:
    """The speed-up on prompts like those of `pairs`: the geometric mean over prompt sets of each one's, with its 95 %
    interval. The effect of the order within a pair is left out, as in every interval of a speed-up.

    `these`: the speed-up on these prompts. What its interval allows for, such as other processes, is as uncertain on
    other prompts. So the half width is the root of two squares: of that interval's, and of the t-interval's over sets.
    """
    known = pairs.interval()
    sets = collected(
        (prompt_set, ratio - (known.order_effect * order if known else 0.0))
        for ratio, order, prompt_set in zip(pairs.log_ratios, pairs.orders, pairs.prompt_sets, strict=True)
    )
    n = len(sets)
    if not n or these.value is None:
        return Value(SPEEDUP_LIKE_THESE, None, n=n, reason_code=these.reason_code or "no_pairs")
    means = [statistics.fmean(of) for of in sets.values()]
    mean = statistics.fmean(means)
    if n < LEAST_SETS or these.ci_low is None or these.ci_high is None:
        return Value(SPEEDUP_LIKE_THESE, math.exp(mean), "geomean", n, reason_code="few_sets")
    over_sets = t_quantile(1 - ALPHA, n - 1) * statistics.stdev(means) / math.sqrt(n)
    half = math.hypot(over_sets, math.log(these.ci_high / these.ci_low) / 2)
    return Value(SPEEDUP_LIKE_THESE, math.exp(mean), "geomean", n, math.exp(mean - half), math.exp(mean + half))


def from_a_file(about: Mapping[str, object]) -> bool:
    """Return whether the prompts of a point are the user's own. `about`: what a run stores of them (`Run.prompts`)."""
    return isinstance(about.get("file"), Mapping)


def like_these_in_words(value: Value, noun: str = "prompt set", unit: str = "x", digits: int = 3) -> str:
    """The interval of a figure over prompts, with the number of them; or that they are too few."""
    if value.ci_low is None or value.ci_high is None:
        return f"{value.n} {noun}{'s' * (value.n != 1)}: too few to say for prompts like these"
    level = f"{100 * (1 - 2 * ALPHA):g} %, {value.n} {noun}s"
    return f"{LIKE_THESE} {value.ci_low:.{digits}f}–{value.ci_high:.{digits}f}{unit} ({level})"
