"""Gate `change`: is a figure of run B at most a given margin worse than run A's?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.core import Rule, State, Verdict
from specgate.core.contrast import Change, Contrast, How
from specgate.core.metrics import METRICS, RENAMED
from specgate.gates.select import verdict


class ChangeGate:
    """`metric`: the figure to compare. `margin_pct`: how much worse it may be, in percent. `trust_unpaired`: whether
    times that were measured one after the other may decide, which is reasonable if the clocks are locked and the
    machine is not shared.

    PASS if the 95 % interval of the ratio excludes a loss of more than the margin, FAIL if it excludes a smaller loss,
    IMPROVED if B is proven better, else INCONCLUSIVE. Whether a lower or a higher value is worse depends on the metric.
    """

    name = "change"
    params: Mapping[str, type] = {"metric": str, "margin_pct": float, "trust_unpaired": bool}

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]:
        if rule.params["metric"] not in METRICS:
            what = f"metric: {rule.params['metric']!r} is none; one is {', '.join(METRICS)}"
            yield verdict(rule, "", State.INVALID, "no_such_metric", what)
            return
        found = [c for c in contrast.changes if c.metric == rule.params["metric"] and rule.matches(c.cell)]
        now = RENAMED.get(str(rule.params["metric"]))
        if not found and any(c.metric == now for c in contrast.changes):
            what = f"metric: runs since schema 1.4 have no {rule.params['metric']}: {now} took its place"
            yield verdict(rule, "", State.INVALID, "renamed_metric", what, next_step=f"write metric: {now}")
        elif not found:
            what = (
                f"no cell of both runs has {rule.params['metric']} under scenario {rule.scenario!r}, role {rule.role!r}"
            )
            yield verdict(rule, "", State.SKIPPED, "no_cell", what)
        for change in found:
            yield self.judge_change(rule, change)

    def judge_change(self, rule: Rule, change: Change) -> Verdict:
        key, margin = change.cell.key, float(rule.params["margin_pct"])
        evidence = {**evidence_of(change), "margin_pct": margin}
        if change.ratio is None:
            state = State.INVALID if change.reason_code == "token_mismatch" else State.INCONCLUSIVE
            return verdict(rule, key, state, change.reason_code or "withheld", f"no ratio: {reason(change)}", evidence)
        if change.ci_low is None or change.ci_high is None:
            message = f"{change.ratio:.3f}x, without an interval: {reason(change)}"
            return verdict(rule, key, State.INCONCLUSIVE, change.reason_code or "no_interval", message, evidence)
        said = f"{change.ratio:.3f}x, 95 % interval {change.ci_low:.3f}–{change.ci_high:.3f}, {change.how}"
        if not change.same_prompts:
            step = "measure both on the same prompts: the same scenario, seed and pair"
            message = f"{said}; B's prompts are not A's"
            return verdict(rule, key, State.INCONCLUSIVE, "prompts_differ", message, evidence, step)
        if change.how is How.UNPAIRED and not rule.params["trust_unpaired"]:
            step = "where clocks are locked, a rule may say trust_unpaired: true"
            message = f"{said}: proves nothing"
            return verdict(rule, key, State.INCONCLUSIVE, "unpaired_in_time", message, evidence, step)
        worst, best = worse_to_better(change.metric, change.ci_low, change.ci_high)
        return verdict(rule, key, *decided(worst, best, margin, said), evidence)


def decided(worst: float, best: float, margin_pct: float, said: str) -> tuple[State, str, str]:
    """State, reason code and message for a ratio whose interval runs from `worst` to `best`; above 1 is better.

    `said`: the interval in words, with which the message begins.
    """
    floor = 1 / (1 + margin_pct / 100)
    if best < floor:
        return State.FAIL, "margin_exceeded", f"{said}: more than {margin_pct:g} % worse"
    if worst < floor:
        return State.INCONCLUSIVE, "margin_not_excluded", f"{said}: a margin of {margin_pct:g} % lies inside"
    if worst > 1:
        return State.IMPROVED, "better", f"{said}: better"
    return State.PASS, "within_margin", f"{said}: at most {margin_pct:g} % worse"


def evidence_of(change: Change) -> dict[str, float | int | str | None]:
    return {
        "metric": change.metric,
        "a": change.a,
        "b": change.b,
        "ratio": change.ratio,
        "ci_low": change.ci_low,
        "ci_high": change.ci_high,
        "n": change.n,
        "how": change.how.value,
    }


def reason(change: Change) -> str:
    return (change.reason_code or "withheld").replace("_", " ")


def worse_to_better(name: str, low: float, high: float) -> tuple[float, float]:
    """The ends of an interval of B / A, the worse end first. If lower is better they are inverted, so that above 1 is
    always better.
    """
    return (low, high) if METRICS[name].direction == "higher" else (1 / high, 1 / low)


GATE = ChangeGate()
