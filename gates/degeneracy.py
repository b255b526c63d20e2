"""Gate `degeneracy`: does the generated text loop? Loops are easy to draft, so they inflate acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.analysis.intervals.rounding import told_from
from specgate.contract import CellResult, Rule, RunView, State, Verdict
from specgate.gates.select import NO_TEXTS, CellGate, refusals, verdict


class Degeneracy(CellGate):
    """`max_repeated_share`: the largest share of generated 8-grams that may repeat an earlier one of their sequence."""

    name = "degeneracy"
    needs = "the generated text"
    params: Mapping[str, type] = {"max_repeated_share": float}

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a share above 1, which no text exceeds."""
        if float(rule.params["max_repeated_share"]) > 1:
            yield "max_repeated_share", "no share: it lies between 0 and 1"

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, ceiling = result.cell.key, float(rule.params["max_repeated_share"])
        if result.cell.role.speculative and run.acceptance == "forced":
            message = "acceptance was forced: the text is wrong by design"
            return verdict(rule, key, State.SKIPPED, "forced_acceptance", message)
        measured = result.values.get("repeated_8gram_share")
        share = measured.value if measured is not None else None
        if share is None and (refused := refusals(rule, result, lack=NO_TEXTS)):
            return refused
        if share is None:
            return verdict(rule, key, State.INVALID, "not_measured", "no text was generated")
        evidence = {"repeated_8gram_share": share, "max": ceiling}
        text = f"{told_from(100 * ceiling, 100 * share, 0)}% of the generated 8-grams are repeats"
        if share <= ceiling:
            return verdict(rule, key, State.PASS, "at_most_max", f"{text} (at most {100 * ceiling:g}%)", evidence)
        step = "its acceptance length is inflated: use other prompts or a shorter budget"
        return verdict(rule, key, State.FAIL, "above_max", f"{text}, above {100 * ceiling:g}%", evidence, step)


GATE = Degeneracy()
