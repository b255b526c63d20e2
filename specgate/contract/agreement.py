"""Data classes of `specgate runs compare --by texts`: texts and acceptance of engines beside a reference's."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.contract import Cell, Divergence, State
from specgate.contract.matrix import Column


@dataclass(frozen=True, slots=True)
class Share:
    """One acceptance figure of a cell in both engines, over the steps that had a draft.

    `name`: `acceptance_length`, or `accepted[i]` for the share of these steps that accepted draft token i.
    `ratio`: the engine's figure over the reference's; None where the reference's is 0.
    `ci_low`, `ci_high`: the 95 % interval of the ratio over prompts; None where there are too few prompts.
    """

    name: str
    reference: float
    engine: float
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    state: State


@dataclass(frozen=True, slots=True)
class Match:
    """A cell of an engine beside the same cell of the reference.

    `shares`: acceptance figures. They rest on the prompt sets whose texts are the same in both runs, because a
        different text has different drafts.
    `alike`: how many of the `prompt_sets` these are.
    `cut`: the engine never drafts more tokens than a request has left, so the reference's drafts are counted the same
        way.
    `why_not`: why the two cells cannot be compared; None where they can.
    """

    label: str
    cell: Cell
    compared_tokens: int
    prompt_sets: int
    alike: int
    divergences: tuple[Divergence, ...]
    shares: tuple[Share, ...] = ()
    cut: bool = False
    why_not: str | None = None

    @property
    def tokens(self) -> State:
        """FAIL for a difference where the reference had no near tie; INCONCLUSIVE where that is unknown or nothing was
        compared.
        """
        if not self.compared_tokens:
            return State.INCONCLUSIVE
        if any(d.margin is not None and not d.near_tie for d in self.divergences):
            return State.FAIL
        return State.INCONCLUSIVE if any(d.margin is None for d in self.divergences) else State.PASS


@dataclass(frozen=True, slots=True)
class Agreement:
    """The whole check. The first side is the reference.

    `margin_pct`: how far a ratio may be from 1 in either direction, in percent.
    """

    sides: tuple[Column, ...]
    matches: tuple[Match, ...]
    margin_pct: float

    @property
    def states(self) -> list[State]:
        """The state of everything that was compared: first the tokens of each match, then its acceptance figures."""
        return [m.tokens for m in self.matches] + [s.state for m in self.matches for s in m.shares]
