"""The gate itself: what it asks of a cell, one question after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Final

from specgate.contract import OWN_NUMBERS, CellResult, Comparison, NearTies, Rule, RunView, State, Verdict
from specgate.gates.select import CellGate, no_baseline, verdict
from specgate.gates.tokens.baseline import (
    TELLS_IDS,
    TELLS_SIGMA,
    judge_lossy,
    not_compared,
    not_greedy,
    nothing_compared,
    ties_too_wide,
    unequal,
    unequal_logits,
)
from specgate.gates.tokens.evidence import (
    as_texts,
    cache_sigmas,
    evidence_of,
    extent,
    parted,
    sigma_allowed,
    sigma_of,
    surely_wrong,
    ties_of,
)
from specgate.gates.tokens.scores import (
    not_settled,
    not_the_targets,
    scored,
    scored_too_coarsely,
    scores_of,
    second_engine_lost,
)

LARGEST: Final = 10.0
"""Logits: whoever rounds by more decodes something else."""


class Tokens(CellGate):
    """`near_tie_margin`: the gap between the two largest logits below which a different token is no defect, since the
    baseline's own choice was too close to call. Where it is 0, logits that differ in a bit are a defect, too.

    `max_sigma`: for engines that are not to be bit-exact. Texts may part, from the baseline's and from round to round,
    where the gap is no larger than the engine's own rounding makes it (`analysis.tokens.near_ties`): at no place, and
    not all together. That rounding error of one logit has a standard deviation of at most this. Behind such a place
    plain decoding is asked to go on from the text, and must repeat it.
    `cache_sigma`: the same by format of the KV cache, `nvfp4 0.6, fp8 0.25`, for caches that round more coarsely. Both
    bound the rounding at tokens that a second engine scores, too; without `max_sigma` it is 0.15 there.
    `min_equal_share`: of engines that say that their tokens may differ (`contract.LOSSY`), at least this share of the
    emitted tokens must stand before the first one that is not the baseline's. Without it their tokens are not judged.
    `lossy`: take spec cells for lossy whatever their engine says, as with relaxed acceptance of a server.

    The margin is applied when the samples are reduced (`analysis.reduce.measure`). The verdict counts the near ties.
    How far tokens are checked, and how near a tie has to be for the second engine, is the policy's `checks`.
    """

    name = "tokens"
    kinds = ("tokens",)
    params: Mapping[str, type | UnionType] = {
        "near_tie_margin": float,
        "max_sigma": float | None,
        "cache_sigma": str | None,
        "min_equal_share": float | None,
        "lossy": bool | None,
    }
    needs = "the tokens of both runs"

    def near_ties(self, rule: Rule) -> NearTies:
        """Return the gaps that `rule` takes for near ties."""
        return ties_of(rule)

    def lossy(self, rule: Rule) -> bool:
        """Return `lossy`."""
        return bool(rule.params.get("lossy"))

    def refused_for_good(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        """Yield the verdicts on cells with a token that is wrong whatever is measured later."""
        for made in self.judge(rule, run):
            comparison = run.comparison(made.cell)
            if made.reason_code == "token_mismatch" and comparison and surely_wrong(comparison.tokens, ties_of(rule)):
                yield made

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a margin beyond any rounding, standard deviations that are none, and caches without one."""
        if float(rule.params.get("near_tie_margin", 0.0)) > LARGEST:
            yield "near_tie_margin", f"a gap in logits of at most {LARGEST:g}: tokens further apart are no near tie"
        if (sigma := rule.params.get("max_sigma")) is not None and not 0 < float(sigma) <= LARGEST:
            yield "max_sigma", f"a standard deviation in logits, above 0 and at most {LARGEST:g}"
        try:
            sigmas = cache_sigmas(rule)
        except ValueError:
            sigmas = {"": 0.0}
        if not all(0 < sigma <= LARGEST for sigma in sigmas.values()):
            yield "cache_sigma", f"a format and a standard deviation up to {LARGEST:g} each: nvfp4 0.6, fp8 0.25"

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, speculative = result.cell.key, result.cell.role.speculative
        if speculative and run.acceptance == "forced":
            message = "acceptance was forced: the tokens are wrong by design"
            return verdict(rule, key, State.INVALID, "forced_acceptance", message)
        if speculative and not run.scenarios[result.cell.point.scenario].repeats_baseline:
            message = "the tokens are drawn by rejection: they need not be the baseline's, only of its distribution"
            step = "the gate `distribution` judges them; with sampling.method: coupled they are the baseline's"
            return verdict(rule, key, State.SKIPPED, "drawn_by_rejection", message, next_step=step)
        return self.judge_tokens(rule, result, run)

    def judge_tokens(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
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
                or judge_lossy(rule, result, comparison, run)
            )
        return (
            (self.judge_repeats(rule, result, run) if alone else None)
            or (unequal(rule, result, comparison, run) if comparison else None)
            or (not_greedy(rule, comparison) if comparison else None)
            or (ties_too_wide(rule, comparison, run) if comparison else None)
            or (not_compared(rule, comparison, run) if comparison and alone else None)
            or (unequal_logits(rule, comparison) if comparison else None)
            or not_the_targets(rule, result)
            or second_engine_lost(rule, result)
            or not_settled(rule, result)
            or scored_too_coarsely(rule, result, run)
            or no_baseline(rule, result, run)
            or self.agreed(rule, result, comparison, run)
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
        message = f"{repeats:.0f} blocks or untimed texts have other tokens than an earlier block of the same prompts"
        unknown = result.values.get("repeat_unknown")
        if ties_of(rule).by_law and unknown is not None and unknown.value == repeats:
            message += ", where two tokens are close, and nothing tells how the engine rounds"
            evidence = {"repeat_mismatches": repeats}
            return verdict(rule, result.cell.key, State.NOT_JUDGED, "sigma_unknown", message, evidence, TELLS_SIGMA)
        if compared := as_texts(result):
            evidence = {"repeat_mismatches": repeats}
            return verdict(
                rule, result.cell.key, State.NOT_JUDGED, "texts_part", message + compared, evidence, TELLS_IDS
            )
        return verdict(
            rule,
            result.cell.key,
            State.INVALID,
            "nondeterministic",
            message,
            {"repeat_mismatches": repeats},
            "greedy decoding must repeat itself: look for uninitialised memory and races",
        )

    def agreed(self, rule: Rule, result: CellResult, comparison: Comparison | None, run: RunView) -> Verdict:
        key, scores = result.cell.key, scored(result.rescored) + as_texts(result)
        if comparison is None:
            if (repeats := result.values.get("repeat_mismatches")) is None:
                return nothing_compared(rule, result, run, scores_of(result.rescored))
            if repeats.value:
                message = (
                    f"{repeats.value:.0f} of {repeats.n} blocks do not repeat all their tokens, as under load{scores}"
                )
                return verdict(rule, key, State.PASS, "under_load", message, {"repeat_mismatches": repeats.value})
            message = f"{repeats.n} blocks repeat their tokens exactly{scores}"
            return verdict(rule, key, State.PASS, "deterministic", message, scores_of(result.rescored))
        check = comparison.tokens
        evidence = {**evidence_of(check), **sigma_of(check.law), **scores_of(result.rescored)}
        if ties_of(rule).by_law:
            message = parted(check, sigma_allowed(rule, result.cell, run)) + scores
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
