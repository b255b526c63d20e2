"""Gate `invariants`: did every PERF_MODE invariant hold? If one is broken, no speed of the cell may be quoted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType

from specgate.contract import CellResult, Held, Invariant, Rule, RunView, State, Verdict
from specgate.gates.select import CellGate, unmeasured, verdict


class Invariants(CellGate):
    """`accept_unseen`: the invariants that need not be observable, for example "I1 I6", or none.
    `accept_broken`: those that may be broken by what a server's own profiler shows, or none. A server has to copy
        tokens to the host, which breaks I6; the verdict says how much there is of it. `I2:untuned_rows` accepts I2
        where it breaks for this reason alone, whoever shows it. What is broken in any other way stays INVALID.

    `where_asked`: a scenario that asks for no PERF_MODE is SKIPPED, or none.

    All others must be observed to hold; otherwise the cell is INVALID. Without PERF_MODE a required rule is NOT_JUDGED,
    also with `where_asked` if the command line turned PERF_MODE off. Load scenarios have none.
    """

    name = "invariants"
    needs = "a certificate"
    params: Mapping[str, type | UnionType] = {
        "accept_unseen": str,
        "accept_broken": str | None,
        "where_asked": bool | None,
    }

    def concerns(self, result: CellResult, run: RunView) -> bool:
        """True if the decode loop of the cell can be looked at."""
        return run.scenarios[result.cell.point.scenario].load is None

    def judge_planned(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        scenario = run.scenarios[result.cell.point.scenario]
        if scenario.perf_mode:
            return super().judge_planned(rule, result, run)
        skipped = not rule.required or (rule.params.get("where_asked") and not scenario.perf_mode_off)
        state = State.SKIPPED if skipped else State.NOT_JUDGED
        message, step = "PERF_MODE is off, so no invariant was looked at", "--perf-mode, or perf_mode: true"
        return verdict(rule, result.cell.key, state, "perf_mode_off", message, next_step=step)

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        certificate = run.certificates.get(result.cell.key)
        if certificate is None:
            return unmeasured(rule, result, run)
        evidence = {i.id: i.held.value for i in certificate}
        for invariant in certificate:
            if invariant.held is Held.BROKEN and not tolerated(rule, invariant):
                message = f"{invariant.id} is broken: {invariant.message}"
                return verdict(
                    rule,
                    result.cell.key,
                    State.INVALID,
                    invariant.reason_code,
                    message,
                    {**evidence, **invariant.evidence},
                )
        accepted = named(rule, "accept_unseen")
        missing = [i for i in certificate if i.held is Held.UNSEEN and i.id not in accepted]
        if missing and {i.reason_code for i in missing} == {"sigma_unknown"}:
            message = f"{missing[0].id} cannot be seen here: {missing[0].message}"
            return verdict(rule, result.cell.key, State.NOT_JUDGED, "sigma_unknown", message, evidence)
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


def named(rule: Rule, param: str) -> list[str]:
    """The invariants that a parameter of `rule` names."""
    return str(rule.params.get(param) or "").replace(",", " ").split()


def tolerated(rule: Rule, invariant: Invariant) -> bool:
    """True if `rule` accepts that `invariant` is broken."""
    accepted = named(rule, "accept_broken")
    return f"{invariant.id}:{invariant.reason_code}" in accepted or (invariant.id in accepted and by_server(invariant))


def by_server(invariant: Invariant) -> bool:
    """True if a server's own profiler shows it."""
    return invariant.evidence.get("source") == "server-profiler"


def summary(certificate: Sequence[Invariant]) -> str:
    holding = [i.id for i in certificate if i.held is Held.HELD]
    unseen = [i.id for i in certificate if i.held is Held.UNSEEN]
    broken = [
        f"; {i.id} is broken, which the policy accepts: {i.message}" for i in certificate if i.held is Held.BROKEN
    ]
    return (
        f"{' '.join(holding)} hold" + (f"; not observable here: {' '.join(unseen)}" if unseen else "") + "".join(broken)
    )


GATE = Invariants()
