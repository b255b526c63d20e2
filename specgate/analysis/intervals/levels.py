"""Levels of error that a decision may have, and how interim looks and cells share them. Pure."""

from __future__ import annotations

from typing import Final

FALSE_PASS: Final = 0.005
"""The chance that a cell passes whose true ratio lies at its floor, over all looks together.

It needs no adjustment for many cells: a run is green only if every required cell passes, so the chance of a false green
is at most that of one false PASS (an intersection–union test, Berger 1982).
"""
FALSE_FAIL: Final = 0.0035
"""The chance that any of the required cells of a run fails whose true ratio lies at its floor, over all looks together.

One red cell turns a run red, so the required cells share it (Bonferroni at the looks, Holm 1979 at the end).
"""


def spent(error: float, look: int) -> float:
    """Error that look number `look` (from 1) may spend of `error`: error / (look · (look + 1)).

    That is a half, a sixth, a twelfth, and so on. K looks spend 1 − 1/(K + 1) of it together, so there is always
    something left for one more: a run may be continued with more rounds than were planned.
    """
    return error / (look * (look + 1))


def false_fail(required: bool, decisions: int) -> float:
    """The share of FALSE_FAIL that one decision has.

    `decisions`: how many decisions required rules ask for. Rules that only advise do not turn a run red: each has the
    whole error.
    """
    return FALSE_FAIL / max(decisions, 1) if required else FALSE_FAIL
