"""Many verdicts → one state and one exit code, and what they left unjudged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from specgate.analysis.load.sweeps import sweep_of
from specgate.contract import BASELINE, Cell, Exemption, Gap, Kind, Policy, Rule, Run, State, Verdict
from specgate.contract.agreement import Agreement
from specgate.contract.contrast import Contrast
from specgate.errors import ExitCode

_WORST_FIRST = (
    (State.INVALID, ExitCode.INVALID),
    (State.ENV_REJECTED, ExitCode.ENV_REJECTED),
    (State.FAIL, ExitCode.FAIL),
    (State.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
    (State.NOT_JUDGED, ExitCode.NOT_JUDGED),
)


def overall(run: Run) -> tuple[State, ExitCode]:
    """The worst state among the required verdicts, and the exit code of the process.

    INVALID comes before ENV_REJECTED, because wrong tokens are wrong on any machine. ENV_REJECTED comes before FAIL,
    because a speed measured on a disturbed machine proves nothing. A back end that failed comes first of all: the run
    ends with BACKEND_ERROR whatever the measured cells say.

    A run is green only if it was judged: one that lacks a judgement which its policy does not give up with a reason is
    NOT_JUDGED, and so is one of which nothing required was judged at all. A run that was stored before that was asked
    has no such record. It keeps the verdict that it had, and is inconclusive where nothing required was judged.
    """
    if run.failures:
        return State.INVALID, ExitCode.BACKEND_ERROR
    states = required_states(run.verdicts)
    if run.not_judged is not None and (not states or any(gap.why is None for gap in run.not_judged)):
        states.append(State.NOT_JUDGED)
    return worst_of(states)


def overall_of_contrast(contrast: Contrast) -> tuple[State, ExitCode]:
    """As `overall`, for two runs. A comparison with an incomplete run is never green."""
    cut_short = contrast.a.failures or contrast.b.failures
    return (State.INVALID, ExitCode.BACKEND_ERROR) if cut_short else worst(contrast.verdicts)


def overall_of_agreement(agreement: Agreement) -> tuple[State, ExitCode]:
    """The worst state of all texts and acceptance figures. An agreement with an incomplete run is never green."""
    cut_short = any(side.cut_short for side in agreement.sides)
    return (State.INVALID, ExitCode.BACKEND_ERROR) if cut_short else worst_of(agreement.states)


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


def wanted(cell: Cell) -> Iterator[Kind]:
    """What `cell` has to be judged by: its records and tokens, and with speculation its acceptance and its speed."""
    yield from ("validity", "tokens")
    if cell.role.speculative:
        yield from ("acceptance", "speed")


def kind_of(rule: Rule) -> Kind | None:
    """What the verdicts of `rule` judge; None for a rule that judges something else.

    `distribution` judges the tokens of cells that are sampled, which need not be the baseline's; of greedy cells it
    says nothing. `load` judges the speed of all cells of a sweep together. `regression` judges speed where it compares
    with the baseline. Compared with another draft length, a role can be no slower than that and still be slower than
    plain decoding.
    """
    if rule.gate == "load":
        return "speed"
    if rule.gate == "distribution":
        return "tokens"
    kinds: tuple[Kind, ...] = ("validity", "tokens", "acceptance", "speed")
    if rule.gate == "regression" and rule.params.get("against") == BASELINE.name:
        return "speed"
    return next((kind for kind in kinds if kind == rule.gate), None)


def not_judged(run: Run, policy: Policy) -> tuple[Gap, ...] | None:
    """What `run` lacks in judgements, by its verdicts; None for a policy of a version that did not ask."""
    if policy.not_judged is None:
        return None
    kinds = {rule.id: kind_of(rule) for rule in policy.rules}
    decisive = [v for v in run.verdicts if v.required and v.state is not State.SKIPPED]
    judged = {(kinds.get(v.rule), v.cell) for v in decisive} | set(judged_together(run, policy, decisive))
    return gaps([result.cell for result in run.cells], judged, policy.not_judged)


def judged_together(run: Run, policy: Policy, verdicts: Iterable[Verdict]) -> Iterator[tuple[Kind | None, str]]:
    """(kind, cell key) of the cells that were judged by a verdict on their sweep, which has the key of one of them."""
    rules = {rule.id: rule for rule in policy.rules if rule.gate == "load"}
    sweeps = {result.cell.key: sweep_of(result.cell) for result in run.cells}
    for v in verdicts:
        if v.rule in rules and v.cell in sweeps:
            mine = [r.cell for r in run.cells if sweep_of(r.cell) == sweeps[v.cell] and rules[v.rule].matches(r.cell)]
            yield from ((kind_of(rules[v.rule]), cell.key) for cell in mine)


def foreseeable(cells: Iterable[Cell], policy: Policy) -> tuple[Gap, ...]:
    """What a run of `cells` will lack, whatever it measures: no required rule of `policy` selects it."""
    cells = list(cells)
    judged = {(kind_of(rule), c.key) for rule in policy.rules if rule.required for c in cells if rule.matches(c)}
    return gaps(cells, judged, policy.not_judged or ())


def gaps(
    cells: Iterable[Cell], judged: Collection[tuple[Kind | None, str]], exemptions: Sequence[Exemption]
) -> tuple[Gap, ...]:
    """What is wanted of `cells` and not among `judged`, (kind, cell key), by kind and reason."""
    found: dict[tuple[Kind, str | None], list[str]] = {}
    for cell in cells:
        for kind in wanted(cell):
            if (kind, cell.key) not in judged:
                why = next((e.why for e in exemptions if e.covers(kind, cell)), None)
                found.setdefault((kind, why), []).append(cell.key)
    return tuple(Gap(kind, tuple(keys), why) for (kind, why), keys in found.items())


def in_words(gap: Gap) -> str:
    """`speed of 2 cells (a shared CPU's clock is no judge)`; of a single cell, its key."""
    cells = gap.cells[0] if len(gap.cells) == 1 else f"{len(gap.cells)} cells"
    return f"{gap.kind} of {cells}" + (f" ({gap.why})" if gap.why else "")
