"""Is speculation at least so many times as fast as the baseline it was paired with?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from specgate.core import Comparison, Rule, Run, State, Verdict
from specgate.gates.select import nothing_selected, selected, unmeasured, verdict
from specgate.stats import pairs_needed, slot_interval


class Speed:
    """`min`: ratio of output tok/s. PASS where the interval lies at or above it, FAIL where it lies below."""

    name = "speed"
    params: Mapping[str, type] = {"min": float}

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        results = [r for r in selected(rule, run) if r.cell.role.speculative]
        if not results:
            yield nothing_selected(rule)
        for result in results:
            comparison = run.comparison(result.cell.key)
            if result.status == "failed" or comparison is None:
                yield unmeasured(rule, result, run)
            else:
                yield with_source(self.judge_pairs(rule, comparison), run)

    def judge_pairs(self, rule: Rule, comparison: Comparison) -> Verdict:
        key, floor, value = comparison.cell.key, float(rule.params["min"]), comparison.speedup
        if value.value is None:
            message = f"no speed-up may be quoted: {value.reason_code}"
            return verdict(rule, key, State.INVALID, value.reason_code or "withheld", message, {"pairs": value.n})
        evidence = {
            "speedup_vs_ar_ratio": value.value,
            "min": floor,
            "ci_low": value.ci_low,
            "ci_high": value.ci_high,
            "pairs": value.n,
        }
        if value.ci_low is None or value.ci_high is None:
            message = f"{value.value:.3f}x over {value.n} pairs: too few for an interval"
            return verdict(rule, key, State.INCONCLUSIVE, "few_pairs", message, evidence, "needs at least 3 pairs")
        span = f"{value.value:.3f}x, 95 % interval {value.ci_low:.3f}–{value.ci_high:.3f}, {value.n} pairs"
        if value.ci_low >= floor:
            return verdict(rule, key, State.PASS, "at_least_min", f"{span}: at least {floor:g}x", evidence)
        if value.ci_high < floor:
            step = f"cycles would have to be {floor / value.value:.2f} times as fast, or accepted runs that much longer"
            return verdict(rule, key, State.FAIL, "below_min", f"{span}: below {floor:g}x", evidence, step)
        step = more_pairs(comparison, floor)
        return verdict(
            rule, key, State.INCONCLUSIVE, "margin_not_excluded", f"{span}: {floor:g}x lies inside", evidence, step
        )


def with_source(found: Verdict, run: Run) -> Verdict:
    """A speed that hangs on an acceptance which is no trained pair's says so."""
    forced = "; acceptance was forced" if run.acceptance == "forced" else ""
    evidence = found.evidence if run.acceptance == "real" else {**found.evidence, "acceptance": run.acceptance}
    return replace(found, message=found.message + forced, evidence=evidence)


def more_pairs(comparison: Comparison, floor: float) -> str:
    interval = slot_interval(comparison.log_ratios, comparison.orders)
    gap = abs(interval.mean - math.log(floor)) if interval else 0.0
    if interval is None or gap < interval.sd / 30:
        return f"the true ratio is too close to {floor:g}x to tell from it"
    return f"needs about {pairs_needed(interval.sd, gap, len(comparison.log_ratios))} more pairs (--measurement-runs)"


GATE = Speed()
