"""Gate `invariants`: did every PERF_MODE invariant hold? If one is broken, no speed of the cell may be quoted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specgate.core import CellResult, Held, Invariant, Rule, Run, State, Verdict
from specgate.gates.select import nothing_selected, selected, unmeasured, verdict


class Invariants:
    """`accept_unseen`: the invariants that need not be observable, for example "I1 I6", or none.

    All others must be observed to hold; otherwise the cell is INVALID.
    """

    name = "invariants"
    params: Mapping[str, type] = {"accept_unseen": str}

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        results = [r for r in selected(rule, run) if run.scenarios[r.cell.point.scenario].perf_mode]
        if not results:
            yield nothing_selected(rule)
        for result in results:
            yield self.judge_cell(rule, result, run)

    def judge_cell(self, rule: Rule, result: CellResult, run: Run) -> Verdict:
        certificate = run.certificates.get(result.cell.key)
        if result.status == "failed" or certificate is None:
            return unmeasured(rule, result, run)
        evidence = {i.id: i.held.value for i in certificate}
        for invariant in certificate:
            if invariant.held is Held.BROKEN:
                message = f"{invariant.id} is broken: {invariant.message}"
                return verdict(
                    rule,
                    result.cell.key,
                    State.INVALID,
                    invariant.reason_code,
                    message,
                    {**evidence, **invariant.evidence},
                )
        accepted = str(rule.params.get("accept_unseen", "")).replace(",", " ").split()
        missing = [i for i in certificate if i.held is Held.UNSEEN and i.id not in accepted]
        if missing:
            return verdict(
                rule,
                result.cell.key,
                State.INVALID,
                "not_observable",
                f"{missing[0].id} cannot be seen here: {missing[0].message}",
                evidence,
                f"a policy may accept that: accept_unseen: {' '.join(i.id for i in missing)}",
            )
        return verdict(rule, result.cell.key, State.PASS, "all_held", summary(certificate), evidence)


def summary(certificate: Sequence[Invariant]) -> str:
    held = [i.id for i in certificate if i.held is Held.HELD]
    unseen = [i.id for i in certificate if i.held is Held.UNSEEN]
    return f"{' '.join(held)} hold" + (f"; not observable here: {' '.join(unseen)}" if unseen else "")


GATE = Invariants()
