"""Gate `acceptance`: is the acceptance length at least what the policy asks for?"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Final

from specgate.analysis.checks.drafting import inflated_length
from specgate.analysis.intervals.other_prompts import THESE, from_a_file, like_these_in_words
from specgate.analysis.intervals.rounding import told_from
from specgate.contract import ACCEPTANCE_LENGTH, CellResult, Floor, Rule, RunView, State, Verdict
from specgate.gates.select import CellGate, inflated, sets_lengths, steps_lost, verdict

NOT_THE_PAIRS: Final = {
    "forced": ("forced_acceptance", "acceptance was forced by the engine, not measured"),
    "stand-in": ("stand_in_drafter", "the drafts were a stand-in's, not the pair's"),
}
"""Sources of acceptance that say nothing about the pair → (reason code, message)."""

NEXT_TO_NOTHING: Final = 1.1
"""A trained draft has more than this acceptance length. With less, something is wrong with how the draft is run."""
WEAK_DRAFT: Final = "next to nothing is accepted: another target's draft, weights not loaded, or other capture layers?"
WEAK_METHOD: Final = (
    "next to nothing is accepted: a draft of another model, or a method that finds nothing to draft in these prompts?"
)


class Acceptance(CellGate):
    """`min`: the least acceptance length, in tokens per cycle, bonus token included.
    `as_reported`: true: of an engine that counts each step's own token as an accepted draft (TurboMind), hold the
    length that it prints itself to `min`: up to 1 longer than the tokens that a cycle emits. Others are judged as ever.

    Greedy decoding of fixed prompts is deterministic, so the measured length is compared with `min` as it is. Its
    interval over prompts says how well it holds on prompts like these. The interval is shown, but does not take part in
    the decision.

    The length is over the steps that had a draft. Where steps without one make it larger than the tokens that all steps
    emitted, it says nothing, and the cell is INVALID. A method that need not draft in every step, such as n-grams, is
    judged over all of its steps.
    """

    name = "acceptance"
    kinds = ("acceptance",)
    only_speculative = True
    params: Mapping[str, type | UnionType] = {"min": float, "as_reported": bool | None}

    def floor(self, rule: Rule) -> Floor:
        """Return the least acceptance length."""
        least = float(rule.params["min"])
        return Floor(ACCEPTANCE_LENGTH, least, f"≥ {least:g}")

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, floor = result.cell.key, float(rule.params["min"])
        if run.acceptance in NOT_THE_PAIRS:
            code, message = NOT_THE_PAIRS[run.acceptance]
            return verdict(rule, key, State.INVALID, code, message)
        value = result.values.get("acceptance_length")
        if value is None or value.value is None:
            message = "no step had a draft: there is no acceptance length"
            return verdict(rule, key, State.INVALID, "no_drafts", message, next_step="see the engine's log")
        if lost := steps_lost(rule, result):
            return lost
        lengths, length, counted = inflated_length(result), value.value, ""
        if lengths and not sets_lengths(result, run):
            return inflated(rule, key, *lengths)
        if lengths:
            length, counted = lengths[1], f" over all steps, {value.value:.3f} over those with a draft"
        evidence: dict[str, float | None] = {"acceptance_length": length}
        reported = result.values.get("reported_acceptance_length") if rule.params.get("as_reported") else None
        if reported is not None and reported.value is not None:
            length, counted = reported.value, f" by the engine's count, {value.value:.3f} emitted per cycle"
            evidence["reported_acceptance_length"] = length
        evidence |= {"min": floor, "ci_low": value.ci_low, "ci_high": value.ci_high, "prompts": value.n}
        own = from_a_file(run.prompts.get(result.cell.point.key, {}))
        length_text = told_from(floor, length, 3)
        beside = f" {THESE}; {like_these_in_words(value, 'prompt', '')}" if own else ""
        if length >= floor:
            message = f"acceptance length {length_text} ≥ {floor:g}{counted}{beside}"
            return verdict(rule, key, State.PASS, "at_least_min", message, evidence)
        step = f"the acceptance length would have to be {floor:g}: {told_from(0.0, floor - length, 2)} more"
        if length < NEXT_TO_NOTHING:
            step = WEAK_METHOD if sets_lengths(result, run) else WEAK_DRAFT
        message = f"acceptance length {length_text} < {floor:g}{counted}{beside}"
        return verdict(rule, key, State.FAIL, "below_min", message, evidence, step)


GATE = Acceptance()
