"""Gate `tokens`: does a spec cell emit the baseline's tokens?

Greedy speculative decoding is lossless, so a different token is a defect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.core import CellResult, Comparison, Rule, Run, State, Verdict
from specgate.gates.select import nothing_selected, selected, unmeasured, verdict


class Tokens:
    """`near_tie_margin`: the gap between the two largest logits below which a different token is no defect, since the
    baseline's own choice was too close to call.

    The margin is applied when the samples are reduced (`analysis.reduce.measure`). The verdict counts the near ties.
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
            yield self.judge_repeats(rule, result) or self.judge_equality(rule, result, run.comparison(result.cell.key))

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

    def judge_equality(self, rule: Rule, result: CellResult, comparison: Comparison | None) -> Verdict:
        key = result.cell.key
        if comparison is None:
            return verdict(
                rule, key, State.PASS, "deterministic", f"{result.blocks} blocks repeat their tokens exactly"
            )
        check = comparison.tokens
        evidence: dict[str, float | int | str | None] = {
            "compared_tokens": check.compared_tokens,
            "mismatches": len(check.mismatches),
            "near_ties": len(check.divergences) - len(check.mismatches),
        }
        if check.compared_tokens == 0:
            return verdict(rule, key, State.INVALID, "nothing_compared", "no pair of blocks to compare", evidence)
        if check.mismatches:
            d = check.mismatches[0]
            margin = "unknown" if d.margin is None else f"{d.margin:.3g}"
            message = (
                f"{len(check.mismatches)} sequences leave the baseline; first: prompt set {d.prompt_set}, "
                f"slot {d.slot}, token {d.position}: {d.got} instead of {d.expected} (top-2 margin {margin})"
            )
            step = "the engine emits wrong tokens: compare verify logits with the baseline's at that position"
            return verdict(rule, key, State.INVALID, "token_mismatch", message, evidence, step)
        if check.divergences:
            message = f"{len(check.divergences)} near ties within the margin, otherwise the baseline's tokens"
            return verdict(rule, key, State.PASS, "near_tie_divergence", message, evidence)
        message = f"{check.compared_tokens} tokens, all the baseline's"
        return verdict(rule, key, State.PASS, "tokens_equal", message, evidence)


GATE = Tokens()
