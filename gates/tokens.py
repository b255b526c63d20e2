"""Gate `tokens`: does a spec cell emit the baseline's tokens, and are these the target's?

Greedy speculative decoding is lossless, so a different token is a defect. A token that a second engine would not have
chosen is one, too, whatever the baseline says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType

from specgate.analysis.tokens.partings import mean_gap
from specgate.contract import (
    OWN_NUMBERS,
    CellResult,
    Comparison,
    Divergence,
    NearTies,
    Rule,
    Run,
    ScoreCheck,
    State,
    TokenCheck,
    Verdict,
)
from specgate.gates.select import no_baseline, nothing_selected, selected, unmeasured, verdict


class Tokens:
    """`near_tie_margin`: the gap between the two largest logits below which a different token is no defect, since the
    baseline's own choice was too close to call. Where it is 0, logits that differ in a bit are a defect, too.

    `near_tie_ulps`: for engines that are not to be bit-exact, a gap of at most so many units in the last place of the
    engine's logits is a near tie, too. Texts may part there, from the baseline's and from round to round. Behind that
    place plain decoding is asked to go on from the text, and must repeat it.
    `rare_tie_ulps`: so is a larger gap, of at most so many units, for one place where texts part, and for one more of
    every 50.
    `mean_tie_ulps`: over all places where texts part, the mean gap must not surely lie above so many units. Rounding
    parts texts at small gaps mostly; an engine that accepts whatever is near the best, at all gaps up to its limit.
    `max_parted_share`: at most this share of the texts may part.
    `min_equal_share`: of engines that say that their tokens may differ (`contract.LOSSY`), at least this share of the
    emitted tokens must stand before the first one that is not the baseline's. Without it their tokens are not judged.

    The margin is applied when the samples are reduced (`analysis.reduce.measure`). The verdict counts the near ties.
    How far tokens are checked, and how near a tie has to be for the second engine, is the policy's `checks`.
    """

    name = "tokens"
    params: Mapping[str, type | UnionType] = {
        "near_tie_margin": float,
        "near_tie_ulps": float | None,
        "rare_tie_ulps": float | None,
        "mean_tie_ulps": float | None,
        "max_parted_share": float | None,
        "min_equal_share": float | None,
    }

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        results = list(selected(rule, run))
        if not results:
            yield nothing_selected(rule)
        for result in results:
            if result.status == "failed":
                yield unmeasured(rule, result, run)
                continue
            if result.cell.role.speculative and run.acceptance == "forced":
                message = "acceptance was forced: the tokens are wrong by design"
                yield verdict(rule, result.cell.key, State.INVALID, "forced_acceptance", message)
                continue
            if result.cell.role.speculative and not run.scenarios[result.cell.point.scenario].repeats_baseline:
                message = "the tokens are drawn by rejection: they need not be the baseline's, only of its distribution"
                step = "the gate `distribution` judges them; with sampling.method: coupled they are the baseline's"
                yield verdict(rule, result.cell.key, State.SKIPPED, "drawn_by_rejection", message, next_step=step)
                continue
            yield self.judge_cell(rule, result, run)

    def judge_cell(self, rule: Rule, result: CellResult, run: Run) -> Verdict:
        """Under load a request shares its steps with other requests every time, and a server may refuse some. So a text
        need not repeat itself, nor be compared in every prompt set; but where it is, it must be the baseline's.
        """
        comparison, alone = run.comparison(result.cell.key), run.scenarios[result.cell.point.scenario].load is None
        if comparison is not None and comparison.tokens.lossy:
            return (
                (self.judge_repeats(rule, result, run) if alone else None)
                or (self.judge_extent(rule, comparison, run) if alone else None)
                or self.judge_lossy(rule, result, comparison)
            )
        return (
            (self.judge_repeats(rule, result, run) if alone else None)
            or (self.judge_equality(rule, comparison, run) if comparison else None)
            or (self.judge_mean_gap(rule, comparison) if comparison else None)
            or (self.judge_followed(rule, comparison) if comparison else None)
            or (self.judge_extent(rule, comparison, run) if comparison and alone else None)
            or (self.judge_logits(rule, comparison) if comparison else None)
            or self.judge_scores(rule, result)
            or no_baseline(rule, result, run)
            or self.agreed(rule, result, comparison)
        )

    def judge_repeats(self, rule: Rule, result: CellResult, run: Run) -> Verdict | None:
        repeats, facts = result.values["repeat_mismatches"].value, run.engines.get(result.cell.point.key)
        if not repeats:
            return None
        if facts is not None and OWN_NUMBERS in facts.details:
            message = (
                f"{repeats:.0f} of {result.blocks} blocks draw other tokens: the engine's random numbers are its own"
            )
            step, evidence = "the gate `distribution` judges what is drawn", {"repeat_mismatches": repeats}
            return verdict(rule, result.cell.key, State.SKIPPED, "own_random_numbers", message, evidence, step)
        message = f"{repeats:.0f} of {result.blocks} blocks emit other tokens than an earlier block of the same prompts"
        return verdict(
            rule,
            result.cell.key,
            State.INVALID,
            "nondeterministic",
            message,
            {"repeat_mismatches": repeats},
            "greedy decoding must repeat itself: look for uninitialised memory and races",
        )

    def judge_equality(self, rule: Rule, comparison: Comparison, run: Run) -> Verdict | None:
        key, check = comparison.cell.key, comparison.tokens
        if check.compared_tokens == 0:
            message = "no pair of blocks to compare"
            return verdict(rule, key, State.INVALID, "nothing_compared", message, evidence_of(check))
        if not check.mismatches:
            return None
        d, now = check.mismatches[0], run.scenarios[comparison.cell.point.scenario].statistics > 5
        if now:  # a run that was cut short has not asked for every gap: a place whose gap is known says more
            d = next((d for d in check.mismatches if d.margin is not None), d)
        message = (
            f"{len(check.mismatches)} sequences leave the baseline; first: prompt set {d.prompt_set}, "
            f"slot {d.slot}, token {d.position}: {d.got} instead of {d.expected} (top-2 margin {margin_of(d)})"
        )
        if now and d.margin is None and ties_of(rule) and run.status == "interrupted":
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
                "tell; `specgate check RUN` judges the folder"
            )
        return verdict(rule, key, State.INVALID, "token_mismatch", message, evidence_of(check), step)

    def judge_lossy(self, rule: Rule, result: CellResult, comparison: Comparison) -> Verdict:
        """Tokens that may differ are judged by how many do not, and only where the rule says how many these must be."""
        key, check, score = comparison.cell.key, comparison.tokens, result.rescored
        share, least = check.equal_share, rule.params.get("min_equal_share")
        if share is None:
            message = "no pair of blocks to compare"
            return verdict(rule, key, State.INVALID, "nothing_compared", message, evidence_of(check))
        evidence = {**evidence_of(check), **scores_of(score), "equal_share": share}
        said = (
            f"lossy by the engine's own word: {share:.1%} of {check.emitted_tokens:,} tokens stand before the first "
            f"that is not the baseline's, {len(check.divergences)} texts differ"
        )
        if score is not None and score.unscored is None:
            said += f"; of {score.scored} tokens that {score.engine} scored, {score.wrong} are not its choice"
            said += second_look(score)
        if least is None:
            step = "min_equal_share in the rule judges them, or an entry of not_judged says why nothing has to"
            return verdict(rule, key, State.SKIPPED, "lossy", said, evidence, step)
        if share < float(least):
            message = f"{said} (at least {float(least):.0%} are asked for)"
            return verdict(rule, key, State.FAIL, "too_few_equal", message, evidence)
        return verdict(rule, key, State.PASS, "equal_share", f"{said} ({float(least):.0%} are asked for)", evidence)

    def judge_mean_gap(self, rule: Rule, comparison: Comparison) -> Verdict | None:
        """Near ties one by one may still be, all together, what no rounding makes."""
        key, check, most = comparison.cell.key, comparison.tokens, rule.params.get("mean_tie_ulps")
        found = mean_gap(check.divergences)
        if not most or found is None or found.at_least <= float(most):
            return None
        message = (
            f"texts leave the baseline's at {found.places} places, where the two tokens lie {found.mean:.2f} units in "
            f"the last place apart in the mean, surely more than {found.at_least:.2f}: more than the "
            f"policy's mean_tie_ulps = {float(most):g} takes for rounding"
        )
        step = "does the engine accept drafts that are merely near the best (relaxed or typical acceptance)?"
        evidence = {**evidence_of(check), **gaps_of(rule, check)}
        return verdict(rule, key, State.INVALID, "ties_too_wide", message, evidence, step)

    def judge_followed(self, rule: Rule, comparison: Comparison) -> Verdict | None:
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

    def judge_extent(self, rule: Rule, comparison: Comparison, run: Run) -> Verdict | None:
        """Every text must have been compared to its end; of a sampled point, one prompt set's texts."""
        check = comparison.tokens
        if check.emitted_tokens is None:  # an older version compared no more than this
            return None
        left = sorted(set(comparison.prompt_sets) - set(check.whole_sets))
        if not left or (run.sampled_after is not None and check.whole_sets):
            return None
        message = (
            f"{check.compared_tokens:,} of {check.emitted_tokens:,} tokens could be compared: in prompt set {left[0]} "
            "the baseline's text, decoded once more, is not as long as asked for or begins otherwise"
        )
        step = "the baseline must decode as many steps as it is asked for, and repeat its text"
        return verdict(rule, comparison.cell.key, State.INVALID, "text_not_compared", message, evidence_of(check), step)

    def judge_logits(self, rule: Rule, comparison: Comparison) -> Verdict | None:
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

    def judge_scores(self, rule: Rule, result: CellResult) -> Verdict | None:
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

    def agreed(self, rule: Rule, result: CellResult, comparison: Comparison | None) -> Verdict:
        key, said = result.cell.key, scored(result.rescored)
        if comparison is None and (repeats := result.values.get("repeat_mismatches")) and repeats.value:
            message = (
                f"{repeats.value:.0f} of {result.blocks} blocks do not repeat all their tokens, as under load{said}"
            )
            return verdict(rule, key, State.PASS, "under_load", message, {"repeat_mismatches": repeats.value})
        if comparison is None:
            message = f"{result.blocks} blocks repeat their tokens exactly{said}"
            return verdict(rule, key, State.PASS, "deterministic", message, scores_of(result.rescored))
        check = comparison.tokens
        evidence = {**evidence_of(check), **gaps_of(rule, check), **scores_of(result.rescored)}
        if check.sequences is not None:
            message = parted(check, ties_of(rule)) + said
            code = "near_tie_divergence" if check.divergences else "tokens_equal"
            return verdict(rule, key, State.PASS, code, message, evidence)
        if check.divergences:
            message = f"{len(check.divergences)} near ties within the margin, otherwise the baseline's tokens"
            if check.emitted_tokens is not None:
                message += f" ({check.compared_tokens:,} of {check.emitted_tokens:,} compared)"
            message += said
            return verdict(rule, key, State.PASS, "near_tie_divergence", message, evidence)
        message = f"{check.compared_tokens} tokens, all the baseline's{extent(check)}{said}"
        return verdict(rule, key, State.PASS, "tokens_equal", message, evidence)


def ties_of(rule: Rule) -> NearTies:
    keys = ("near_tie_margin", "near_tie_ulps", "rare_tie_ulps")
    return NearTies(*(float(rule.params.get(key, 0.0)) for key in keys))


def too_many_rare(check: TokenCheck, ties: NearTies) -> bool:
    """Whether every text that leaves the baseline's, and should not, would be allowed to if they were fewer."""
    partings = {d.parting for d in check.divergences if d.near_tie}
    rare = {d.parting for d in check.mismatches}
    few = len(rare) <= ties.allowed_rare(len(partings | rare))
    return not few and all(ties.rarely_covers(d.margin, d.unit) for d in check.mismatches)


def margin_of(d: Divergence) -> str:
    """The gap at a divergence, in logits and, where they are known, in units in the last place."""
    if d.margin is None:
        return "unknown"
    return f"{d.margin:.3g}" + (f", {d.margin / d.unit:.3g} units in the last place" if d.unit else "")


def parted(check: TokenCheck, ties: NearTies) -> str:
    """How many texts leave the baseline's at a near tie, as a message; none is the best of them."""
    if not check.divergences:
        return f"{check.compared_tokens:,} tokens of {check.sequences} texts, all the baseline's"
    largest = max((d.margin / d.unit for d in check.divergences if d.margin is not None and d.unit), default=0.0)
    rare = len({d.parting for d in check.divergences if ties.rarely_covers(d.margin, d.unit)})
    allowed = f"{ties.ulps:g} allowed" + (f", {ties.rare_ulps:g} at {rare} of them" if rare else "")
    message = (
        f"{len(check.divergences)} of {check.sequences} texts leave the baseline's at a near tie (at most "
        f"{largest:.3g} units in the last place, {allowed}); {check.compared_tokens:,} tokens were compared"
    )
    if (found := check.followed) is not None and found.sequences:
        again = f", {found.near_ties} leave it at another near tie" if found.near_ties else ""
        message += f"; behind it {found.tokens:,} tokens of {found.sequences} texts are plain decoding's own{again}"
    return message


Evidence = dict[str, float | int | str | None]


def evidence_of(check: TokenCheck) -> Evidence:
    found: Evidence = {
        "compared_tokens": check.compared_tokens,
        "mismatches": len(check.mismatches),
        "near_ties": len(check.divergences) - len(check.mismatches),
    }
    if check.emitted_tokens is not None:
        found["emitted_tokens"] = check.emitted_tokens
    if check.sequences is not None:
        found |= {"sequences": check.sequences, "parted": len(check.divergences)}
    if check.followed is not None:
        found |= {"followed": check.followed.sequences, "followed_tokens": check.followed.tokens}
        found |= {"followed_wrong": check.followed.wrong}
    if check.logits is not None:
        found |= {"compared_logits": check.logits.compared, "different_logits": check.logits.different}
    return found


def gaps_of(rule: Rule, check: TokenCheck) -> Evidence:
    """The mean gap where texts part, for a rule that has a bound for it."""
    if not rule.params.get("mean_tie_ulps") or (found := mean_gap(check.divergences)) is None:
        return {}
    return {"parting_places": found.places, "mean_gap_ulps": found.mean, "mean_gap_ulps_at_least": found.at_least}


def scores_of(score: ScoreCheck | None) -> Evidence:
    if score is None:
        return {}
    if score.unscored is not None:
        return {"scored_tokens": 0, "unscored": score.unscored}
    found: Evidence = {
        "scored_tokens": score.scored,
        "scored_by": score.engine,
        "scored_near_ties": score.near_ties,
        "scored_wrong": score.wrong,
        "scored_gap_max": score.gap_max,
    }
    if score.again:
        found |= {"scored_again": score.again, "scored_settled": score.settled}
    if score.unsettled is not None:
        found["unsettled"] = score.unsettled
    return found


def extent(check: TokenCheck) -> str:
    """How many tokens were not compared, and how many rows of logits were, as a part of a message."""
    said = ""
    if check.emitted_tokens is not None and check.emitted_tokens != check.compared_tokens:
        said += f" ({check.emitted_tokens - check.compared_tokens} more in prompt sets that this run does not sample)"
    if check.logits is not None:
        same = check.logits.compared - check.logits.different
        said += f", {same} of {check.logits.compared} rows of logits bit for bit"
    return said


def scored(score: ScoreCheck | None) -> str:
    """What a second engine says of the tokens, as a part of a message; empty in runs of older versions."""
    if score is None:
        return ""
    if score.unscored is not None:
        return f"; the tokens are the engine's own word: {score.unscored.splitlines()[0]}"
    ties = f" but for {score.near_ties} near ties{second_look(score)}" if score.near_ties else ""
    return f"; {score.scored} scored by {score.engine}, all its choice{ties}"


def second_look(score: ScoreCheck) -> str:
    """What a second look in float32 made of tokens in doubt, as a part of a message; empty where there was none."""
    if score.unsettled is not None:
        return f"; a second look in float32 failed: {score.unsettled.splitlines()[0]}"
    if score.wrong and score.again:
        return f"; in float32 {score.again - score.settled} of the {score.again} beyond the bound stay there"
    return f", {score.settled} of them in float32 alone" if score.settled else ""


GATE = Tokens()
