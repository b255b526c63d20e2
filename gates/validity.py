"""Gate `validity`: may this cell be judged at all?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.analysis.checks.drafting import inflated_length
from specgate.core import MAY_NOT_DRAFT, CellResult, Rule, Run, State, Verdict
from specgate.errors import InvalidResult
from specgate.gates.select import inflated, nothing_selected, selected, unmeasured, verdict


class Validity:
    """PASS if the draft was used, every planned block is there, no prompt came from a cache instead of a prefill, the
    acceptance record adds up, and the emitted tokens explain its acceptance length; else INVALID.

    Cells whose records contradict themselves, or whose clocks do, have no figures, and so are INVALID as well.
    """

    name = "validity"
    params: Mapping[str, type] = {}

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        results = list(selected(rule, run))
        if not results:
            yield nothing_selected(rule)
        for result in results:
            yield unmeasured(rule, result, run) if result.status == "failed" else self.judge_cell(rule, result, run)

    def judge_cell(self, rule: Rule, result: CellResult, run: Run) -> Verdict:
        key = result.cell.key
        if trouble := run.draft_trouble(result):
            plain = result.values.get("disabled_draft_error")
            return verdict(
                rule,
                key,
                State.INVALID,
                "draft_unusable",
                f"the draft could not be used: {trouble}",
                {"disabled_draft_error": plain.value if plain else None},
                "mend the draft (the engine's log has the details), then start a new run",
            )
        if result.status != "ok":
            message = result.reason or "incomplete"
            return verdict(
                rule, key, State.INVALID, "incomplete", message, {"blocks": result.blocks}, "continue with --resume"
            )
        hits = result.values.get("cache_hit_tokens")
        if hits is not None and hits.value:
            message = f"{hits.value:.0f} prompt tokens came from a cache instead of a prefill"
            step = "distinct prompts, and an engine that forgets them between blocks"
            return verdict(rule, key, State.INVALID, "cache_hit", message, {"cache_hit_tokens": hits.value}, step)
        if result.cell.role.speculative:
            record = result.acceptance
            if record is None or record.steps == 0:
                message = "no step had a draft: speculation was silently off" + known_cause(result, run)
                return verdict(rule, key, State.INVALID, "no_drafts", message, next_step="see the engine's log")
            try:
                record.check()
            except InvalidResult as error:
                return verdict(rule, key, State.INVALID, "counter_identity", str(error))
            if lengths := inflated_length(result):
                return inflated(rule, key, *lengths)
        return verdict(
            rule, key, State.PASS, "complete", f"{result.blocks} blocks, records add up", {"blocks": result.blocks}
        )


def known_cause(result: CellResult, run: Run) -> str:
    """What the engine has warned of, if that explains why nothing was drafted."""
    facts = run.engines.get(result.cell.point.key)
    said = [w.removeprefix(MAY_NOT_DRAFT) for w in facts.warnings if w.startswith(MAY_NOT_DRAFT)] if facts else []
    return "".join(f" ({text})" for text in said)


GATE = Validity()
