"""Gate `regression`: is a role at most a given margin slower than another role of the same rounds?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from specgate.analysis.intervals.between_runs import either
from specgate.analysis.stats import Pairs
from specgate.contract import (
    BASELINE,
    AllowedLoss,
    BetweenRuns,
    Cell,
    CellResult,
    Kind,
    Role,
    Rule,
    RunView,
    State,
    Verdict,
)
from specgate.gates.samples import between_of, decision_on, evidence_of, more_pairs, smallest_effect, span
from specgate.gates.select import CellGate, for_other_tokens, no_baseline, unmeasured, verdict
from specgate.gates.speed import with_source


class Regression(CellGate):
    """`against`: the other role. `margin_pct`: how much more time per token the role may take, in percent.

    This is a test of non-inferiority. PASS if the interval excludes a loss of more than the margin, FAIL if it excludes
    a smaller loss, IMPROVED if the role is proven faster and its mean gain exceeds the machine's minimum detectable
    effect, else INCONCLUSIVE.

    Both roles ran in the same rounds of one process, so the baseline that each is paired with cancels. A role of
    another run cannot be compared in this way.
    """

    name = "regression"
    only_speculative = True
    needs = "pairs of blocks"
    params: Mapping[str, type] = {"against": str, "margin_pct": float}
    sequential: Literal[True] = True

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return `speed` for a comparison with the baseline. A role that is no slower than another draft length may
        still be slower than plain decoding.
        """
        return ("speed",) if rule.params["against"] == BASELINE.name else ()

    def margin(self, rule: Rule) -> AllowedLoss:
        """Return how much slower the role may be."""
        return AllowedLoss("margin_pct", float(rule.params["margin_pct"]))

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a role that there cannot be."""
        try:
            Role.parse(str(rule.params["against"]))
        except ValueError as error:
            yield "against", str(error)

    def judge_planned(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        """Skip a cell that has nothing to be compared with, whether it has figures or not."""
        return self.judge_cell(rule, result, run)

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, against = result.cell.key, str(rule.params["against"])
        base = Role.parse(against)
        if base == result.cell.role:
            return verdict(rule, key, State.SKIPPED, "same_role", f"{against} is not compared with itself")
        if skipped := no_baseline(rule, result, run):  # every ratio is taken over the pairs with the baseline
            return skipped
        other = run.result(Cell(result.cell.point, base).key)
        if other is None:
            return verdict(rule, key, State.SKIPPED, "no_cell", f"no cell of this point has the role {against}")
        for measured in (result, other):
            if measured.status == "failed":
                return unmeasured(rule, measured, run)
        pairs = pairs_between(result.cell, other.cell, run)
        if pairs is None:
            message = "no speed may be quoted of one of the two roles: its tokens are not the baseline's"
            return verdict(rule, key, for_other_tokens(result), "token_mismatch", message)
        return with_source(self.judge_pairs(rule, result, pairs, run), run)

    def judge_pairs(self, rule: Rule, result: CellResult, pairs: Pairs, run: RunView) -> Verdict:
        key, margin, against = result.cell.key, float(rule.params["margin_pct"]), rule.params["against"]
        floor = 1 / (1 + margin / 100)
        decision = decision_on(pairs, rule, result, run, math.log(floor), between_roles(result, str(against), run))
        mde = run.mde.get(key)
        evidence = {"against": str(against), "margin_pct": margin, **evidence_of(decision, mde)}
        interval, step = decision.interval, more_pairs(decision, floor, result, run)
        if interval is None:
            message = f"{decision.pairs} pairs: too few for an interval"
            return verdict(rule, key, State.INCONCLUSIVE, "few_pairs", message, evidence, step)
        summary = f"{span(decision, interval)} against {against}"
        if decision.side == "below":
            step = f"a token would have to take {100 * (1 - math.exp(interval.mean) / floor):.1f} % less time"
            message = f"{summary}: more than {margin:g} % slower{smallest_effect(mde)}"
            return verdict(rule, key, State.FAIL, "margin_exceeded", message, evidence, step)
        if decision.side == "open":
            suspect = interval.mean < math.log(floor) and interval.high < 0
            message = f"{summary}: a margin of {margin:g} % lies inside" + ("; suspect" if suspect else "")
            evidence = {**evidence, "suspect": int(suspect)}
            return verdict(rule, key, State.INCONCLUSIVE, "margin_not_excluded", message, evidence, step)
        if interval.low > 0 and interval.mean > math.log1p(mde or 0.0):
            message, step = f"{summary}: faster", "adopt it as the role that others are held against"
            return verdict(rule, key, State.IMPROVED, "faster", message, evidence, step)
        message = f"{summary}: at most {margin:g} % slower{smallest_effect(mde)}"
        return verdict(rule, key, State.PASS, "within_margin", message, evidence)


def between_roles(result: CellResult, against: str, run: RunView) -> BetweenRuns:
    """Return the noise between runs in the ratio of a cell to the role `against` of its point."""
    mine, base = between_of(result.cell.key, run), Role.parse(against)
    return mine if base == BASELINE else either(mine, between_of(Cell(result.cell.point, base).key, run))


def pairs_between(cell: Cell, base: Cell, run: RunView) -> Pairs | None:
    """ln(speed of `cell` / speed of `base`) per round, computed from the pairs of each with the baseline.

    None if no speed of one of the two may be quoted.
    """
    comparisons = [run.comparison(c.key) for c in (cell, base) if c.role != BASELINE]
    if any(c is None or c.tokens.defects for c in comparisons):
        return None
    mine, *others = [Pairs.of(c) for c in comparisons if c is not None]
    return mine.over(others[0]) if others else mine


GATE = Regression()
