"""Many verdicts → one state and one exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specgate.core import Run, State, Verdict
from specgate.core.agreement import Agreement
from specgate.core.contrast import Contrast
from specgate.errors import ExitCode

_WORST_FIRST = (
    (State.INVALID, ExitCode.INVALID),
    (State.ENV_REJECTED, ExitCode.ENV_REJECTED),
    (State.FAIL, ExitCode.FAIL),
    (State.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
)


def overall(run: Run) -> tuple[State, ExitCode]:
    """The worst state among required verdicts, and what the process ends with.

    Wrong tokens are wrong on any machine; a speed that was measured on a disturbed one proves nothing, not even FAIL.
    A back end that failed comes first: it ends with BACKEND_ERROR whatever the cells that were measured say. A run in
    which nothing required was judged is inconclusive, never green.
    """
    return (State.INVALID, ExitCode.BACKEND_ERROR) if run.failures else worst(run.verdicts)


def overall_of_contrast(contrast: Contrast) -> tuple[State, ExitCode]:
    """As `overall`: a comparison with a run that was cut short is never green."""
    cut_short = contrast.a.failures or contrast.b.failures
    return (State.INVALID, ExitCode.BACKEND_ERROR) if cut_short else worst(contrast.verdicts)


def overall_of_agreement(agreement: Agreement) -> tuple[State, ExitCode]:
    """The worst state of all texts and shares; never green with a run that was cut short."""
    cut_short = any(side.cut_short for side in agreement.sides)
    return (State.INVALID, ExitCode.BACKEND_ERROR) if cut_short else worst_of(agreement.states)


def worst(verdicts: Iterable[Verdict]) -> tuple[State, ExitCode]:
    """The worst state among required verdicts; inconclusive where nothing required was judged."""
    return worst_of([v.state for v in verdicts if v.required and v.state is not State.SKIPPED])


def worst_of(states: Sequence[State]) -> tuple[State, ExitCode]:
    if not states:
        return State.INCONCLUSIVE, ExitCode.INCONCLUSIVE
    return next(((s, c) for s, c in _WORST_FIRST if s in states), (State.PASS, ExitCode.PASS))
