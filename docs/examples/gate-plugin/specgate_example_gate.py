"""A ceiling on a percentile of the time per output token: what a service-level objective asks of single requests.

What an author implements is in `specgate.contract.protocols`; the nouns are in `specgate.contract`. A gate is pure: it
reads nothing but the rule and what it is shown of the run, so that `runs verify` comes to the same verdict from the
stored samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from specgate.contract import CellResult, Distribution, Kind, Rule, RunView, State, Verdict


class TimePerTokenPercentile:
    """`percentile`: above 0 and below 100. `max_ms`: milliseconds per output token, prefill excluded.

    Every request of a cell is one sample. The percentile p of n samples is only known where 1 of 100/(100 - p) samples
    may lie above it; with fewer, the verdict is INCONCLUSIVE.
    """

    name = "tpot-percentile"
    params: Mapping[str, type] = {"percentile": float, "max_ms": float}
    """Both must be set. specgate refuses a policy with other keys, other types, or numbers below 0."""

    sequential: Literal[True] = True
    """More samples may decide it (`specgate.contract.protocols.Sequential`): a point does not end early while it is
    INCONCLUSIVE.
    """

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return a kind of its own. If a required rule selects a cell and no verdict judges it, the run is NOT_JUDGED.

        A gate may also judge `validity`, `tokens`, `acceptance` or `speed`, which every run needs.
        """
        return ("latency",)

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse what cannot be meant (`specgate.contract.protocols.ChecksRules`), before anything is measured."""
        if not 0 < float(rule.params["percentile"]) < 100:
            yield "percentile", "it lies between 0 and 100"

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        """One verdict per cell that the rule selects; SKIPPED, without a cell, where it selects none."""
        results = [result for result in run.cells if rule.matches(result.cell)]
        if not results:
            message = f"no cell of this run matches scenario {rule.scenario!r} and role {rule.role!r}"
            yield verdict(rule, "", State.SKIPPED, "no_cell", message)
        for result in results:
            yield self.judge_cell(rule, result)

    def judge_cell(self, rule: Rule, result: CellResult) -> Verdict:
        key, percentile, ceiling = result.cell.key, float(rule.params["percentile"]), float(rule.params["max_ms"])
        latencies = result.distributions.get("tpot_ms")
        if result.status == "failed" or latencies is None:
            message = f"no request was timed: {result.reason or 'none emitted a token after its first'}"
            return verdict(rule, key, State.INVALID, "not_measured", message)
        measured = percentile_of(latencies, percentile)
        needed = math.ceil(round(100 / (100 - percentile), 6))
        evidence = {"tpot_ms": measured, "percentile": percentile, "max_ms": ceiling, "requests": latencies.n}
        text = f"p{percentile:g} of the time per output token is {measured:.3f} ms over {latencies.n} requests"
        if latencies.n < needed:
            step = f"needs {needed - latencies.n} more requests: a new run with more --measurement-runs"
            return verdict(rule, key, State.INCONCLUSIVE, "few_requests", f"{text}, of {needed} needed", evidence, step)
        if measured <= ceiling:
            return verdict(rule, key, State.PASS, "at_most_max", f"{text}, at most {ceiling:g} ms", evidence)
        return verdict(rule, key, State.FAIL, "above_max", f"{text}, above {ceiling:g} ms", evidence)


def verdict(
    rule: Rule,
    cell: str,
    state: State,
    reason_code: str,
    message: str,
    evidence: Mapping[str, float | int | str | None] | None = None,
    next_step: str | None = None,
) -> Verdict:
    return Verdict(rule.id, rule.gate, cell, state, rule.required, reason_code, message, evidence or {}, next_step)


def percentile_of(latencies: Distribution, percentile: float) -> float:
    """Between the two nearest order statistics, linearly. A run keeps at most 64 of them, evenly spaced."""
    position = percentile / 100 * (len(latencies.values) - 1)
    low = math.floor(position)
    high = min(low + 1, len(latencies.values) - 1)
    return latencies.values[low] + (position - low) * (latencies.values[high] - latencies.values[low])


GATE = TimePerTokenPercentile()
