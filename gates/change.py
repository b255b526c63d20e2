"""Gate `change`: is a figure of run B at most a given margin worse than run A's?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.stats import ALPHA
from specgate.contract import BASELINE, BetweenRuns, Cell, Rule, State, Verdict
from specgate.contract.comparisons import Change, Contrast, How
from specgate.contract.metrics import METRICS
from specgate.gates.samples import Evidence, allowance
from specgate.gates.select import verdict

SPEEDS: Final[Mapping[str, str]] = {
    "speedup_vs_ar_ratio": "output_tok_s",
    "decode_speedup_ratio": "decode_tok_s",
    "joint_decode_speedup_ratio": "joint_decode_tok_s",
}
"""Speed-up → the speed that it is the ratio of, spec over baseline."""

WOULD_DECIDE: Final[Mapping[str | None, str]] = {
    "few_repetitions": "three files of each side, in a folder each; or both in turns: specgate ab URL URL"
}
"""Reason for which there is no interval → what would give one."""


class ChangeGate:
    """`metric`: the figure to compare. `margin_pct`: how much worse it may be, in percent. `trust_unpaired`: whether
    times that were measured one after the other may decide, which is reasonable if the clocks are locked and the
    machine is not shared.

    PASS if the 95 % interval of the ratio excludes a loss of more than the margin, FAIL if it excludes a smaller loss,
    IMPROVED if B is proven better, else INCONCLUSIVE. Whether a lower or a higher value is worse depends on the metric.
    A PASS whose interval excludes a gain of more than the margin too is called "the same": both one-sided tests of
    equivalence reject, each at 2.5 %.

    A speed-up also falls where the baseline gained more than speculation did. Where both roles became faster it is no
    FAIL: PASS if the rule trusts unpaired times, which that rests on, else INCONCLUSIVE.
    """

    name = "change"
    params: Mapping[str, type] = {"metric": str, "margin_pct": float, "trust_unpaired": bool}

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a metric that there is not."""
        if rule.params["metric"] not in METRICS:
            yield "metric", f"no metric; one is {', '.join(METRICS)}"

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]:
        changes = [c for c in contrast.changes if c.metric == rule.params["metric"] and rule.matches(c.cell)]
        if not changes:
            what = (
                f"no cell of both runs has {rule.params['metric']} under scenario {rule.scenario!r}, role {rule.role!r}"
            )
            yield verdict(rule, "", State.SKIPPED, "no_cell", what)
        for change in changes:
            judged = self.judge_change(rule, change)
            speeds = speeds_told(contrast, change)
            yield (
                judged if speeds is None else beside_speeds(judged, speeds, trusted=bool(rule.params["trust_unpaired"]))
            )

    def judge_change(self, rule: Rule, change: Change) -> Verdict:
        key, margin = change.cell.key, float(rule.params["margin_pct"])
        evidence = {**evidence_of(change), "margin_pct": margin}
        if change.ratio is None:
            state = State.INVALID if change.reason_code == "token_mismatch" else State.INCONCLUSIVE
            return verdict(rule, key, state, change.reason_code or "withheld", f"no ratio: {reason(change)}", evidence)
        if change.ci_low is None or change.ci_high is None:
            message = f"{change.ratio:.3f}x, without an interval: {reason(change)}"
            code, step = change.reason_code or "no_interval", WOULD_DECIDE.get(change.reason_code)
            return verdict(rule, key, State.INCONCLUSIVE, code, message, evidence, step)
        summary = f"{change.ratio:.3f}x, 95 % interval {change.ci_low:.3f}–{change.ci_high:.3f}, {change.how}"
        summary += allowed(change)
        if not change.same_prompts:
            step = "measure both on the same prompts: the same scenario, seed and pair"
            message = f"{summary}; B's prompts are not A's"
            return verdict(rule, key, State.INCONCLUSIVE, "prompts_differ", message, evidence, step)
        if change.how is How.UNPAIRED and not rule.params["trust_unpaired"]:
            step = "where clocks are locked, a rule may say trust_unpaired: true"
            message = f"{summary}: proves nothing"
            return verdict(rule, key, State.INCONCLUSIVE, "unpaired_in_time", message, evidence, step)
        worst, best = worse_to_better(change.metric, change.ci_low, change.ci_high)
        return verdict(rule, key, *decided(worst, best, margin, summary), evidence)


def decided(worst: float, best: float, margin_pct: float, summary: str) -> tuple[State, str, str]:
    """Return state, reason code and message for a ratio whose interval runs from `worst` to `best`; above 1 is better.

    `summary`: the interval in words, with which the message begins.
    """
    most = 1 + margin_pct / 100
    if best < 1 / most:
        return State.FAIL, "margin_exceeded", f"{summary}: more than {margin_pct:g} % worse"
    if worst < 1 / most:
        return State.INCONCLUSIVE, "margin_not_excluded", f"{summary}: a margin of {margin_pct:g} % lies inside"
    small = f", by less than {margin_pct:g} %" if best <= most else ""
    if worst > 1:
        return State.IMPROVED, "better", f"{summary}: better{small}"
    if best < 1:
        return State.PASS, "within_margin", f"{summary}: worse{small}"
    if small:
        return State.PASS, "same", f"{summary}: the same, within {margin_pct:g} % either way"
    return State.PASS, "within_margin", f"{summary}: at most {margin_pct:g} % worse"


# ── the two speeds behind a speed-up ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Speeds:
    """Changes of the tokens per second of a spec cell and of its baseline from A to B. Unpaired in time."""

    spec: Change
    baseline: Change

    @property
    def both_faster(self) -> bool:
        """True if both intervals lie above 1."""
        return all(c.ci_low is not None and c.ci_low > 1 for c in (self.spec, self.baseline))

    @property
    def both_slower(self) -> bool:
        """True if both intervals lie below 1."""
        return all(c.ci_high is not None and c.ci_high < 1 for c in (self.spec, self.baseline))

    def __str__(self) -> str:
        return f"tokens per second: {percent(self.spec)} in {self.spec.cell.role}, {percent(self.baseline)} in baseline"


def speeds_told(contrast: Contrast, speedup: Change) -> Speeds | None:
    """The two speeds of whose ratio `speedup` is made; None where they have no ratio, or if it is no speed-up."""
    speed = SPEEDS.get(speedup.metric, "")
    spec = contrast.change(speedup.cell, speed)
    baseline = contrast.change(Cell(speedup.cell.point, BASELINE), speed)
    if spec is None or baseline is None or spec.ratio is None or baseline.ratio is None:
        return None
    return Speeds(spec, baseline)


def beside_speeds(judged: Verdict, speeds: Speeds, *, trusted: bool) -> Verdict:
    """`judged`, a verdict on a speed-up, in view of the speeds behind it."""
    evidence = {**judged.evidence, "spec_ratio": speeds.spec.ratio, "baseline_ratio": speeds.baseline.ratio}
    if judged.state is State.FAIL and speeds.both_faster:
        return replace(
            judged,
            state=State.PASS if trusted else State.INCONCLUSIVE,
            reason_code="baseline_gained_more",
            message=f"{judged.message}, because the baseline gained more; {speeds}",
            next_step=None if trusted else "measure both builds in one session: between two runs, times prove nothing",
            evidence=evidence,
        )
    if judged.state is State.IMPROVED and speeds.both_slower:
        message = f"{judged.message}, because the baseline lost more; {speeds}"
        return replace(judged, state=State.PASS, reason_code="baseline_lost_more", message=message, evidence=evidence)
    return replace(judged, evidence=evidence)


def percent(change: Change) -> str:
    return f"{100 * ((change.ratio or 1.0) - 1):+.1f} %"


# ── words and figures ────────────────────────────────────────────────────────────────────────────────────────────────


def evidence_of(change: Change) -> Evidence:
    return {
        "metric": change.metric,
        "a": change.a,
        "b": change.b,
        "ratio": change.ratio,
        "ci_low": change.ci_low,
        "ci_high": change.ci_high,
        "n": change.n,
        "how": change.how.value,
        **({} if change.between is None or change.ci_low is None else processes_of(*change.between)),
    }


def processes_of(a: BetweenRuns, b: BetweenRuns) -> Evidence:
    """Return the noise between processes that the interval allows for. If it is assumed, there is no number of
    processes.
    """
    return {
        "process_sd_a": a.process_sd,
        "processes_a": None if a.process_freedom is None else a.process_freedom + 1,
        "process_sd_b": b.process_sd,
        "processes_b": None if b.process_freedom is None else b.process_freedom + 1,
    }


def allowed(change: Change) -> str:
    """Describe the noise between processes that the interval allows for, as the end of a message; empty if no time is
    involved.
    """
    if change.between is None:
        return ""
    a, b = (allowance(between, ALPHA) for between in change.between)
    return f", {a} in each run" if a == b else f", in A {a}, in B {b}"


def reason(change: Change) -> str:
    return (change.reason_code or "withheld").replace("_", " ")


def worse_to_better(name: str, low: float, high: float) -> tuple[float, float]:
    """The ends of an interval of B / A, the worse end first. If lower is better they are inverted, so that above 1 is
    always better.
    """
    return (low, high) if METRICS[name].direction == "higher" else (1 / high, 1 / low)


GATE = ChangeGate()
