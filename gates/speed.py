"""Gate `speed`: is speculation at least so many times as fast as the baseline that it was paired with?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from specgate.analysis.intervals.other_prompts import SPEEDUP_LIKE_THESE, THESE, from_a_file, like_these_in_words
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.paired_blocks import other_speedups
from specgate.analysis.requests.joint_decoding import NO_JOINT_DECODING
from specgate.analysis.stats import Pairs
from specgate.contract import SPEEDUP, CellResult, Comparison, CycleBudget, Floor, Rule, RunView, State, Verdict
from specgate.contract.metrics import BATCH_SPEEDUPS
from specgate.gates.samples import decision_on, evidence_of, more_pairs, smallest_effect, span
from specgate.gates.select import CellGate, for_other_tokens, late_client, no_baseline, refusals, unmeasured, verdict


class Speed(CellGate):
    """`min`: the least ratio of output tokens per second, speculation over baseline.

    PASS if the interval lies at or above `min` at a planned look, FAIL if it lies below, else INCONCLUSIVE.
    """

    name = "speed"
    kinds = ("speed",)
    only_speculative = True
    params: Mapping[str, type] = {"min": float}
    sequential: Literal[True] = True

    def floor(self, rule: Rule) -> Floor:
        """Return the least speed-up."""
        least = float(rule.params["min"])
        return Floor(SPEEDUP, least, f"≥ {least:g}×")

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        if skipped := no_baseline(rule, result, run):
            return skipped
        if (comparison := run.comparison(result.cell.key)) is None:
            return unmeasured(rule, result, run)
        baseline = run.result(result.cell.baseline.key)
        if late := late_client(rule, result, baseline):
            return late
        if result.cell.point.rate is not None and (refused := refusals(rule, result, baseline)):
            return refused  # the speed of an open loop is a ratio of latencies
        judged = self.judge_pairs(rule, result, comparison, run)
        return with_source(with_other_prompts(judged, comparison, run), run)

    def judge_pairs(self, rule: Rule, result: CellResult, comparison: Comparison, run: RunView) -> Verdict:
        key, floor, value = comparison.cell.key, float(rule.params["min"]), comparison.speedup
        if value.reason_code == NO_JOINT_DECODING:
            message = (
                f"{value.n} pairs of blocks, but not in all of them is there a time at which all "
                f"{comparison.cell.point.batch} requests decode: some end, or nearly, before others are prefilled"
            )
            step = (
                "ask for more new tokens (steps), or for a smaller batch; where a request waits in the engine's queue, "
                "give it more places or a larger cache"
            )
            return verdict(rule, key, State.INCONCLUSIVE, NO_JOINT_DECODING, message, {"pairs": value.n}, step)
        if value.value is None:
            message = f"no speed-up may be quoted: {value.reason_code}"
            state = for_other_tokens(result) if value.reason_code == "token_mismatch" else State.INVALID
            return verdict(rule, key, state, value.reason_code or "withheld", message, {"pairs": value.n})
        log_floor = math.log(floor) if floor > 0 else -math.inf
        decision = decision_on(Pairs.of(comparison), rule, result, run, log_floor)
        mde = run.mde.get(key)
        beside: dict[str, float] = {}
        joint = result.values.get("joint_decode_share") if value.metric == "joint_decode_speedup_ratio" else None
        if joint is not None and joint.value is not None:
            beside = {joint.metric: joint.value}
        others = other_speedups(comparison)
        evidence = {value.metric: value.value, **others, "min": floor, **evidence_of(decision, mde), **beside}
        interval = decision.interval
        if interval is None:
            why = "too few for an interval" if value.ci_low is None else "no interim look has judged them"
            message = f"{value.value:.3f}x over {value.n} pair{'s' * (value.n != 1)}: {why}"
            step = more_pairs(decision, floor, result, run)
            return verdict(rule, key, State.INCONCLUSIVE, "few_pairs", message, evidence, step)
        while_all = "" if joint is None else f", while all {result.cell.point.batch} requests decode"
        in_words = ", ".join(f"{BATCH_SPEEDUPS[name]} {ratio:.3f}x" for name, ratio in others.items())
        summary = span(decision, interval, floor) + while_all
        here = f" {THESE}" if from_a_file(run.prompts.get(comparison.cell.point.key, {})) else ""
        behind = here + smallest_effect(mde) + (f"; {in_words}" if in_words else "")
        if decision.side == "above":
            message = f"{summary}: at least {floor:g}x{behind}"
            return verdict(rule, key, State.PASS, "at_least_min", message, evidence)
        if decision.side == "below":
            message = f"{summary}: below {floor:g}x{behind}"
            step = would_do(result, run, floor / math.exp(interval.mean)) + within_reach(run, key, floor)
            return verdict(rule, key, State.FAIL, "below_min", message, evidence, step)
        message = f"{summary}: {floor:g}x lies inside{behind}"
        step = more_pairs(decision, floor, result, run)
        return verdict(rule, key, State.INCONCLUSIVE, "margin_not_excluded", message, evidence, step)


def would_do(result: CellResult, run: RunView, factor: float) -> str:
    """Describe a change that would make a speed that is too low `factor` times as high.

    In a micro run, speed is acceptance length divided by cycle time. In a full run, prefill takes its share too.
    """
    if run.scenarios[result.cell.point.scenario].whole_requests:
        return f"whole requests, prefill included, would have to be {told_from(1.0, factor, 2)} times as fast"
    cycles = f"cycles would have to be {told_from(1.0, factor, 2)} times as fast"
    length = result.values.get("acceptance_length")
    if length is None or length.value is None:
        return cycles
    needed, most = length.value * factor, result.cell.role.k + 1
    if needed > most:
        return f"{cycles}: accepting every draft (AL {most}) would not do"
    return f"{cycles}, or AL would have to be {needed:.2f} (it is {length.value:.2f})"


def within_reach(run: RunView, key: str, floor: float) -> str:
    """Say if this pair can reach `floor` on this device at all; empty if that is not known."""
    budget = run.budgets.get(key)
    if budget is None or budget.limit is None or run.bandwidth is None:
        return ""
    highest, device = budget.limit.highest, run.bandwidth.device
    if highest < floor:
        unless = unless_overlap(budget, floor)
        beyond = f"; this gate cannot be reached on {device} with this pair{unless}"
        return f"{beyond}: {highest:.2f}x with the cycle at its floor"
    return f"; with the cycle at its floor it would be {highest:.2f}x"


def unless_overlap(budget: CycleBudget, floor: float) -> str:
    """The overlap of experts at which the gate could be reached after all, in words; empty where none would do."""
    needed = next((c.needed_overlap for c in budget.ceilings if c.min == floor), None)
    if needed is None or budget.experts is None:
        return ""
    now = "" if budget.experts.overlap is None else f" (it is {budget.experts.overlap:.2f})"
    if needed < 0.005:
        return f" unless the expert overlap is at least that of independent tokens{now}"
    return f" unless the expert overlap is {needed:.2f} or more{now}"


def with_other_prompts(judged: Verdict, comparison: Comparison, run: RunView) -> Verdict:
    """Add to a verdict on a user's own prompts what it is about, and what the run tells of prompts like these."""
    value = next((v for v in comparison.beside if v.metric == SPEEDUP_LIKE_THESE and v.value is not None), None)
    if (
        value is None
        or "ratio" not in judged.evidence
        or not from_a_file(run.prompts.get(comparison.cell.point.key, {}))
    ):
        return judged
    bounds = {"like_these_low": value.ci_low, "like_these_high": value.ci_high, "prompt_sets": value.n}
    message = f"{judged.message}; {like_these_in_words(value)}"
    return replace(judged, message=message, evidence={**judged.evidence, **bounds})


def with_source(judged: Verdict, run: RunView) -> Verdict:
    """Mark `judged` with the source of acceptance unless that is a trained pair, since the speed depends on it. Mark
    it, too, if its tokens may differ.
    """
    forced = "; acceptance was forced" if run.acceptance == "forced" else ""
    comparison = run.comparison(judged.cell)
    if comparison is not None and comparison.tokens.lossy:
        forced += "; of tokens that may differ from the baseline's"
    evidence = judged.evidence if run.acceptance == "real" else {**judged.evidence, "acceptance": run.acceptance}
    return replace(judged, message=judged.message + forced, evidence=evidence)


GATE = Speed()
