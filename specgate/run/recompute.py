"""Samples → figures → verdicts. Pure: the same journal, plan and policy give the same run at any later time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specgate import plugins
from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.analysis.eagle_speculation import eagle_speculation
from specgate.analysis.machine_conditions import conditions_of
from specgate.analysis.perf_invariants import certificates
from specgate.analysis.reduce import measure
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.speedup_limits import with_ceilings
from specgate.analysis.verdict import overall
from specgate.core import (
    EngineFacts,
    Plan,
    Policy,
    Run,
    Verdict,
)
from specgate.errors import ExitCode, SpecgateError
from specgate.files.journal import Journal
from specgate.files.plain import to_plain
from specgate.planning.policy import near_tie_margin
from specgate.run import early_stop

Stopped = SpecgateError | KeyboardInterrupt | None


def ending(run: Run, stopped: Stopped) -> tuple[str, ExitCode]:
    """The word and the exit code that a run ends with; a run that was stopped has reached no verdict."""
    if stopped is not None:
        return "not reached", stopped.exit_code if isinstance(stopped, SpecgateError) else ExitCode.INTERRUPTED
    state, code = overall(run)
    return code.name if code is ExitCode.BACKEND_ERROR else state.value, code


def with_figures(run: Run, plan: Plan, policy: Policy, journal: Journal) -> Run:
    """The run with everything that follows from its samples."""
    early = early_stop.ended_early(plan, run, policy, journal)
    plan, engines = early_stop.without(plan, early), journal.engines
    blocks = whole_rounds(plan, journal.blocks)
    cells, comparisons = measure(plan, blocks, journal.margins, near_tie_margin(policy), forced=journal.forced)
    found = replace(
        run,
        engines=engines,
        cells=cells,
        comparisons=comparisons,
        budgets=cycle_budgets(plan, cells, comparisons, blocks, engines, run.bandwidth),
        certificates=certificates(plan, cells, comparisons, blocks, engines, journal.traces),
        conditions=conditions_of(plan, blocks, journal.samples),
        ended_early=early,
        warnings=tuple(dict.fromkeys((*run.warnings, *(w for f in engines.values() for w in warnings_of(f))))),
    )
    return with_ceilings(found, policy)


def speculation_blocks(run: Run, plan: Plan, journal: Journal) -> dict[str, object]:
    """Cell key → its `eagle_speculation` block, for outside readers of run.json."""
    blocks = whole_rounds(plan, journal.blocks)
    return {c.cell.key: block for c in run.cells if (block := eagle_speculation(c, blocks)) is not None}


def judgement(run: Run, policy: Policy, end: tuple[str, ExitCode]) -> dict[str, object]:
    """gates.json."""
    verdict, code = end
    return {
        "schema": "specgate.gates/v1",
        "run": run.id,
        "policy": to_plain(Policy, policy),
        "verdict": verdict,
        "exit_code": int(code),
        "verdicts": [to_plain(Verdict, v) for v in run.verdicts],
    }


def warnings_of(facts: EngineFacts) -> Iterator[str]:
    yield from facts.warnings
    if facts.draft_error:
        yield f"spec roles decoded plainly, since the draft could not be used: {facts.draft_error}"


def judge(run: Run, policy: Policy) -> Run:
    verdicts: list[Verdict] = []
    for rule in policy.rules:
        verdicts += plugins.gate(rule.gate).judge(rule, run)
    return replace(run, verdicts=tuple(verdicts))
