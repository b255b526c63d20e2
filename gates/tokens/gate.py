"""The gate itself: what it asks of a cell, one question after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType

from specgate.contract import OWN_NUMBERS, CellResult, Comparison, Kind, NearTies, Rule, RunView, State, Verdict
from specgate.gates.select import no_baseline, nothing_selected, selected, unmeasured, verdict
from specgate.gates.tokens.baseline import (
    judge_lossy,
    not_compared,
    not_greedy,
    ties_too_wide,
    unequal,
    unequal_logits,
)
from specgate.gates.tokens.evidence import evidence_of, extent, gaps_of, parted, ties_of
from specgate.gates.tokens.scores import not_settled, not_the_targets, scored, scores_of, second_engine_lost


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
    needs = "the tokens of both runs"

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return the kind of these verdicts."""
        return ("tokens",)

    def near_ties(self, rule: Rule) -> NearTies:
        """Return the gaps that `rule` takes for near ties."""
        return ties_of(rule)

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse bounds on rare and mean gaps without the bound on all gaps, or on its wrong side."""
        near, rare, mean = (rule.params.get(key) for key in ("near_tie_ulps", "rare_tie_ulps", "mean_tie_ulps"))
        if rare and not (near and float(rare) > float(near)):
            why = f"no more than near_tie_ulps = {near:g}" if near else "near_tie_ulps is missing"
            yield "rare_tie_ulps", f"{why}: it says how far beyond that a few near ties may lie"
        if mean and not (near and float(mean) < float(near)):
            why = f"no less than near_tie_ulps = {near:g}" if near else "near_tie_ulps is missing"
            yield "mean_tie_ulps", f"{why}: it says how far near ties may lie in the mean"

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
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

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        """Under load a request shares its steps with other requests every time, and a server may refuse some. So a text
        need not repeat itself, nor be compared in every prompt set; but where it is, it must be the baseline's.
        """
        comparison, alone = run.comparison(result.cell.key), run.scenarios[result.cell.point.scenario].load is None
        if comparison is not None and comparison.tokens.lossy:
            return (
                (self.judge_repeats(rule, result, run) if alone else None)
                or (not_compared(rule, comparison, run) if alone else None)
                or second_engine_lost(rule, result)
                or not_settled(rule, result)
                or judge_lossy(rule, result, comparison)
            )
        return (
            (self.judge_repeats(rule, result, run) if alone else None)
            or (unequal(rule, comparison, run) if comparison else None)
            or (ties_too_wide(rule, comparison) if comparison else None)
            or (not_greedy(rule, comparison) if comparison else None)
            or (not_compared(rule, comparison, run) if comparison and alone else None)
            or (unequal_logits(rule, comparison) if comparison else None)
            or not_the_targets(rule, result)
            or second_engine_lost(rule, result)
            or not_settled(rule, result)
            or no_baseline(rule, result, run)
            or self.agreed(rule, result, comparison)
        )

    def judge_repeats(self, rule: Rule, result: CellResult, run: RunView) -> Verdict | None:
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

    def agreed(self, rule: Rule, result: CellResult, comparison: Comparison | None) -> Verdict:
        key, scores = result.cell.key, scored(result.rescored)
        if comparison is None and (repeats := result.values.get("repeat_mismatches")) and repeats.value:
            message = (
                f"{repeats.value:.0f} of {result.blocks} blocks do not repeat all their tokens, as under load{scores}"
            )
            return verdict(rule, key, State.PASS, "under_load", message, {"repeat_mismatches": repeats.value})
        if comparison is None:
            message = f"{result.blocks} blocks repeat their tokens exactly{scores}"
            return verdict(rule, key, State.PASS, "deterministic", message, scores_of(result.rescored))
        check = comparison.tokens
        evidence = {**evidence_of(check), **gaps_of(rule, check), **scores_of(result.rescored)}
        if ties_of(rule).ulps:
            message = parted(check, ties_of(rule)) + scores
            code = "near_tie_divergence" if check.divergences else "tokens_equal"
            return verdict(rule, key, State.PASS, code, message, evidence)
        if check.divergences:
            message = (
                f"{len(check.divergences)} near ties within the margin, otherwise the baseline's tokens "
                f"({check.compared_tokens:,} of {check.emitted_tokens:,} compared){scores}"
            )
            return verdict(rule, key, State.PASS, "near_tie_divergence", message, evidence)
        message = f"{check.compared_tokens} tokens, all the baseline's{extent(check)}{scores}"
        return verdict(rule, key, State.PASS, "tokens_equal", message, evidence)


GATE = Tokens()
