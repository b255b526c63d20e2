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
    """The worst state among the required verdicts, and the exit code of the process.

    INVALID comes before ENV_REJECTED, because wrong tokens are wrong on any machine. ENV_REJECTED comes before FAIL,
    because a speed measured on a disturbed machine proves nothing. A back end that failed comes first of all: the run
    ends with BACKEND_ERROR whatever the measured cells say. A run in which nothing required was judged is inconclusive,
    never green.
    """
    return (State.INVALID, ExitCode.BACKEND_ERROR) if run.failures else worst(run.verdicts)


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
    return worst_of([v.state for v in verdicts if v.required and v.state is not State.SKIPPED])


def worst_of(states: Sequence[State]) -> tuple[State, ExitCode]:
    """The worst of `states` with its exit code; inconclusive where there are none."""
    if not states:
        return State.INCONCLUSIVE, ExitCode.INCONCLUSIVE
    return next(((s, c) for s, c in _WORST_FIRST if s in states), (State.PASS, ExitCode.PASS))
