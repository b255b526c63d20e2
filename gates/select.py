"""Common parts of all gates: the cells that a rule selects, and a verdict of that rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Final

from specgate.analysis.load.sweeps import FASTER_CLIENT, fell_behind
from specgate.contract import CellResult, Comparison, Kind, Rule, RunView, State, Verdict
from specgate.contract.samples.counters import AS_TEXTS


class CellGate(ABC):
    """A gate that gives one verdict on each cell that a rule selects.

    `kinds`: what these verdicts judge. `only_speculative`: cells of the baseline are not selected.
    """

    kinds: tuple[Kind, ...] = ()
    only_speculative = False

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return `kinds`."""
        return self.kinds

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        """Yield one verdict per cell; one that says so where there is none."""
        results = [result for result in selected(rule, run) if self.concerns(result, run)]
        if not results:
            yield nothing_selected(rule)
        for result in results:
            yield self.judge_planned(rule, result, run)

    def concerns(self, result: CellResult, run: RunView) -> bool:
        """True if the cell is one that the gate judges."""
        return result.cell.role.speculative or not self.only_speculative

    def judge_planned(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        """Judge a cell that may have no figures."""
        return unmeasured(rule, result, run) if result.status == "failed" else self.judge_cell(rule, result, run)

    @abstractmethod
    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        """Judge a cell that has figures."""


def selected(rule: Rule, run: RunView) -> Iterator[CellResult]:
    """The cells whose scenario and role match the rule's globs, in plan order."""
    return (result for result in run.cells if rule.matches(result.cell))


def more_rounds(result: CellResult | Comparison, run: RunView) -> str:
    """Return the next step that measures more of a cell: what is measured until it is decided ends by its budget."""
    until = run.scenarios[result.cell.point.scenario].until_decided
    return f"a new run with more {'--budget' if until else '--measurement-runs'}"


def verdict(
    rule: Rule,
    cell: str,
    state: State,
    reason_code: str,
    message: str,
    evidence: Mapping[str, float | int | str | None] | None = None,
    next_step: str | None = None,
) -> Verdict:
    """A verdict of `rule` on the cell with the key `cell`, which is empty for a verdict on no single cell."""
    return Verdict(rule.id, rule.gate, cell, state, rule.required, reason_code, message, evidence or {}, next_step)


def nothing_selected(rule: Rule) -> Verdict:
    """The verdict of a rule that matches no cell of this run. It is reported as SKIPPED, not left out."""
    what = f"no cell of this run matches scenario {rule.scenario!r} and role {rule.role!r}"
    if rule.unless:
        what += ", but for those that other rules speak of"
    return verdict(rule, "", State.SKIPPED, "no_cell", what)


def inflated(rule: Rule, cell: str, length: float, over_all: float) -> Verdict:
    """The verdict on a cell whose acceptance length leaves out the steps without a draft, which its tokens do not."""
    message = (
        f"acceptance length {length:.3f} over the steps that had a draft, but {over_all:.3f} tokens per step over all "
        "of them: steps without a draft were left out"
    )
    evidence = {"acceptance_length": length, "tokens_per_step": over_all}
    step = "an engine that drafts in every step, or one that reports a missed draft as accepted 0 of K"
    return verdict(rule, cell, State.INVALID, "steps_left_out", message, evidence, step)


def sets_lengths(result: CellResult, run: RunView) -> bool:
    """True if the cell's engine says that its method sets the lengths of its drafts, none included."""
    facts = run.engines.get(result.cell.point.key)
    return facts is not None and facts.sets_lengths


def for_other_tokens(result: CellResult) -> State:
    """The state of a rule that quotes no speed of `result`, since its tokens are not the baseline's: of texts that were
    compared as texts, nobody can tell near ties from wrong tokens.
    """
    return State.NOT_JUDGED if AS_TEXTS in result.values else State.INVALID


def steps_lost(rule: Rule, result: CellResult) -> Verdict | None:
    """The verdict on a cell whose server lost steps from its counters; None where it is not known to."""
    joined, record = result.values.get("joined_outputs"), result.acceptance
    if joined is None or not joined.value or record is None:
        return None
    message = (
        f"the server counts one step per output, and {joined.value:.0f} of its {record.steps} outputs or more hold the "
        "tokens of several steps: the others of these are in no counter, so that the acceptance length is not known"
    )
    evidence = {"joined_outputs": joined.value, "outputs": record.steps}
    step = "a smaller batch, where the server hands over every step by itself; or the engine as a library"
    return verdict(rule, result.cell.key, State.INVALID, "steps_lost", message, evidence, step)


def no_baseline(rule: Rule, result: CellResult, run: RunView) -> Verdict | None:
    """The verdict of a rule that compares with the baseline, where the scenario has none; None where it has one."""
    if run.scenarios[result.cell.point.scenario].baseline:
        return None
    message = "no baseline was measured (--no-baseline): there is nothing to compare with"
    step = "a server without speculation beside it: -o url.baseline=URL"
    return verdict(rule, result.cell.key, State.SKIPPED, "no_baseline", message, next_step=step)


def late_client(rule: Rule, result: CellResult, beside: CellResult | None = None) -> Verdict | None:
    """The verdict on times that are not the server's alone, since the client of an open loop fell behind; else None.

    `beside`: the cell that `result` is compared with.
    """
    why = fell_behind(result) or (fell_behind(beside) if beside else None)
    if why is None:
        return None
    return verdict(rule, result.cell.key, State.INVALID, "client_fell_behind", why, next_step=FASTER_CLIENT)


def refusals(
    rule: Rule, result: CellResult, beside: CellResult | None = None, lack: str = "they have no times"
) -> Verdict | None:
    """The verdict on times of requests that a server under load took, where it refused others: one that refuses enough
    of them is always fast. None where it took all.

    `beside`: the cell that `result` is compared with. `lack`: what cannot be judged without the refused requests.
    """
    for cell in filter(None, (result, beside)):
        refused = cell.values.get("refused_requests")
        if refused is not None and refused.value:
            message = f"{refused.value:.0f} of {refused.n} requests were refused in {cell.cell.key}: {lack}"
            return verdict(rule, result.cell.key, State.INVALID, "requests_refused", message, next_step=LESS_LOAD)
    return None


LESS_LOAD: Final = "a smaller load, or a server that queues more requests"
NO_TEXTS: Final = "only texts of blocks that answered every request are looked at, and too few did"


def unmeasured(rule: Rule, result: CellResult, run: RunView) -> Verdict:
    """The verdict on a cell that was planned but has no figures: INVALID, with the reason."""
    cause = run.failures.get(result.cell.point.key) or run.failures.get("run")
    why = (cause or result.reason or "no block was measured").splitlines()[0]
    next_step = "continue the run with --resume once the cause is mended" if cause else None
    code = "not_measured" if cause else result.reason_code or "not_measured"
    return verdict(rule, result.cell.key, State.INVALID, code, f"no figures: {why}", next_step=next_step)
