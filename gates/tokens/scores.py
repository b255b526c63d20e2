"""The check of a second engine, which scores a sample of the tokens."""

from __future__ import annotations

from specgate.contract import CellResult, Rule, RunView, ScoreCheck, State, Verdict
from specgate.gates.select import verdict
from specgate.gates.tokens.evidence import NAMES_CACHE, Evidence, sigma_allowed, sigma_at


def not_the_targets(rule: Rule, result: CellResult) -> Verdict | None:
    score = result.rescored
    if score is None or score.unscored is not None or not (score.wrong or (score.law and score.law.too_wide)):
        return None
    place = ""
    if score.worst is not None:
        prompt_set, round_, slot, position = score.worst
        place = f"; first to look at: prompt set {prompt_set}, round {round_}, slot {slot}, token {position}"
    message = f"of {score.scored} tokens that {score.engine} scored, {differing(score)}{place}"
    step = "the engine does not emit what this target would: other weights, or no decoding at all"
    return verdict(rule, result.cell.key, State.INVALID, "not_the_targets", message, scores_of(score), step)


def not_settled(rule: Rule, result: CellResult) -> Verdict | None:
    """A required rule cannot pass while nothing tells whether rounding explains a token."""
    score = result.rescored
    if score is None or not rule.required or score.law is None or not score.law.unknown:
        return None
    why = (score.unsettled or "it shows no logits of single tokens").splitlines()[0]
    message = (
        f"{score.law.unknown} of {score.scored} tokens that {score.engine} scored are not its choice, and whether "
        f"rounding explains that is not known: it was not asked in float32: {why}"
    )
    step = "logs/rescoring-float32.log; checks.rescored_by: none does without a second engine"
    return verdict(rule, result.cell.key, State.NOT_JUDGED, "scores_not_settled", message, scores_of(score), step)


def scored_too_coarsely(rule: Rule, result: CellResult, run: RunView) -> Verdict | None:
    """Rounding that explains a token must itself be no coarser than the policy lets pass."""
    score, allowed = result.rescored, sigma_allowed(rule, result.cell, run)
    if score is None or score.law is None or score.law.sigma is None:
        return None
    if score.law.sigma <= sigma_at(allowed, score.law.places):
        return None
    message = (
        f"{score.law.places} of {score.scored} tokens that {score.engine} scored are not its choice, at a rounding "
        f"error of σ {score.law.sigma:.2g} logits: coarser than the policy lets pass ({allowed:g})"
    )
    return verdict(rule, result.cell.key, State.FAIL, "rounds_too_coarsely", message, scores_of(score), NAMES_CACHE)


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
        "scored_settled": score.settled,
    }
    if score.gap_max is not None:
        evidence["scored_gap_max"] = score.gap_max
    if score.law is not None:
        evidence |= {"scored_furthest": score.law.furthest, "scored_mean_square": score.law.mean_square}
        if score.law.sigma is not None:
            evidence["scored_sigma"] = score.law.sigma
    if score.unsettled is not None:
        evidence["unsettled"] = score.unsettled
    return evidence


def scored(score: ScoreCheck | None) -> str:
    """Describe a second engine's scores of the tokens, as a part of a message; empty if none was asked."""
    if score is None:
        return ""
    if score.unscored is not None:
        return f"; the tokens are the engine's own word: {score.unscored.splitlines()[0]}"
    ties = f" but for {score.near_ties} near ties{by_law(score)}" if score.near_ties else ""
    return f"; {score.scored} scored by {score.engine}, all its choice{ties}"


def differing(score: ScoreCheck) -> str:
    """Describe the tokens that a second engine would not have chosen, as a part of a message."""
    total = score.near_ties + score.wrong + (score.law.unknown if score.law else 0)
    parts = f"{total} are not its choice"
    if score.wrong:
        far = "is not among its most likely ones" if score.gap_max is None else f"lies {score.gap_max:.3g} below it"
        parts += f", {score.wrong} of them further off than rounding explains (the furthest {far} in logits)"
    elif score.law is not None and score.law.too_wide:
        parts += ", taken together further off than rounding explains"
    return f"{parts}{by_law(score)}"


def by_law(score: ScoreCheck) -> str:
    """Describe how far tokens lie from a second engine's choice, in standard deviations; empty where none does."""
    law = score.law
    if law is None or not law.places:
        return ""
    sigma = "" if law.sigma is None else f", σ {law.sigma:.2g}"
    return f" (furthest {law.furthest:.1f} of {law.furthest_allowed:.1f} standard deviations{sigma})"
