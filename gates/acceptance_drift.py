"""Gate `acceptance-drift`: does the acceptance length keep up while the engine answers more and more requests?"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Literal

from specgate.analysis.intervals.decision import FALSE_PASS, false_fail
from specgate.analysis.speculation.uptime import fall_pct, in_words, requests_needed
from specgate.contract import AcceptanceDrift, CellResult, Rule, RunView, State, Verdict
from specgate.gates.samples import looks_of
from specgate.gates.select import CellGate, verdict


class AcceptanceDriftGate(CellGate):
    """`max_fall_pct`: by how much the acceptance length may fall per 1,000 requests that the engine has answered, in
    percent of itself. `min_requests`: with fewer of them from the cell's first block to its last nothing is decided;
    left out, any number will do.

    PASS where the interval of the slope excludes a larger fall, FAIL where it excludes a smaller one, else
    INCONCLUSIVE: the run is too short to say. The errors are those of a speed verdict, split equally over the looks of
    the scenario (`docs/statistics.md`). Where every block of a prompt set accepted the same, the slope is 0, without an
    interval.
    """

    name = "acceptance-drift"
    only_speculative = True
    params: Mapping[str, type | UnionType] = {"max_fall_pct": float, "min_requests": float | None}
    sequential: Literal[True] = True

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, most, least = result.cell.key, float(rule.params["max_fall_pct"]), rule.params.get("min_requests", 0.0)
        if run.acceptance == "forced":
            return verdict(rule, key, State.SKIPPED, "forced_acceptance", "acceptance was forced: no uptime changes it")
        drift, more = result.drift, "a new run with more --measurement-runs, or more requests per block"
        if drift is None:
            message = "too few blocks of an engine that keeps running, to see whether its acceptance changes"
            return verdict(rule, key, State.INCONCLUSIVE, "few_blocks", message, next_step=more)
        looks = len(looks_of(result, run))
        errors = FALSE_PASS / looks, false_fail(rule.required, run.required_decisions) / looks
        worst, mildest = fall_pct(drift, errors[0])[1], fall_pct(drift, errors[1])[0]
        summary = in_words(drift, errors)
        evidence = evidence_of(drift, most, worst, mildest)
        if drift.requests < float(least):
            message = f"{summary}: fewer than the {float(least):,.0f} requests that are asked for"
            return verdict(rule, key, State.INCONCLUSIVE, "few_requests", message, evidence, more)
        if worst <= most:
            message = f"{summary}: at most {most:g} % per 1,000 requests are lost"
            return verdict(rule, key, State.PASS, "keeps_up", message, evidence)
        if mildest > most:
            message = f"{summary}: more than {most:g} % per 1,000 requests are lost"
            step = (
                "restart the engine: if acceptance comes back, something in it goes stale (a draft's cache, its state)"
            )
            return verdict(rule, key, State.FAIL, "falls", message, evidence, step)
        step = f"{more}: about {requests_needed(drift, most, errors[0]):,} requests would tell"
        message = f"{summary}: too short to say whether {most:g} % per 1,000 requests are lost"
        return verdict(rule, key, State.INCONCLUSIVE, "fall_not_excluded", message, evidence, step)


def evidence_of(
    drift: AcceptanceDrift, most: float, worst: float, mildest: float
) -> dict[str, float | int | str | None]:
    return {
        "tokens_per_1000_requests": drift.slope,
        "error": drift.error,
        "correlation": drift.correlation,
        "set_error": drift.set_error,
        "acceptance_length": drift.length,
        "worst_fall_pct": worst,
        "mildest_fall_pct": mildest,
        "max": most,
        "requests": drift.requests,
        "blocks": len(drift.blocks),
    }


GATE = AcceptanceDriftGate()
