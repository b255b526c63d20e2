"""The tokens of a spec cell beside the baseline's: each function returns a verdict on one difference, or None."""

from __future__ import annotations

from specgate.analysis.tokens.divergences import mean_gap
from specgate.contract import CellResult, Comparison, Rule, RunView, State, Verdict
from specgate.gates.select import verdict
from specgate.gates.tokens.evidence import evidence_of, gaps_of, margin_of, ties_of, too_many_rare
from specgate.gates.tokens.scores import by_law, scores_of


def unequal(rule: Rule, comparison: Comparison, run: RunView) -> Verdict | None:
    key, check = comparison.cell.key, comparison.tokens
    if check.compared_tokens == 0:
        message = "no pair of blocks to compare"
        return verdict(rule, key, State.INVALID, "nothing_compared", message, evidence_of(check))
    if not check.mismatches:
        return None
    # A run that was cut short has not asked for every gap: a place whose gap is known says more.
    d = next((d for d in check.mismatches if d.margin is not None), check.mismatches[0])
    message = (
        f"{len(check.mismatches)} sequences leave the baseline; first: prompt set {d.prompt_set}, "
        f"slot {d.slot}, token {d.position}: {d.got} instead of {d.expected} (top-2 margin {margin_of(d)})"
    )
    if d.margin is None and ties_of(rule) and run.status == "interrupted":
        step = "continue with --resume: the run ended before it asked how close the two tokens are there"
        return verdict(rule, key, State.INVALID, "margin_not_asked", message, evidence_of(check), step)
    step = "the engine emits wrong tokens: compare verify logits with the baseline's at that position"
    if ties_of(rule).ulps and d.unit is None:
        step = "too few log-probabilities are shown there, or on no grid: no unit in the last place is seen"
    elif too_many_rare(check, ties_of(rule)):
        message += f"; {ties_of(rule).rare_ulps:g} are allowed for 1 place where texts part and 1 more of every 50"
    elif all(ties_of(rule).rarely_covers(d.margin, d.unit) for d in check.mismatches):
        step = (
            "a rare near tie, unless one of the two tokens is not among the most likely there: a run.json does not "
            "tell; `specgate runs check RUN` judges the folder"
        )
    return verdict(rule, key, State.INVALID, "token_mismatch", message, evidence_of(check), step)


def ties_too_wide(rule: Rule, comparison: Comparison) -> Verdict | None:
    """Near ties one by one may still be, all together, what no rounding makes."""
    key, check, most = comparison.cell.key, comparison.tokens, rule.params.get("mean_tie_ulps")
    gap = mean_gap(check.divergences)
    if not most or gap is None or gap.at_least <= float(most):
        return None
    message = (
        f"texts leave the baseline's at {gap.places} places, where the two tokens lie {gap.mean:.2f} units in "
        f"the last place apart in the mean, surely more than {gap.at_least:.2f}: more than the "
        f"policy's mean_tie_ulps = {float(most):g} takes for rounding"
    )
    step = "does the engine accept drafts that are merely near the best (relaxed or typical acceptance)?"
    evidence = {**evidence_of(check), **gaps_of(rule, check)}
    return verdict(rule, key, State.INVALID, "ties_too_wide", message, evidence, step)


def not_greedy(rule: Rule, comparison: Comparison) -> Verdict | None:
    """Behind a near tie a text must stay greedy, and not too many may part."""
    key, check, most = comparison.cell.key, comparison.tokens, rule.params.get("max_parted_share")
    if check.followed is not None and check.followed.wrong and check.followed.first is not None:
        prompt_set, round_, slot, position = check.followed.first
        message = (
            f"{check.followed.wrong} of {check.followed.sequences} texts are not greedy behind the near tie where "
            f"they left the baseline's, or were not followed; first: prompt set {prompt_set}, round {round_}, "
            f"slot {slot}, token {position}"
        )
        step = "plain decoding from the same text must choose the same tokens; an engine shows it by `follow`"
        return verdict(rule, key, State.INVALID, "not_greedy", message, evidence_of(check), step)
    share = len(check.divergences) / check.sequences if check.sequences else 0.0
    if most is not None and share > float(most):
        message = (
            f"{len(check.divergences)} of {check.sequences} texts leave the baseline's at a near tie, "
            f"{share:.0%} (at most {float(most):.0%})"
        )
        return verdict(rule, key, State.FAIL, "too_many_part", message, evidence_of(check))
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
    if run.status == "interrupted" or comparison.cell.point.key in run.failures:
        message += "the run was cut short before the baseline's text was as long"
        step = "continue with --resume"
    else:
        message += "the baseline's text, decoded once more, is not as long as asked for or begins otherwise"
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


def judge_lossy(rule: Rule, result: CellResult, comparison: Comparison) -> Verdict:
    """Tokens that may differ are judged by how many do not, and only where the rule says how many these must be."""
    key, check, score = comparison.cell.key, comparison.tokens, result.rescored
    share, least = check.equal_share, rule.params.get("min_equal_share")
    if share is None:
        message = "no pair of blocks to compare"
        return verdict(rule, key, State.INVALID, "nothing_compared", message, evidence_of(check))
    evidence = {**evidence_of(check), **scores_of(score), "equal_share": share}
    summary = (
        f"lossy by the engine's own word: {share:.1%} of {check.emitted_tokens:,} tokens stand before the first "
        f"that is not the baseline's, {len(check.divergences)} texts differ"
    )
    if score is not None and score.unscored is None:
        summary += f"; of {score.scored} tokens that {score.engine} scored, {score.wrong} are not its choice"
        summary += by_law(score)
    if least is None:
        step = "min_equal_share in the rule judges them, or an entry of not_judged says why nothing has to"
        return verdict(rule, key, State.SKIPPED, "lossy", summary, evidence, step)
    if share < float(least):
        message = f"{summary} (at least {float(least):.0%} are asked for)"
        return verdict(rule, key, State.FAIL, "too_few_equal", message, evidence)
    return verdict(rule, key, State.PASS, "equal_share", f"{summary} ({float(least):.0%} are asked for)", evidence)
