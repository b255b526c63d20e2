"""The acceptance record: draft-token counts over the measured window, and every acceptance figure derived from them.

The counts are per request-step: one step of one request. The central statistic is the histogram of accepted draft
tokens per request-step; the other figures follow from it. `acceptance_length` is 1 + accepted / request-steps that had
a draft, or that need not have one. It includes the bonus token and excludes the prefill token, and it is token-weighted
(a ratio of sums). An engine that does not count a histogram gives `Totals` instead; a figure that does not follow from
these is not observable. Of a draft tree, the accepted path is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import ClassVar

from specgate.contract.types import Count, Counts, LeavesOut, Size
from specgate.errors import InvalidResult


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the request-steps that had a draft.

    `steps`: how many such request-steps there were.
    `drafted`, `accepted`: draft tokens proposed and accepted in them.
    """

    steps: Count
    drafted: Count
    accepted: Count

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.steps + other.steps, self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass(frozen=True, slots=True)
class AcceptanceRecord(LeavesOut):
    """Draft-token counts over the request-steps that had at least one draft token.

    `k`: the draft length of the role spec-k; where a server's method sets its own lengths (`OWN_LENGTHS` in an engine's
        facts), the longest draft that was seen, if that is shorter.
    `hist[i]`: request-steps with exactly i accepted draft tokens, i = 0…k.
    `drafted_at_pos[i]`: request-steps in which draft token i + 1 was proposed.
    `emitted`: tokens that these request-steps emitted.
    `truncated`: accepted or bonus tokens that were cut off at EOS, at a stop token or at the length limit.
    `totals`: the sums of an engine that does not count all of the above, else None. With it, `hist` and
        `drafted_at_pos` may be (): not observable.
    `skipped`: request-steps without a draft, of a server whose method need not draft; all counts above leave them out.
        None of any other engine.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"skipped"})

    k: Size
    hist: Counts
    drafted_at_pos: Counts
    emitted: Count
    truncated: Count
    totals: Totals | None = None
    skipped: Count | None = None

    @property
    def steps(self) -> int:
        """Request-steps that had a draft."""
        return self.totals.steps if self.totals else sum(self.hist)

    @property
    def accepted(self) -> int:
        """Accepted draft tokens, bonus tokens not included."""
        return self.totals.accepted if self.totals else sum(i * n for i, n in enumerate(self.hist))

    @property
    def drafted(self) -> int:
        """Proposed draft tokens."""
        return self.totals.drafted if self.totals else sum(self.drafted_at_pos)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per step, 1 + accepted / steps, with the skipped steps among them; None where no step had a draft."""
        return 1 + self.accepted / self.counted_steps if self.steps else None

    @property
    def counted_steps(self) -> int:
        """Request-steps that the acceptance length is over: those that had a draft, and those that need not have."""
        return self.steps + (self.skipped or 0)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / proposed draft tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepted_at_pos(self) -> tuple[int, ...]:
        """Entry i: request-steps that accepted draft token i + 1 (survival counts). () where not observable."""
        return tuple(sum(self.hist[i + 1 :]) for i in range(self.k)) if self.hist else ()

    @property
    def per_position(self) -> bool:
        """True if both the proposed and the accepted draft tokens are known position by position."""
        return bool(self.hist and self.drafted_at_pos)

    @property
    def acceptance_at_pos(self) -> tuple[float | None, ...]:
        """Entry i: the share of steps that accepted draft token i + 1, among those that proposed it.

        It is never conditional on earlier positions. An entry is None where no step proposed that token. () where not
        observable.
        """
        if not self.per_position:
            return ()
        return tuple(a / d if d else None for a, d in zip(self.accepted_at_pos, self.drafted_at_pos, strict=True))

    @property
    def cond_acceptance_at_pos(self) -> tuple[float | None, ...]:
        """Entry i: the share of steps that accepted draft token i + 1, among those that accepted draft token i and
        proposed i + 1.

        The number of the latter is taken as the smaller of the two counts, which is exact where every draft has k
        tokens. An entry is None where that number is 0. () where not observable.
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
        """Share of request-steps with at least two accepted draft tokens; None where not observable."""
        return sum(self.hist[2:]) / self.steps if self.steps and self.hist else None

    def check(self) -> None:
        """Check the identities between the counts. Raises InvalidResult with the equation that fails."""
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
        """Check the sums against each other, and against whatever was counted in more detail."""
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
        """Pool two records of a cell. What one of them does not know is not observable in the sum, whose `k` is that of
        the longer drafts.
        """
        return AcceptanceRecord(
            max(self.k, other.k),
            added(self.hist, other.hist),
            added(self.drafted_at_pos, other.drafted_at_pos),
            self.emitted + other.emitted,
            self.truncated + other.truncated,
            self._sums + other._sums if self.totals or other.totals else None,
            None if self.skipped is other.skipped is None else (self.skipped or 0) + (other.skipped or 0),
        )

    @property
    def _sums(self) -> Totals:
        return Totals(self.steps, self.drafted, self.accepted)

    @classmethod
    def from_steps(
        cls, k: int, accepted: Iterable[Sequence[int]], drafted: Iterable[Sequence[int]], emitted: int, truncated: int
    ) -> AcceptanceRecord:
        """The record of `accepted[step][slot]` and `drafted[step][slot]`, both in draft tokens.

        Entries with `drafted < 1` had no draft and are left out. `emitted` and `truncated` (tokens) must cover the same
        request-steps.
        """
        rows = (zip(a, d, strict=True) for a, d in zip(accepted, drafted, strict=True))
        return cls.from_counts(k, Counter(chain.from_iterable(rows)), emitted, truncated)

    @classmethod
    def from_counts(
        cls, k: int, counts: Mapping[tuple[int, int], int], emitted: int, truncated: int
    ) -> AcceptanceRecord:
        """As `from_steps`, of (accepted, drafted) → how many request-steps had these counts."""
        hist, at_pos = [0] * (k + 1), [0] * k
        for (a, d), times in counts.items():
            if d < 1:
                continue
            hist[a] += times
            for i in range(d):
                at_pos[i] += times
        return cls(k, tuple(hist), tuple(at_pos), emitted, truncated)


def added(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Element-wise sums, as long as the longer one; () where one of the two is ()."""
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0)) if a and b else ()


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """An engine's own counts of the drafts of one request, or of several, whatever the lengths of the drafts.

    `hist`: a sparse histogram: (accepted draft tokens, request-steps that accepted so many), ascending; () where an
        engine does not count it.
    `lengths`: the same of the draft tokens that were proposed.
    `tree`: they are those of trees, or of a shape that is not known. The record counts their accepted paths, of at most
        K tokens a step, and no positions.
    """

    totals: Totals
    hist: tuple[tuple[Count, Count], ...] = ()
    lengths: tuple[tuple[Count, Count], ...] = ()
    tree: bool = False

    def record(
        self, k: int, emitted: int, arrivals: Sequence[Sequence[int]] | None = None
    ) -> tuple[AcceptanceRecord, int]:
        """Return (the acceptance record, the request-steps without a draft that they should have had) of requests that
        emitted `emitted` tokens behind their first ones, with drafts of at most `k` tokens.

        `arrivals`: of a method that need not draft in every step, the tokens of each arrival behind the first tokens,
        request by request.

        Their steps should be `emitted` tokens, plus those cut off at the end, less the accepted ones. Engines count
        neither steps without a draft nor tokens cut off. Arrivals that can be steps tell the two apart. Else, the
        difference is taken for one of the two, never for both.
        """
        steps, counts, totals = self.totals.steps, dict(self.hist), self.totals
        if self.tree:
            totals = Totals(steps, min(totals.drafted, k * steps), totals.accepted)
        surplus, counted = steps + totals.accepted - emitted, bool(counts) or not steps
        undrafted = self.undrafted(k, arrivals) if arrivals is not None else None
        if undrafted is None:
            undrafted = max(0, -surplus)
        at_pos = (steps,) * k if totals.drafted == k * steps and not self.tree else ()
        if self.lengths and not self.tree:
            at_pos = tuple(sum(n for length, n in self.lengths if length > i) for i in range(k))
        return AcceptanceRecord(
            k=k,
            hist=tuple(counts.get(i, 0) for i in range(max(k, 0, *counts) + 1)) if counted else (),
            drafted_at_pos=at_pos,
            emitted=emitted - undrafted,
            truncated=surplus + undrafted,
            totals=None if counted and at_pos else totals,
            skipped=None if arrivals is None else undrafted,
        ), undrafted if arrivals is None else 0

    def undrafted(self, k: int, arrivals: Sequence[Sequence[int]]) -> int | None:
        """Return how many arrivals are steps without a draft; None if arrivals cannot be steps.

        There is one for each step. Those before the last of a request have a token more than their step accepted, and
        at most `k` tokens of a request are cut off.
        """
        steps = sum(map(len, arrivals))
        cut = self.totals.accepted + steps - sum(map(sum, arrivals))
        whole = Counter(size - 1 for sizes in arrivals for size in sizes[:-1] if size > 1)
        if (
            steps < self.totals.steps
            or not 0 <= cut <= k * len(arrivals)
            or (self.hist and whole - Counter(dict(self.hist)))
        ):
            return None
        return steps - self.totals.steps
