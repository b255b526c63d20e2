"""Figures of a token check for verdicts and messages."""

from __future__ import annotations

from specgate.analysis.tokens.divergences import mean_gap
from specgate.contract import Divergence, NearTies, Rule, TokenCheck

Evidence = dict[str, float | int | str | None]


def ties_of(rule: Rule) -> NearTies:
    keys = ("near_tie_margin", "near_tie_ulps", "rare_tie_ulps")
    return NearTies(*(float(rule.params.get(key, 0.0)) for key in keys))


def too_many_rare(check: TokenCheck, ties: NearTies) -> bool:
    """True if every text that wrongly leaves the baseline's would be allowed to if they were fewer."""
    near = {d.key for d in check.divergences if d.near_tie}
    rare = {d.key for d in check.mismatches}
    few = len(rare) <= ties.allowed_rare(len(near | rare))
    return not few and all(ties.rarely_covers(d.margin, d.unit) for d in check.mismatches)


def margin_of(d: Divergence) -> str:
    """The gap at a divergence, in logits and, where they are known, in units in the last place."""
    if d.margin is None:
        return "unknown"
    return f"{d.margin:.3g}" + (f", {d.margin / d.unit:.3g} units in the last place" if d.unit else "")


def parted(check: TokenCheck, ties: NearTies) -> str:
    """Count the texts that leave the baseline's at a near tie, as a message; none is the best of them."""
    if not check.divergences:
        return f"{check.compared_tokens:,} tokens of {check.sequences} texts, all the baseline's"
    largest = max((d.margin / d.unit for d in check.divergences if d.margin is not None and d.unit), default=0.0)
    rare = len({d.key for d in check.divergences if ties.rarely_covers(d.margin, d.unit)})
    allowed = f"{ties.ulps:g} allowed" + (f", {ties.rare_ulps:g} at {rare} of them" if rare else "")
    message = (
        f"{len(check.divergences)} of {check.sequences} texts leave the baseline's at a near tie (at most "
        f"{largest:.3g} units in the last place, {allowed}); {check.compared_tokens:,} tokens were compared"
    )
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


def gaps_of(rule: Rule, check: TokenCheck) -> Evidence:
    """The mean gap where texts part, for a rule that has a bound for it."""
    if not rule.params.get("mean_tie_ulps") or (gap := mean_gap(check.divergences)) is None:
        return {}
    return {"parting_places": gap.places, "mean_gap_ulps": gap.mean, "mean_gap_ulps_at_least": gap.at_least}


def extent(check: TokenCheck) -> str:
    """Count the tokens that were not compared, and the rows of logits that were, as a part of a message."""
    text = ""
    if check.emitted_tokens != check.compared_tokens:
        text += f" ({check.emitted_tokens - check.compared_tokens} more in prompt sets that this run does not sample)"
    if check.logits is not None:
        same = check.logits.compared - check.logits.different
        text += f", {same} of {check.logits.compared} rows of logits bit for bit"
    return text
