"""Gate `tokens`: does a spec cell emit the baseline's tokens, and are these the target's?

Greedy speculative decoding is lossless, so a different token is a defect. A token that a second engine would not have
chosen is one, too, whatever the baseline says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.core import CellResult, Comparison, Rule, Run, ScoreCheck, State, TokenCheck, Verdict
from specgate.gates.select import nothing_selected, selected, unmeasured, verdict


class Tokens:
    """`near_tie_margin`: the gap between the two largest logits below which a different token is no defect, since the
    baseline's own choice was too close to call. Where it is 0, logits that differ in a bit are a defect, too.

    The margin is applied when the samples are reduced (`analysis.reduce.measure`). The verdict counts the near ties.
    How far tokens are checked, and how near a tie has to be for the second engine, is the policy's `checks`.
    """

    name = "tokens"
    params: Mapping[str, type] = {"near_tie_margin": float}

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
            yield self.judge_cell(rule, result, run)

    def judge_cell(self, rule: Rule, result: CellResult, run: Run) -> Verdict:
        """Under load a request shares its steps with other requests every time, and a server may refuse some. So a text
        need not repeat itself, nor be compared in every prompt set; but where it is, it must be the baseline's.
        """
        comparison, alone = run.comparison(result.cell.key), run.scenarios[result.cell.point.scenario].load is None
        return (
            (self.judge_repeats(rule, result) if alone else None)
            or (self.judge_equality(rule, comparison) if comparison else None)
            or (self.judge_extent(rule, comparison, run) if comparison and alone else None)
            or (self.judge_logits(rule, comparison) if comparison else None)
            or self.judge_scores(rule, result)
            or self.agreed(rule, result, comparison)
        )

    def judge_repeats(self, rule: Rule, result: CellResult) -> Verdict | None:
        repeats = result.values["repeat_mismatches"].value
        if not repeats:
            return None
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

    def judge_equality(self, rule: Rule, comparison: Comparison) -> Verdict | None:
        key, check = comparison.cell.key, comparison.tokens
        if check.compared_tokens == 0:
            message = "no pair of blocks to compare"
            return verdict(rule, key, State.INVALID, "nothing_compared", message, evidence_of(check))
        if not check.mismatches:
            return None
        d = check.mismatches[0]
        margin = "unknown" if d.margin is None else f"{d.margin:.3g}"
        message = (
            f"{len(check.mismatches)} sequences leave the baseline; first: prompt set {d.prompt_set}, "
            f"slot {d.slot}, token {d.position}: {d.got} instead of {d.expected} (top-2 margin {margin})"
        )
        step = "the engine emits wrong tokens: compare verify logits with the baseline's at that position"
        return verdict(rule, key, State.INVALID, "token_mismatch", message, evidence_of(check), step)

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
        if logits is None or not logits.different or logits.first is None or float(rule.params["near_tie_margin"]) > 0:
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
            f"logits){place}"
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
        evidence = {**evidence_of(check), **scores_of(result.rescored)}
        if check.divergences:
            message = f"{len(check.divergences)} near ties within the margin, otherwise the baseline's tokens"
            if check.emitted_tokens is not None:
                message += f" ({check.compared_tokens:,} of {check.emitted_tokens:,} compared)"
            message += said
            return verdict(rule, key, State.PASS, "near_tie_divergence", message, evidence)
        message = f"{check.compared_tokens} tokens, all the baseline's{extent(check)}{said}"
        return verdict(rule, key, State.PASS, "tokens_equal", message, evidence)


Evidence = dict[str, float | int | str | None]


def evidence_of(check: TokenCheck) -> Evidence:
    found: Evidence = {
        "compared_tokens": check.compared_tokens,
        "mismatches": len(check.mismatches),
        "near_ties": len(check.divergences) - len(check.mismatches),
    }
    if check.emitted_tokens is not None:
        found["emitted_tokens"] = check.emitted_tokens
    if check.logits is not None:
        found |= {"compared_logits": check.logits.compared, "different_logits": check.logits.different}
    return found


def scores_of(score: ScoreCheck | None) -> Evidence:
    if score is None:
        return {}
    if score.unscored is not None:
        return {"scored_tokens": 0, "unscored": score.unscored}
    return {
        "scored_tokens": score.scored,
        "scored_by": score.engine,
        "scored_near_ties": score.near_ties,
        "scored_wrong": score.wrong,
        "scored_gap_max": score.gap_max,
    }


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
    ties = f" but for {score.near_ties} near ties" if score.near_ties else ""
    return f"; {score.scored} scored by {score.engine}, all its choice{ties}"


GATE = Tokens()
