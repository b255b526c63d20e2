"""The check of a second engine, which scores a sample of the tokens."""

from __future__ import annotations

from specgate.contract import CellResult, Rule, ScoreCheck, State, Verdict
from specgate.gates.select import verdict
from specgate.gates.tokens.evidence import Evidence


def not_the_targets(rule: Rule, result: CellResult) -> Verdict | None:
    score = result.rescored
    if score is None or (not score.wrong and score.near_ties <= score.near_ties_allowed):
        return None
    place = ""
    if score.worst is not None:
        prompt_set, round_, slot, position = score.worst
        place = f"; first to look at: prompt set {prompt_set}, round {round_}, slot {slot}, token {position}"
    message = (
        f"of {score.scored} tokens that {score.engine} scored, {score.wrong} are not its choice and "
        f"{score.near_ties} near ties, {score.near_ties_allowed} allowed (largest gap {score.gap_max:.3g} in "
        f"logits){second_look(score)}{place}"
    )
    step = "the engine does not emit what this target would: other weights, or no decoding at all"
    return verdict(rule, result.cell.key, State.INVALID, "not_the_targets", message, scores_of(score), step)


def second_engine_lost(rule: Rule, result: CellResult) -> Verdict | None:
    """Nobody has looked at the tokens if the second engine was ended, hung or failed. A required rule cannot pass."""
    score = result.rescored
    if score is None or not score.lost or not rule.required or score.unscored is None:
        return None
    message = f"the second engine failed twice, so that nobody has scored the tokens: {score.unscored.splitlines()[0]}"
    step = "logs/rescoring.log; a longer checks.within_s if it was slow; checks.rescored_by: none does without it"
    return verdict(rule, result.cell.key, State.NOT_JUDGED, "second_engine_lost", message, scores_of(score), step)


def scores_of(score: ScoreCheck | None) -> Evidence:
    if score is None:
        return {}
    if score.unscored is not None:
        return {"scored_tokens": 0, "unscored": score.unscored}
    evidence: Evidence = {
        "scored_tokens": score.scored,
        "scored_by": score.engine,
        "scored_near_ties": score.near_ties,
        "scored_wrong": score.wrong,
        "scored_gap_max": score.gap_max,
    }
    if score.again:
        evidence |= {"scored_again": score.again, "scored_settled": score.settled}
    if score.unsettled is not None:
        evidence["unsettled"] = score.unsettled
    return evidence


def scored(score: ScoreCheck | None) -> str:
    """Describe a second engine's scores of the tokens, as a part of a message; empty if none was asked."""
    if score is None:
        return ""
    if score.unscored is not None:
        return f"; the tokens are the engine's own word: {score.unscored.splitlines()[0]}"
    ties = f" but for {score.near_ties} near ties{second_look(score)}" if score.near_ties else ""
    return f"; {score.scored} scored by {score.engine}, all its choice{ties}"


def second_look(score: ScoreCheck) -> str:
    """Describe a second look in float32 at tokens in doubt, as a part of a message; empty if there was none."""
    if score.unsettled is not None:
        return f"; a second look in float32 failed: {score.unsettled.splitlines()[0]}"
    if score.wrong and score.again:
        return f"; in float32 {score.again - score.settled} of the {score.again} beyond the bound stay there"
    return f", {score.settled} of them in float32 alone" if score.settled else ""
