"""The acceptance record: counts over the measured window, and every acceptance figure derived from them.

One statistic is kept, the histogram of accepted drafts per step; the rest follows. Definitions: `acceptance_length` is
1 + accepted / steps-with-drafts, bonus token included, token-weighted, prefill token excluded. Engines that count
less than that give `Totals`, and what does not follow from these is not observable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specgate.errors import InvalidResult


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the request-steps that had a draft: the steps, their drafted and their accepted tokens."""

    steps: int
    drafted: int
    accepted: int

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.steps + other.steps, self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass(frozen=True, slots=True)
class AcceptanceRecord:
    """Counts of request-steps that had at least one drafted token.

    `hist[i]`: steps with exactly i accepted drafts, i = 0…k. `drafted_at_pos[i]`: steps in which draft i + 1 was
    made at all. `emitted`: tokens that those steps emitted; `truncated`: accepted or bonus tokens cut at EOS, stop
    or limit. `totals` is what an engine counts that does not count all of this: `hist` or `drafted_at_pos` may then be
    (), not observable.
    """

    k: int
    hist: tuple[int, ...]
    drafted_at_pos: tuple[int, ...]
    emitted: int
    truncated: int
    totals: Totals | None = None

    @property
    def steps(self) -> int:
        return self.totals.steps if self.totals else sum(self.hist)

    @property
    def accepted(self) -> int:
        return self.totals.accepted if self.totals else sum(i * n for i, n in enumerate(self.hist))

    @property
    def drafted(self) -> int:
        return self.totals.drafted if self.totals else sum(self.drafted_at_pos)

    @property
    def acceptance_length(self) -> float | None:
        return 1 + self.accepted / self.steps if self.steps else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepted_at_pos(self) -> tuple[int, ...]:
        """Steps whose draft i + 1 was accepted (survival counts); () where they were not counted."""
        return tuple(sum(self.hist[i + 1 :]) for i in range(self.k)) if self.hist else ()

    @property
    def per_position(self) -> bool:
        """Whether both what was drafted and what was accepted is known position by position."""
        return bool(self.hist and self.drafted_at_pos)

    @property
    def acceptance_at_pos(self) -> tuple[float | None, ...]:
        """Share of steps that accepted draft i + 1, of those that drafted it; never conditional on earlier
        positions. () where not observable.
        """
        if not self.per_position:
            return ()
        return tuple(a / d if d else None for a, d in zip(self.accepted_at_pos, self.drafted_at_pos, strict=True))

    @property
    def cond_acceptance_at_pos(self) -> tuple[float | None, ...]:
        """Share of steps that accepted draft i + 1, of those that accepted draft i and drafted i + 1; () where not
        observable.
        """
        if not self.per_position:
            return ()
        at = self.accepted_at_pos
        reached = (self.steps, *at[:-1])
        return tuple(
            a / min(r, d) if min(r, d) else None for a, r, d in zip(at, reached, self.drafted_at_pos, strict=True)
        )

    @property
    def multi_token_share(self) -> float | None:
        """Share of steps with at least two accepted drafts."""
        return sum(self.hist[2:]) / self.steps if self.steps and self.hist else None

    def check(self) -> None:
        """Raise InvalidResult with the equation that fails."""
        unknown = {0} if self.totals is not None else set()
        if (
            self.k < 1
            or len(self.hist) not in unknown | {self.k + 1}
            or len(self.drafted_at_pos) not in unknown | {self.k}
        ):
            raise InvalidResult(
                f"acceptance record: k = {self.k} needs {self.k + 1} histogram bins and {self.k} positions, "
                f"got {len(self.hist)} and {len(self.drafted_at_pos)}"
            )
        if self.totals is not None:
            self._check_totals(self.totals)
        if min(*self.hist, *self.drafted_at_pos, self.emitted, self.truncated) < 0:
            raise InvalidResult("acceptance record: a count is negative")
        if self.per_position and any(a > d for a, d in zip(self.accepted_at_pos, self.drafted_at_pos, strict=True)):
            raise InvalidResult(
                f"acceptance record: accepted_at_pos {self.accepted_at_pos} exceeds "
                f"drafted_at_pos {self.drafted_at_pos}"
            )
        if any(later > earlier for earlier, later in zip(self.drafted_at_pos, self.drafted_at_pos[1:], strict=False)):
            raise InvalidResult(f"acceptance record: drafted_at_pos {self.drafted_at_pos} increases with position")
        if self.drafted_at_pos and self.drafted_at_pos[0] != self.steps:
            raise InvalidResult(
                f"acceptance record: drafted_at_pos[0] = {self.drafted_at_pos[0]} but steps = {self.steps}"
            )
        if self.emitted != self.steps + self.accepted - self.truncated:
            raise InvalidResult(
                f"acceptance record: emitted = {self.emitted} but steps + accepted - truncated = "
                f"{self.steps} + {self.accepted} - {self.truncated}"
            )

    def _check_totals(self, totals: Totals) -> None:
        """The sums against each other, and against what was counted in more detail."""
        if not 0 <= totals.accepted <= totals.drafted or not totals.steps <= totals.drafted <= self.k * totals.steps:
            raise InvalidResult(
                f"acceptance record: accepted = {totals.accepted} ≤ drafted = {totals.drafted}, and steps = "
                f"{totals.steps} ≤ drafted ≤ k · steps = {self.k * totals.steps} do not both hold"
            )
        counted = sum(self.hist), sum(i * n for i, n in enumerate(self.hist))
        if self.hist and counted != (totals.steps, totals.accepted):
            raise InvalidResult(
                f"acceptance record: histogram {self.hist} does not add up to steps = {totals.steps} and "
                f"accepted = {totals.accepted}"
            )
        if self.drafted_at_pos and sum(self.drafted_at_pos) != totals.drafted:
            raise InvalidResult(
                f"acceptance record: drafted_at_pos {self.drafted_at_pos} does not add up to drafted = {totals.drafted}"
            )

    def __add__(self, other: AcceptanceRecord) -> AcceptanceRecord:
        """Pooled; what one of the two does not know is not known of both."""
        if self.k != other.k:
            raise ValueError(f"records of spec-{self.k} and spec-{other.k} cannot be pooled")
        sums = [Totals(r.steps, r.drafted, r.accepted) for r in (self, other)]
        return AcceptanceRecord(
            self.k,
            added(self.hist, other.hist),
            added(self.drafted_at_pos, other.drafted_at_pos),
            self.emitted + other.emitted,
            self.truncated + other.truncated,
            sums[0] + sums[1] if self.totals or other.totals else None,
        )

    @classmethod
    def from_steps(
        cls, k: int, accepted: Iterable[Sequence[int]], drafted: Iterable[Sequence[int]], emitted: int, truncated: int
    ) -> AcceptanceRecord:
        """Count `accepted[step][slot]` and `drafted[step][slot]`; entries with `drafted < 1` had no draft and are
        left out.

        `emitted` and `truncated` must cover the same request-steps.
        """
        hist, at_pos = [0] * (k + 1), [0] * k
        for a_row, d_row in zip(accepted, drafted, strict=True):
            for a, d in zip(a_row, d_row, strict=True):
                if d < 1:
                    continue
                hist[a] += 1
                for i in range(d):
                    at_pos[i] += 1
        return cls(k, tuple(hist), tuple(at_pos), emitted, truncated)


def added(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Sums by position; () where one of the two is ()."""
    return tuple(x + y for x, y in zip(a, b, strict=True)) if a and b else ()
