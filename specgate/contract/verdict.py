"""States, kinds of judgement and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The states a verdict can have."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    SKIPPED = "SKIPPED"
    ENV_REJECTED = "ENV_REJECTED"
    NOT_JUDGED = "NOT_JUDGED"
    """Nothing is red, but something that has to be judged was not: of a whole run, or of what a rule asks for."""


Kind = str
"""A kind of judgement: one of `KINDS`, or a gate's own."""


KINDS: Final = ("validity", "tokens", "acceptance", "speed")
"""Kinds of judgement that every run needs: see `analysis.verdict.wanted`."""


SPEEDUP: Final = "speedup"


ACCEPTANCE_LENGTH: Final = "acceptance_length"


RESUME: Final = "--resume RUN"
"""Options that continue a run, as a verdict's next step ends with them. RUN stands for its folder."""


NOWHERE: Final = "nothing_has_this_name"
"""Reason code of a required rule that selects nothing, because no scenario, role or variant has its names."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least figure that a rule demands of each of its cells.

    `figure`: SPEEDUP or ACCEPTANCE_LENGTH, whose floors are compared with what a cell can reach, or a gate's own.
    `text`: the demand as reports show it, such as `≥ 2×`.
    """

    figure: str
    least: float
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Judgement that a run must have and that no required rule of the policy gives.

    `cells`: keys of the cells, in the order of the plan.
    `why`: the reason that the policy gives; None where it gives none, which is what makes a run NOT_JUDGED.
    """

    kind: Kind
    cells: tuple[str, ...]
    why: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate's judgement of one cell: a state, the reason as code and sentence, the numbers, and what to do next.

    `covers`: keys of further cells that the verdict judges together with `cell`, such as a sweep's.
    `judges`, `floor`: as the gate declares them for the rule. The harness fills them in.
    """

    rule: str
    gate: str
    cell: str
    state: State
    required: bool
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)
    next_step: str | None = None
    covers: tuple[str, ...] = ()
    judges: tuple[Kind, ...] = ()
    floor: Floor | None = None
