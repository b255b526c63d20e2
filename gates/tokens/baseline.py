"""The tokens of a spec cell beside the baseline's: each function returns a verdict on one difference, or None."""

from __future__ import annotations

from typing import Final

from specgate.analysis.intervals.rounding import told_from
from specgate.contract import CellResult, Comparison, Rule, RunView, State, Verdict
from specgate.gates.select import NO_TEXTS, refusals, verdict
from specgate.gates.tokens.evidence import (
    NAMES_CACHE,
    Evidence,
    as_texts,
    evidence_of,
    margin_of,
    sigma_allowed,
    sigma_at,
    sigma_of,
    ties_of,
)
from specgate.gates.tokens.scores import by_law, scores_of


def cut_short(comparison: Comparison, run: RunView) -> bool:
    """Return whether the run ended before it asked for every text and every gap of the comparison."""
    return not {"run", comparison.cell.point.key}.isdisjoint(run.failures)


def nothing_compared(rule: Rule, result: CellResult, run: RunView, evidence: Evidence) -> Verdict:
    """The verdict on a cell none of whose texts could be compared."""
    beside = run.result(result.cell.baseline.key) if result.cell.role.speculative else None
    if refused := refusals(rule, result, beside, NO_TEXTS):
        return refused
    message = "no pair of blocks to compare"
    return verdict(rule, result.cell.key, State.INVALID, "nothing_compared", message, evidence)


def unequal(rule: Rule, result: CellResult, comparison: Comparison, run: RunView) -> Verdict | None:
    key, check = comparison.cell.key, comparison.tokens
    if check.compared_tokens == 0:
        return nothing_compared(rule, result, run, evidence_of(check))
    if not check.mismatches:
        return None
    # A place that is surely wrong says most; a run that was cut short has not asked for every gap.
    d = max(
        check.mismatches,
        key=lambda d: (d.margin is not None and not d.untold, d.x or 0.0, -1.0 if d.margin is None else d.margin),
    )
    message = (
        f"{len(check.mismatches)} sequences leave the baseline; first: prompt set {d.prompt_set}, round {d.round}, "
        f"slot {d.slot}, token {d.position}: {d.got} instead of {d.expected} ({margin_of(d, check)})"
    )
    if d.margin is None and ties_of(rule) and cut_short(comparison, run):
        step = "continue with --resume: the run ended before it asked how close the two tokens are there"
        return verdict(rule, key, State.INVALID, "margin_not_asked", message, evidence_of(check), step)
    if d.margin is None and ties_of(rule) and (compared := as_texts(result)):
        message += compared
        return verdict(rule, key, State.NOT_JUDGED, "texts_part", message, evidence_of(check), TELLS_IDS)
    if ties_of(rule).by_law and d.untold:
        message = (
            f"{len(check.mismatches)} texts leave the baseline's where two tokens are close ({d.margin:.3g} logits at "
            f"prompt set {d.prompt_set}, slot {d.slot}, token {d.position}), and nothing tells how the engine rounds"
        )
        return verdict(rule, key, State.NOT_JUDGED, "sigma_unknown", message, evidence_of(check), TELLS_SIGMA)
    step = "the engine emits wrong tokens: compare verify logits with the baseline's at that position"
    if d.margin is None and ties_of(rule):
        step = TELLS_MARGIN
    return verdict(rule, key, State.INVALID, "token_mismatch", message, evidence_of(check), step)


TELLS_SIGMA: Final = (
    "a second engine in float32 on the same weights (checks.rescored_by), or an engine that ranks 10 tokens or more"
)


TELLS_MARGIN: Final = (
    "wrong tokens, or near ties that nobody can tell, since the engine showed no log-probabilities there: let it show "
    "them, or give its weights (--target), so that a second engine scores the tokens"
)


TELLS_IDS: Final = (
    "nothing tells a near tie from a wrong token: an end point with token ids, or -o logprobs=on, which names each one"
)


def ties_too_wide(rule: Rule, comparison: Comparison, run: RunView) -> Verdict | None:
    """Near ties one by one may still be, all together, what no rounding makes; and rounding may be too coarse."""
    key, ties = comparison.cell.key, comparison.tokens.law
    if ties is None or not ties_of(rule).by_law:
        return None
    evidence = {**evidence_of(comparison.tokens), **sigma_of(ties)}
    if ties.too_wide:
        message = (
            f"the gaps at {ties.places} places where texts part are too wide taken together: their mean square is "
            f"{ties.mean_square:.2f} σ², and rounding makes at most {ties.mean_square_allowed:.2f} "
            f"(furthest {ties.furthest:.1f} σ, σ {ties.sigma or 0:.2g} logits)"
        )
        step = "does the engine accept drafts that are merely near the best (relaxed or typical acceptance)?"
        return verdict(rule, key, State.INVALID, "ties_too_wide", message, evidence, step)
    allowed = sigma_allowed(rule, comparison.cell, run)
    if ties.sigma is not None and ties.sigma > (most := sigma_at(allowed, ties.places)):
        message = (
            f"the engine rounds more coarsely than the policy lets pass: σ {ties.sigma:.2g} logits at {ties.places} "
            f"places where texts part, at most {most:.2g} (at many places {allowed:g})"
        )
        return verdict(rule, key, State.FAIL, "rounds_too_coarsely", message, evidence, NAMES_CACHE)
    return None


def not_greedy(rule: Rule, comparison: Comparison) -> Verdict | None:
    """Behind a near tie a text must stay greedy."""
    key, check = comparison.cell.key, comparison.tokens
    if check.followed is not None and check.followed.wrong and check.followed.first is not None:
        prompt_set, round_, slot, position = check.followed.first
        message = (
            f"{check.followed.wrong} of {check.followed.sequences} texts are not greedy behind the near tie where "
            f"they left the baseline's, or were not followed; first: prompt set {prompt_set}, round {round_}, "
            f"slot {slot}, token {position}"
        )
        step = "plain decoding from the same text must choose the same tokens; an engine shows it by `follow`"
        return verdict(rule, key, State.INVALID, "not_greedy", message, evidence_of(check), step)
    if check.followed is not None and check.followed.unknown:
        message = (
            f"{check.followed.unknown} of {check.followed.sequences} texts leave plain decoding once more, where "
            "two tokens are close and nothing tells how the engine rounds"
        )
        return verdict(rule, key, State.NOT_JUDGED, "sigma_unknown", message, evidence_of(check), TELLS_SIGMA)
    return None


def not_compared(rule: Rule, comparison: Comparison, run: RunView) -> Verdict | None:
    """Every text must have been compared to its end; of a sampled point, one prompt set's texts."""
    check = comparison.tokens
    left = sorted(set(comparison.prompt_sets) - set(check.whole_sets))
    if not left or (run.sampled_after is not None and check.whole_sets):
        return None
    message = (
        f"{check.compared_tokens:,} of {check.emitted_tokens:,} tokens could be compared: in prompt set {left[0]} "
    )
    if cut_short(comparison, run):
        message += "the run was cut short before the baseline's text was as long"
        step = "continue with --resume"
    else:
        message += "the baseline's text, decoded again to compare longer ones, is too short or begins with other tokens"
        step = "the baseline must decode as many steps as it is asked for, and repeat its text"
    return verdict(rule, comparison.cell.key, State.INVALID, "text_not_compared", message, evidence_of(check), step)


def unequal_logits(rule: Rule, comparison: Comparison) -> Verdict | None:
    """A policy that allows no near tie wants equal bits, and not of the tokens alone."""
    check, logits = comparison.tokens, comparison.tokens.logits
    exact = not ties_of(rule)
    if logits is None or not logits.different or logits.first is None or not exact:
        return None
    prompt_set, slot, position = logits.first
    message = (
        f"the tokens are the baseline's, but {logits.different} of {logits.compared} sampled rows of logits are "
        f"not; first: prompt set {prompt_set}, slot {slot}, token {position}"
    )
    step = "the result of a row depends on how many rows share the pass: near_tie_margin > 0 would accept that"
    return verdict(rule, comparison.cell.key, State.INVALID, "logits_differ", message, evidence_of(check), step)


def judge_lossy(rule: Rule, result: CellResult, comparison: Comparison, run: RunView) -> Verdict:
    """Tokens that may differ are judged by how many do not, and only where the rule says how many these must be."""
    key, check, score = comparison.cell.key, comparison.tokens, result.rescored
    share, least = check.equal_share, rule.params.get("min_equal_share")
    if share is None:
        return nothing_compared(rule, result, run, evidence_of(check))
    evidence = {**evidence_of(check), **scores_of(score), "equal_share": share}
    by = "the policy's" if rule.params.get("lossy") else "the engine's own"
    share_text = told_from(100 * float(least or 0.0), 100 * share, 1)
    summary = (
        f"lossy by {by} word: {share_text}% of {check.emitted_tokens:,} tokens stand before the first "
        f"that is not the baseline's, {len(check.divergences)} texts differ"
    )
    if score is not None and score.unscored is None:
        summary += f"; of {score.scored} tokens that {score.engine} scored, {score.wrong} are not its choice"
        summary += by_law(score)
    if least is None:
        step = "min_equal_share in the rule judges them, or an entry of not_judged says why nothing has to"
        return verdict(rule, key, State.SKIPPED, "lossy", summary, evidence, step)
    if share < float(least):
        message = f"{summary} (at least {100 * float(least):g}% are asked for)"
        return verdict(rule, key, State.FAIL, "too_few_equal", message, evidence)
    message = f"{summary} ({100 * float(least):g}% are asked for)"
    return verdict(rule, key, State.PASS, "equal_share", message, evidence)
