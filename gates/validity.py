"""May this cell be judged at all? Every planned block is there, and the acceptance record adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.core import CellResult, Rule, Run, State, Verdict
from specgate.errors import InvalidResult
from specgate.gates.select import nothing_selected, selected, unmeasured, verdict


class Validity:
    name = "validity"
    params: Mapping[str, type] = {}

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        results = list(selected(rule, run))
        if not results:
            yield nothing_selected(rule)
        for result in results:
            yield unmeasured(rule, result, run) if result.status == "failed" else self.judge_cell(rule, result)

    def judge_cell(self, rule: Rule, result: CellResult) -> Verdict:
        key = result.cell.key
        if result.status != "ok":
            message = result.reason or "incomplete"
            return verdict(
                rule, key, State.INVALID, "incomplete", message, {"blocks": result.blocks}, "continue with --resume"
            )
        if result.cell.role.speculative:
            record = result.acceptance
            if record is None or record.steps == 0:
                message = "no step had a draft: speculation was silently off"
                return verdict(rule, key, State.INVALID, "no_drafts", message, next_step="see the engine's log")
            try:
                record.check()
            except InvalidResult as error:
                return verdict(rule, key, State.INVALID, "counter_identity", str(error))
        return verdict(
            rule, key, State.PASS, "complete", f"{result.blocks} blocks, records add up", {"blocks": result.blocks}
        )


GATE = Validity()
