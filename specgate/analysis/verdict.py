"""Many verdicts → one state and one exit code, and what they left unjudged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from specgate.contract import KINDS, Cell, Gap, Kind, Policy, Run, State, Verdict
from specgate.contract.comparisons import Contrast
from specgate.contract.verdict import NOWHERE
from specgate.errors import ExitCode

_WORST_FIRST = (
    (State.INVALID, ExitCode.INVALID),
    (State.ENV_REJECTED, ExitCode.ENV_REJECTED),
    (State.FAIL, ExitCode.FAIL),
    (State.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
    (State.NOT_JUDGED, ExitCode.NOT_JUDGED),
)
_NEVER_STOP = (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.NOT_JUDGED)
_PROVEN = {ExitCode.ENV_REJECTED: State.ENV_REJECTED, ExitCode.INVALID: State.INVALID}


def overall(run: Run) -> tuple[State, ExitCode]:
    """The worst state among the required verdicts, and the exit code of the process.

    INVALID comes before ENV_REJECTED, because wrong tokens are wrong on any machine. ENV_REJECTED comes before FAIL,
    because a speed measured on a disturbed machine proves nothing. An error that stopped the run comes first of all,
    and a back end that failed next, whatever the measured cells say. A run that was stopped is INCONCLUSIVE, since it
    proves nothing, unless its machine was rejected or a result was invalid.

    A run is green only if it was judged: one that lacks a judgement which its policy does not give up with a reason is
    NOT_JUDGED, and so is one of which nothing required was judged at all.
    """
    if (code := stop_code(run)) is not None:
        return _PROVEN.get(code, State.INCONCLUSIVE), code
    if run.failures:
        return State.INVALID, ExitCode.BACKEND_ERROR
    states = required_states(run.verdicts)
    if not states or any(gap.why is None for gap in run.not_judged):
        states.append(State.NOT_JUDGED)
    return worst_of(states)


def stop_code(run: Run) -> ExitCode | None:
    """The exit code of what stopped the run before its plan was done; None if nothing did.

    INTERNAL where a verdict's code is stated. One that states none is of an interrupt or a back end.
    """
    if "run" not in run.failures:
        return None
    if run.stopped is None:
        return ExitCode.INTERRUPTED if run.status == "interrupted" else ExitCode.BACKEND_ERROR
    return ExitCode.INTERNAL if run.stopped in _NEVER_STOP else run.stopped


def overall_of_contrast(contrast: Contrast) -> tuple[State, ExitCode]:
    """As `overall`, for two runs. A comparison with an incomplete run is never green."""
    cut_short = next((run for run in (contrast.a, contrast.b) if run.failures), None)
    return worst(contrast.verdicts) if cut_short is None else overall(cut_short)


def worst(verdicts: Iterable[Verdict]) -> tuple[State, ExitCode]:
    """The worst state among required verdicts; inconclusive where nothing required was judged."""
    return worst_of(required_states(verdicts))


def required_states(verdicts: Iterable[Verdict]) -> list[State]:
    """The states of the verdicts that decide."""
    return [v.state for v in verdicts if v.required and v.state is not State.SKIPPED]


def worst_of(states: Sequence[State]) -> tuple[State, ExitCode]:
    """The worst of `states` with its exit code; inconclusive where there are none."""
    if not states:
        return State.INCONCLUSIVE, ExitCode.INCONCLUSIVE
    return next(((s, c) for s, c in _WORST_FIRST if s in states), (State.PASS, ExitCode.PASS))


# ── what was not judged ──────────────────────────────────────────────────────────────────────────────────────────────


KindsOf = Mapping[str, Collection[Kind]]
"""Rule id → the kinds of judgement that its verdicts are (`protocols.Gate.judges`)."""


def wanted(cell: Cell, policy: Policy | None = None, kinds: KindsOf = MappingProxyType({})) -> Iterator[Kind]:
    """Yield what `cell` has to be judged by: its records and tokens, with speculation its acceptance and its speed, and
    every further kind that a required rule of `policy` is for, if it selects the cell.
    """
    yield from KINDS if cell.role.speculative else ("validity", "tokens")
    mine = [rule for rule in policy.rules if rule.required and rule.matches(cell)] if policy else []
    yield from dict.fromkeys(kind for rule in mine for kind in kinds.get(rule.id, ()) if kind not in KINDS)


def not_judged(run: Run, policy: Policy, kinds: KindsOf) -> tuple[Gap, ...]:
    """Judgements that `run` lacks, by its verdicts."""
    decisive = [v for v in run.verdicts if v.required and v.state is not State.SKIPPED]
    judged = {(kind, cell) for v in decisive for kind in v.judges for cell in (v.cell, *v.covers)}
    return gaps([result.cell for result in run.cells], judged, policy, kinds)


def foreseeable(cells: Iterable[Cell], policy: Policy, kinds: KindsOf) -> tuple[Gap, ...]:
    """Judgements that a run of `cells` will lack, whatever it measures: no required rule of `policy` selects it."""
    cells, required = list(cells), [rule for rule in policy.rules if rule.required]
    judged = {(kind, c.key) for rule in required for kind in kinds.get(rule.id, ()) for c in cells if rule.matches(c)}
    return gaps(cells, judged, policy, kinds)


def gaps(
    cells: Iterable[Cell], judged: Collection[tuple[Kind, str]], policy: Policy, kinds: KindsOf
) -> tuple[Gap, ...]:
    """Judgements wanted of `cells` and not among `judged`, (kind, cell key), by kind and the policy's reason."""
    unjudged: dict[tuple[Kind, str | None], list[str]] = {}
    for cell in cells:
        for kind in wanted(cell, policy, kinds):
            if (kind, cell.key) not in judged:
                why = next((e.why for e in policy.not_judged if e.covers(kind, cell)), None)
                unjudged.setdefault((kind, why), []).append(cell.key)
    return tuple(Gap(kind, tuple(keys), why) for (kind, why), keys in unjudged.items())


def dead_rules(run: Run) -> list[str]:
    """Sentences on the required rules that select nothing, since nothing has the names that they state."""
    return [v.message for v in run.verdicts if v.reason_code == NOWHERE]


def in_words(gap: Gap) -> str:
    """`speed of 2 cells (a shared CPU's clock is no judge)`; of a single cell, its key."""
    cells = gap.cells[0] if len(gap.cells) == 1 else f"{len(gap.cells)} cells"
    return f"{gap.kind} of {cells}" + (f" ({gap.why})" if gap.why else "")
