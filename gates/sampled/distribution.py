"""Gate `distribution`: are texts drawn from the target's distribution?

At a temperature above 0, speculation that loses nothing draws from the very distribution that plain decoding draws
from. Its tokens need not be plain decoding's, unless both take the same random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Final

from specgate.contract import CellResult, Rule, RunView, State, Verdict
from specgate.contract.draws import Against, Allowance, DrawCheck, FitTest
from specgate.gates.select import CellGate, verdict

VERIFY: Final = "look at the verify: is it greedy, does it keep a rejected token, does it draw from the residual?"
STEPS: Final[Mapping[Against, str]] = {
    "target": f"`specgate diagnose parity` holds the engine's logits to the reference's; {VERIFY}",
    "own": VERIFY,
    "baseline": VERIFY,
}


class DistributionGate(CellGate):
    """`alpha`: the chance of a false alarm per cell, over all of its tests.

    `min_draws`: texts that have to be drawn for a verdict.
    `law_ulps`: by how many units in the last place the gap between two of the engine's logits may differ from the
    second engine's. `own_ulps`: and from its own, where its logits depend on what shares a pass. Without them 0.

    A cell is tested against the target's own distribution where a second engine showed it, against that which the
    engine shows itself, and a spec cell against the baseline's draws. Of a baseline whose distribution was not shown
    there is nothing to say. The allowances apply when the draws are reduced (`analysis.draws.fitting`).
    """

    name = "distribution"
    kinds = ("tokens",)
    params: Mapping[str, type | UnionType] = {
        "alpha": float,
        "min_draws": float,
        "law_ulps": float | None,
        "own_ulps": float | None,
    }

    def allowance(self, rule: Rule) -> Allowance:
        """Return the rounding that `rule` allows for."""
        return Allowance(*(float(rule.params.get(key, 0.0)) for key in ("law_ulps", "own_ulps")))

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        if run.scenarios[result.cell.point.scenario].sampling is None:
            message = "greedy decoding draws nothing: the gate `tokens` compares it"
            return verdict(rule, result.cell.key, State.SKIPPED, "greedy", message)
        if result.cell.role.speculative and run.acceptance == "forced":
            message = "acceptance was forced: the tokens are wrong by design"
            return verdict(rule, result.cell.key, State.INVALID, "forced_acceptance", message)
        return judge_draws(rule, result, run.draws.get(result.cell.key))


def judge_draws(rule: Rule, result: CellResult, check: DrawCheck | None) -> Verdict:
    key, alpha, enough = result.cell.key, float(rule.params["alpha"]), int(rule.params["min_draws"])
    if check is None or check.undrawn is not None:
        why = (check.undrawn if check else None) or "no texts were drawn"
        step = "an engine that draws independent requests (`protocols.DrawsTexts`)"
        return verdict(rule, key, State.NOT_JUDGED, "not_drawn", why, next_step=step)
    evidence = evidence_of(check)
    if check.draws < enough:
        message = f"{check.draws:,} texts were drawn, {enough:,} are needed"
        return verdict(rule, key, State.INCONCLUSIVE, "too_few_draws", message, evidence)
    worst = check.worst
    if worst is None:
        code, message = "nothing_to_compare", f"{check.draws:,} texts, and nothing to hold them against"
        message += f": {check.unshown}" if check.unshown else ""
        if not result.cell.role.speculative:
            return verdict(rule, key, State.SKIPPED, code, message, evidence)
        step = "draw more texts, or let a second engine show the target's distribution (`rescored_by` of the policy)"
        return verdict(rule, key, State.NOT_JUDGED, code, message, evidence, step)
    if check.p < alpha:
        step = STEPS[worst.against]
        return verdict(rule, key, State.INVALID, "not_the_targets", said_of(worst, check), evidence, step)
    message = f"{check.draws:,} texts fit in {len(check.tests)} tests (smallest p {worst.p:.2g}; {held_against(check)})"
    if check.unshown and check.own_engine:
        message += f"; its logits are the engine's own word: {check.unshown}"
    return verdict(rule, key, State.PASS, "distribution_kept", message, evidence)


def said_of(worst: FitTest, check: DrawCheck) -> str:
    """Describe a test's deviation that no chance explains."""
    place = "first token" if worst.position == 0 else f"token {worst.position + 1}"
    if worst.impossible and worst.p_impossible <= max(worst.p_chi_square, worst.p_g):
        return f"{place}: {worst.impossible:,} of {worst.draws:,} draws are of tokens that the target never draws"
    after = f" after {worst.contexts} beginnings" if worst.position else ""
    statistics = f"chi-square {worst.chi_square:.0f}, G {worst.g:.0f}, {worst.freedom} degrees of freedom"
    return f"{place}{after}: {worst.draws:,} draws do not fit {whose(worst, check)} ({statistics}, p {worst.p:.2g})"


def held_against(check: DrawCheck) -> str:
    """Name the references that the draws were tested against."""
    worst = {test.against: test for test in sorted(check.tests, key=lambda test: test.slack)}
    return "against " + " and ".join(
        whose(worst[kind], check) for kind in dict.fromkeys(t.against for t in check.tests)
    )


def whose(test: FitTest, check: DrawCheck) -> str:
    """Name the reference of `test`, and the error of logits that it allows for."""
    names = {
        "target": f"the target's distribution by {check.law_engine}",
        "own": f"what {check.own_engine} shows",
        "baseline": "the baseline's draws",
    }
    return names[test.against] + (f" with logits off by up to {test.slack:.2g}" if test.slack else "")


def evidence_of(check: DrawCheck) -> dict[str, float | int | str | None]:
    evidence: dict[str, float | int | str | None] = {"draws": check.draws, "tests": len(check.tests)}
    if (worst := check.worst) is not None:
        evidence |= {"p": check.p, "chi_square": worst.chi_square, "g": worst.g, "freedom": worst.freedom}
        evidence |= {"position": worst.position, "against": worst.against, "impossible": worst.impossible}
        evidence |= {"slack": max(test.slack for test in check.tests)}
    return evidence


GATE = DistributionGate()
