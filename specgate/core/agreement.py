"""The nouns of `specgate agree`: does another engine write the reference's texts, and accept as many drafts of them?"""

from __future__ import annotations

from dataclasses import dataclass

from specgate.core import AcceptanceSource, Cell, Divergence, State


@dataclass(frozen=True, slots=True)
class Side:
    """One run, in what a reader must know of it. `label`: its back end, with the run's name where there are two."""

    label: str
    run_id: str
    version: str
    device: str
    dtype: str
    target_sha256: str
    draft_sha256: str | None
    capture_rule: str | None
    acceptance: AcceptanceSource
    warnings: tuple[str, ...]
    """What the engine itself says of how it decodes this pair."""
    cut_short: str | None
    """Why the run is not whole."""


@dataclass(frozen=True, slots=True)
class Share:
    """A figure over the steps that had a draft: `acceptance_length`, or `accepted[i]`, the share that accepted draft i.

    `ratio` is the engine's over the reference's, with a 95 % interval over prompts; None where there are too few.
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
    """A cell of an engine beside the reference's. `shares` rest on the `alike` of `prompt_sets` whose texts are the
    same in both, since another text has other drafts; `why_not` says why there are none.

    `cut`: the engine drafts no more than a request has tokens left, and the reference is counted likewise.
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
        """FAIL for a difference where the reference had no near tie, INCONCLUSIVE where nobody has asked it."""
        if not self.compared_tokens:
            return State.INCONCLUSIVE
        if any(d.margin is not None and not d.near_tie for d in self.divergences):
            return State.FAIL
        return State.INCONCLUSIVE if any(d.margin is None for d in self.divergences) else State.PASS


@dataclass(frozen=True, slots=True)
class Agreement:
    """The first side is the reference. `margin_pct`: how far a ratio may be from 1 either way."""

    sides: tuple[Side, ...]
    matches: tuple[Match, ...]
    margin_pct: float

    @property
    def states(self) -> list[State]:
        """Of all that was compared: tokens, then shares."""
        return [m.tokens for m in self.matches] + [s.state for m in self.matches for s in m.shares]
