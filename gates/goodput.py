"""Gate `goodput`: do enough of a server's requests keep to the scenario's latency limits?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.requests.goodput import limits_in_words
from specgate.analysis.requests.percentiles import ERROR
from specgate.contract import CellResult, Rule, RunView, State, Verdict
from specgate.gates.samples import looks_of
from specgate.gates.select import CellGate, late_client, more_rounds, verdict
from specgate.gates.speed import with_source


class Goodput(CellGate):
    """`min_share`: the least share of requests, from 0 to 1, that keep to every limit of the scenario's `goodput`.

    PASS where the whole interval of the share lies at or above `min_share`, FAIL where it lies below, else
    INCONCLUSIVE. Engines in the harness's process have no queue and no client, so that they have no goodput: SKIPPED.
    """

    name = "goodput"
    params: Mapping[str, type] = {"min_share": float}
    sequential: Literal[True] = True

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a share above 1."""
        if float(rule.params["min_share"]) > 1:
            yield "min_share", "no share: it lies between 0 and 1"

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, floor = result.cell.key, float(rule.params["min_share"])
        limits, goodput = run.scenarios[result.cell.point.scenario].goodput, result.values.get("goodput_share")
        if limits is None:
            message = f"{result.cell.point.scenario} states no limits: goodput: {{ttft_ms: …, tpot_ms: …}} would"
            return verdict(rule, key, State.SKIPPED, "no_limits", message)
        if goodput is None:
            message = "goodput is of requests to a server; this engine runs in the harness's process"
            return verdict(rule, key, State.SKIPPED, "not_served", message)
        if goodput.value is None:
            message = f"no goodput may be quoted: {goodput.reason_code}"
            return verdict(rule, key, State.INVALID, goodput.reason_code or "withheld", message)
        if late := late_client(rule, result):
            return late
        rate, confidence = result.values.get("goodput_req_s"), 1 - 2 * ERROR / len(looks_of(result, run))
        evidence = {
            "goodput_share": goodput.value,
            "min": floor,
            "ci_low": goodput.ci_low,
            "ci_high": goodput.ci_high,
            "confidence": confidence,
            "requests": goodput.n,
            "goodput_req_s": rate.value if rate else None,
        }
        share, low, high = (
            "?" if part is None else told_from(100 * floor, 100 * part, 1)
            for part in (goodput.value, goodput.ci_low, goodput.ci_high)
        )
        summary = f"{share} % of {goodput.n} requests kept to {limits_in_words(limits)}"
        if goodput.ci_low is None or goodput.ci_high is None:
            step = more_rounds(result, run)
            return verdict(rule, key, State.INCONCLUSIVE, "few_samples", f"{summary}: too few", evidence, step)
        summary += f", {100 * confidence:.4g} % interval {low}–{high} %"
        if goodput.ci_low >= floor:
            made = verdict(rule, key, State.PASS, "at_least_min", f"{summary}: at least {100 * floor:g} %", evidence)
        elif goodput.ci_high < floor:
            step = "fewer requests at once, or a faster prefill (TTFT) or decode (TPOT)"
            made = verdict(rule, key, State.FAIL, "below_min", f"{summary}: below {100 * floor:g} %", evidence, step)
        else:
            step = f"{more_rounds(result, run)}: the interval has to leave the share"
            message = f"{summary}: {100 * floor:g} % lies inside"
            made = verdict(rule, key, State.INCONCLUSIVE, "share_not_excluded", message, evidence, step)
        return with_source(made, run)


GATE = Goodput()
