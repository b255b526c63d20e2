"""Gate `tail`: is a percentile of the requests' times at most what the policy asks for?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.requests.percentiles import ERROR
from specgate.contract import CellResult, Rule, RunView, State, Value, Verdict
from specgate.contract.metrics import PER_REQUEST, PERCENTILES, per_request
from specgate.gates.samples import looks_of
from specgate.gates.select import CellGate, late_client, more_rounds, refusals, verdict
from specgate.gates.speed import with_source

METRICS: Final = tuple(per_request(f"p{percent}", quantity) for quantity in PER_REQUEST for percent in PERCENTILES)


class Tail(CellGate):
    """`metric`: a percentile, such as `p99_itl_ms`. `max_ms`: the largest that it may be.

    PASS where the whole interval of the percentile lies at or below `max_ms`, FAIL where it lies above, else
    INCONCLUSIVE. The interval is made of order statistics (`analysis/requests/percentiles.py`): a bound for which there
    are too few samples is not there, and then the percentile itself decides nothing. INVALID where a server refused
    requests, which have no times: the gate `goodput` counts them.
    """

    name = "tail"
    params: Mapping[str, type] = {"metric": str, "max_ms": float}
    sequential: Literal[True] = True

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a metric that is no percentile."""
        if rule.params["metric"] not in METRICS:
            yield "metric", f"no percentile; one is {', '.join(METRICS)}"

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, metric, ceiling = result.cell.key, str(rule.params["metric"]), float(rule.params["max_ms"])
        percentile = result.values.get(metric)
        if percentile is None:
            return not_there(rule, result, run)
        if percentile.value is None:
            message = f"no {metric} may be quoted: {percentile.reason_code}"
            return verdict(rule, key, State.INVALID, percentile.reason_code or "withheld", message)
        if unfit := late_client(rule, result) or refusals(rule, result):
            return unfit
        return with_source(decided(rule, key, percentile, ceiling, run, result), run)


def not_there(rule: Rule, result: CellResult, run: RunView) -> Verdict:
    """The verdict on a cell that lacks the metric: SKIPPED where its kind of run cannot have it, with the reason."""
    metric, scenario = str(rule.params["metric"]), run.scenarios[result.cell.point.scenario]
    if scenario.kind == "micro" and ("ttft" in metric or "e2e" in metric):
        message = f"a micro run measures no whole requests, so it has no {metric}"
    else:
        message = f"no {metric}: no request had a second token"
    return verdict(rule, result.cell.key, State.SKIPPED, "not_measured", message)


def decided(rule: Rule, key: str, tail: Value, ceiling: float, run: RunView, result: CellResult) -> Verdict:
    """The verdict on a percentile that was measured."""
    assert tail.value is not None
    confidence = 1 - 2 * ERROR / len(looks_of(result, run))
    evidence = {
        tail.metric: tail.value,
        "max": ceiling,
        "ci_low": tail.ci_low,
        "ci_high": tail.ci_high,
        "confidence": confidence,
        "samples": tail.n,
    }
    value_text, low, high = (
        "?" if ms is None else told_from(ceiling, ms, 3) for ms in (tail.value, tail.ci_low, tail.ci_high)
    )
    summary = f"{tail.metric} {value_text} ms, {100 * confidence:.4g} % interval {low}–{high}, {tail.n} samples"
    if tail.ci_high is not None and tail.ci_high <= ceiling:
        return verdict(rule, key, State.PASS, "at_most_max", f"{summary}: at most {ceiling:g} ms", evidence)
    if tail.ci_low is not None and tail.ci_low > ceiling:
        step = "slow steps: see the blocks in running order, and what the machine did beside them"
        return verdict(rule, key, State.FAIL, "above_max", f"{summary}: above {ceiling:g} ms", evidence, step)
    if tail.ci_low is None or tail.ci_high is None:
        step = f"{more_rounds(result, run)}, or a rule on a lower percentile"
        message = f"{summary}: too few for {ceiling:g} ms to be decided"
        return verdict(rule, key, State.INCONCLUSIVE, "few_samples", message, evidence, step)
    step = f"{more_rounds(result, run)}: the interval has to leave the limit"
    message = f"{summary}: {ceiling:g} ms lies inside"
    return verdict(rule, key, State.INCONCLUSIVE, "limit_not_excluded", message, evidence, step)


GATE = Tail()
