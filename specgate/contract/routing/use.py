"""Use of the experts by a cell's target passes, as figures over all its measured blocks.

`docs/definitions.md` defines the overlap, `ExpertTraffic.distinct` has its formula.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowUse:
    """Rows at one place of a slot's pass; the first is the newest token, the second the first draft.

    `touched`: experts per layer that the rows of a slot up to this one touch together, the mean.
    `overlap`: of these rows; None for the first.
    """

    row: int
    touched: float
    overlap: float | None


@dataclass(frozen=True, slots=True)
class SlotRows:
    """`passes` whose active slots had `rows` rows each, in descending order."""

    rows: tuple[int, ...]
    passes: int


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """The experts that the passes of a cell touched.

    `count`, `active`: experts per layer, and how many of them a token is sent to.
    `counted`: whether the engine counted them. If not, `touched` is `independent`, and what counts give is empty.
    `touched`: experts per layer and pass, the mean.
    `independent`: what it would be if every token were routed evenly and independently of all others.
    `bytes_per_pass`: bytes of the experts that a pass reads, the mean.
    `overlap`: of neighbouring tokens of a request. None where passes have one token per request, or where it does not
        follow from what was counted.
    `slots`: the passes by the rows of their slots.
    `by_row`: by the place of a row in its slot.
    """

    count: int
    active: int
    counted: bool
    touched: float
    independent: float
    bytes_per_pass: float
    overlap: float | None
    slots: tuple[SlotRows, ...]
    by_row: tuple[RowUse, ...] = ()
