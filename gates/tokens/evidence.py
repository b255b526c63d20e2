"""Figures of a token check for verdicts and messages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from specgate.contract import Cell, CellResult, Divergence, NearTies, Rule, RunView, TieLaw, TokenCheck

Evidence = dict[str, float | int | str | None]


DEFAULT_SIGMA: Final = 0.15
"""Rounding error of one logit (sd) that scored tokens may have if a rule names none: weights and cache in bfloat16."""
NAMES_CACHE: Final = "a coarse cache passes by its name in cache_sigma, or by a rule with a max_sigma for its role"


def ties_of(rule: Rule) -> NearTies:
    """Return the near ties that `rule` grants."""
    sigma = rule.params.get("max_sigma")
    margin = float(rule.params.get("near_tie_margin", 0.0))
    return NearTies(margin, None if sigma is None else float(sigma), tuple(cache_sigmas(rule).items()))


def cache_sigmas(rule: Rule) -> dict[str, float]:
    """Return cache format → the largest σ that `rule` lets it have. Raises ValueError for other than NAME NUMBER."""
    words = [part.split() for part in str(rule.params.get("cache_sigma", "")).split(",") if part.strip()]
    return {name: float(sigma) for name, sigma in words}


def sigma_allowed(rule: Rule, cell: Cell, run: RunView) -> float:
    """Return the largest σ that `rule` lets the engine of `cell` have: that of its cache's format, if it is named."""
    facts, ties = run.engines.get(cell.point.key), ties_of(rule)
    ties = replace(ties, max_sigma=DEFAULT_SIGMA if ties.max_sigma is None else ties.max_sigma)
    return ties.in_cache(facts.kv_cache if facts else "").max_sigma or DEFAULT_SIGMA


def sigma_at(allowed: float, places: int) -> float:
    """Return the largest σ that `places` of an engine may show together that rounds by no more than `allowed`."""
    return allowed * math.exp(OF_ONE_PLACE / math.sqrt(max(places, 1)))


OF_ONE_PLACE: Final = 0.65
"""How far ln σ of a single place lies above the engine's in 1 of 200: rounding differs from place to place."""


FAR: Final = 2.0
"""A gap so many times as far out as one may be is none of rounding, however often a run looks."""


def surely_wrong(check: TokenCheck, ties: NearTies) -> bool:
    """True if a token of `check` stays wrong: where no gap is a near tie, or one is known that is none. By law, the
    engine's two passes must have shown it, since a second engine may yet explain any other.
    """
    if ties.by_law:
        law = check.law
        return law is not None and any(
            d.rule == "B" and d.x is not None and d.x > FAR * law.furthest_allowed for d in check.mismatches
        )
    return check.law is None and any(not ties or d.margin is not None for d in check.mismatches)


def margin_of(d: Divergence, check: TokenCheck) -> str:
    """The gap at a divergence, in logits and, where it is known, in standard deviations of rounding."""
    if d.margin is None:
        return "top-2 margin unknown"
    if d.rule == "outside":
        return f"one of them is not among the most likely tokens: more than {d.margin:.3g} logits apart"
    if d.x is None or d.sigma is None:
        return f"top-2 margin {d.margin:.3g}"
    allowed = f", at most {check.law.furthest_allowed:.1f}" if check.law is not None else ""
    return f"{d.margin:.3g} logits apart, {d.x:.1f} σ{allowed}; σ {d.sigma:.2g} logits, by rule {d.rule}"


def as_texts(result: CellResult) -> str:
    """End of a message about a cell whose texts were compared as texts; empty if it has token ids."""
    named = "answers_as_texts" in result.values
    return "; compared as texts, since the server's answers have no token ids" if named else ""


def parted(check: TokenCheck, allowed: float) -> str:
    """Count the texts that leave the baseline's at a near tie, as a message; none is the best of them."""
    if not check.divergences:
        return f"{check.compared_tokens:,} tokens of {check.sequences} texts, all the baseline's"
    message = f"{len(check.divergences)} of {check.sequences} texts part, all at near ties"
    if (ties := check.law) is not None and ties.sigma is not None:
        message += (
            f": furthest {ties.furthest:.1f} σ (at most {ties.furthest_allowed:.1f}), mean square "
            f"{ties.mean_square:.1f} σ² (at most {ties.mean_square_allowed:.1f}), σ {ties.sigma:.2g} logits "
            f"(at most {sigma_at(allowed, ties.places):.2g})"
        )
    message += f"; {check.compared_tokens:,} tokens were compared"
    if (followed := check.followed) is not None and followed.sequences:
        again = f", {followed.near_ties} leave it at another near tie" if followed.near_ties else ""
        message += (
            f"; behind it {followed.tokens:,} tokens of {followed.sequences} texts are plain decoding's own{again}"
        )
    return message


def evidence_of(check: TokenCheck) -> Evidence:
    evidence: Evidence = {
        "compared_tokens": check.compared_tokens,
        "mismatches": len(check.mismatches),
        "near_ties": len(check.divergences) - len(check.mismatches),
        "emitted_tokens": check.emitted_tokens,
        "sequences": check.sequences,
        "parted": len(check.divergences),
    }
    if check.followed is not None:
        evidence |= {"followed": check.followed.sequences, "followed_tokens": check.followed.tokens}
        evidence |= {"followed_wrong": check.followed.wrong}
    if check.logits is not None:
        evidence |= {"compared_logits": check.logits.compared, "different_logits": check.logits.different}
    return evidence


def sigma_of(ties: TieLaw | None) -> Evidence:
    """The law's figures for a verdict; empty without any."""
    if ties is None or ties.sigma is None:
        return {}
    return {
        "places": ties.places,
        "sigma": ties.sigma,
        "furthest": ties.furthest,
        "furthest_allowed": ties.furthest_allowed,
        "mean_square": ties.mean_square,
        "mean_square_allowed": ties.mean_square_allowed,
    }


def extent(check: TokenCheck) -> str:
    """Count the tokens that were not compared, and the rows of logits that were, as a part of a message."""
    text = ""
    if check.emitted_tokens != check.compared_tokens:
        text += f" ({check.emitted_tokens - check.compared_tokens} more in prompt sets that this run does not sample)"
    if check.logits is not None:
        same = check.logits.compared - check.logits.different
        text += f", {same} of {check.logits.compared} rows of logits bit for bit"
    return text
