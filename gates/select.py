"""Which cells a rule speaks of, and verdicts with its name on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.core import CellResult, Rule, Run, State, Verdict


def selected(rule: Rule, run: Run) -> Iterator[CellResult]:
    """The cells whose scenario and role match the rule's globs, in plan order."""
    return (result for result in run.cells if rule.matches(result.cell))


def verdict(
    rule: Rule,
    cell: str,
    state: State,
    reason_code: str,
    message: str,
    evidence: Mapping[str, float | int | str | None] | None = None,
    next_step: str | None = None,
) -> Verdict:
    return Verdict(rule.id, rule.gate, cell, state, rule.required, reason_code, message, evidence or {}, next_step)


def nothing_selected(rule: Rule) -> Verdict:
    """A rule that matches no cell of this run is shown as skipped, not left out."""
    what = f"no cell of this run matches scenario {rule.scenario!r} and role {rule.role!r}"
    return verdict(rule, "", State.SKIPPED, "no_cell", what)


def unmeasured(rule: Rule, result: CellResult, run: Run) -> Verdict:
    """A cell that was planned and has no figures can pass nothing."""
    cause = run.failures.get(result.cell.point.key) or run.failures.get("run")
    why = (cause or result.reason or "no block was measured").splitlines()[0]
    next_step = "continue the run with --resume once the cause is mended" if cause else None
    return verdict(rule, result.cell.key, State.INVALID, "not_measured", f"no figures: {why}", next_step=next_step)
