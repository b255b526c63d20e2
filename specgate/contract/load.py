"""A server under load: what it is offered, and what a sweep over levels of load amounts to.

A *level* is the number of clients that wait for their answers (closed loop), or requests per second (open loop).
docs/server.md has the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from specgate.contract.types import ASCENDING, RATE, SECONDS, VALUES, Length, Range, Requests

EARLY_NS: Final = 1_000_000
"""How long before it is due, or before its turn, a request of an open loop may be sent: clocks differ so much."""


@dataclass(frozen=True, slots=True)
class Load:
    """Number of requests in a block of a load scenario, and their arrival."""

    requests: Requests
    """At least so many requests per block."""
    per_client: Requests = 1
    """At least so many per client of a closed loop, so that a block lasts about as long at every level."""
    rates: Annotated[tuple[Annotated[float, Range(ge=1 / SECONDS, le=RATE)], ...], Length(0, VALUES), ASCENDING] = ()
    """Requests per second of an open loop, one level each, ascending. A closed loop has none: its levels are
    `grid.batch`.
    """

    def in_block(self, clients: int) -> int:
        """The requests of one block at a level of `clients`."""
        return self.requests if self.rates else max(self.requests, self.per_client * clients)


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """Arrival of the requests of one block. Exactly one of the two fields is set.

    `clients`: a closed loop. So many clients share the list of requests; each sends the next one as soon as it has the
        whole answer to its last one.
    `arrivals_ns`: an open loop. Request i is due so many nanoseconds after the block began, whatever has been answered
        by then; ascending.
    """

    clients: int | None = None
    arrivals_ns: tuple[int, ...] = ()


Outcome = Literal["everywhere", "nowhere", "crosses", "beyond", "below", "mixed", "partly", "unclear"]
"""What a sweep shows, at its confidence:

`everywhere`, `nowhere`: speculation pays, or costs, at every measured level.
`crosses`: it pays at small levels and costs at great ones.
`beyond`: it pays from the smallest level up to `low`. At greater ones that is not told everywhere.
`below`: it costs from `high` up to the greatest level. At smaller ones that is not told.
`mixed`: it costs at a level and pays at a greater one.
`partly`: it is told from the baseline at some levels, neither from the smallest on nor up to the greatest.
`unclear`: at no level is it told from the baseline.
"""


@dataclass(frozen=True, slots=True)
class LevelRatio:
    """Spec's speed over the baseline's at one level, with its 95 % interval; None where there is no figure.

    `cell`: key of the spec cell. `pairs`: pairs of blocks.
    """

    level: float
    cell: str
    pairs: int
    ratio: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Level at which the ratio of speeds crosses 1 within one sweep: one scenario, context and draft length.

    `open_loop`: levels are requests per second, and the ratio is of latencies; else levels are clients, and it is of
        throughputs.

    `value`: the level at which the estimated ratio first falls to 1, interpolated in log2(level); None where it does
        not within the sweep.
    `low`, `high`: ends of the confidence interval of that level. None where the interval goes on beyond the sweep on
        that side, and where no level of the sweep can be the break-even.
    `outcome`: what is told at `confidence`.
    """

    scenario: str
    context: int
    k: int
    open_loop: bool
    levels: tuple[LevelRatio, ...]
    outcome: Outcome
    value: float | None
    low: float | None
    high: float | None
    confidence: float
