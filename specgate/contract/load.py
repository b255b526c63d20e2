"""A server under load: what it is offered, and what a sweep over levels of load amounts to.

A *level* is the number of clients that wait for their answers (closed loop), or requests per second (open loop).
docs/server.md has the definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from specgate.contract.types import ASCENDING, RATE, SECONDS, VALUES, LeavesOut, Length, Range, Requests

EARLY_NS: Final = 1_000_000
"""How long before it is due, or before its turn, a request of an open loop may be sent: clocks differ so much."""


@dataclass(frozen=True, slots=True)
class Load(LeavesOut):
    """Number of requests in a block of a load scenario, and their arrival."""

    LEFT_OUT = frozenset({"arrivals", "burstiness", "ramp_s", "duration_s", "search"})

    requests: Requests
    """At least so many requests per block."""
    per_client: Requests = 1
    """At least so many per client of a closed loop, so that a block lasts about as long at every level."""
    rates: Annotated[tuple[Annotated[float, Range(ge=1 / SECONDS, le=RATE)], ...], Length(0, VALUES), ASCENDING] = ()
    """Requests per second of an open loop, one level each, ascending. A closed loop has none: its levels are
    `grid.batch`.
    """
    arrivals: Literal["poisson", "constant", "gamma", "trace"] = "poisson"
    """Arrivals of an open loop. `poisson`: independent exponential gaps. `constant`: equal gaps. `gamma`: gaps of a
    gamma distribution, see `burstiness`. `trace`: the timestamps in the file of prompts, stretched to each rate;
    without rates, its own mean rate is the one level.
    """
    burstiness: Annotated[float, Range(ge=0.01, le=1000)] = 1.0
    """Shape of the gamma distribution: 1 is Poisson, below it requests come in bunches, above it more evenly."""
    ramp_s: Annotated[float, Range(ge=0, le=SECONDS)] = 0.0
    """Seconds at the beginning of a block over which the rate rises from 0, or clients begin one after the other."""
    duration_s: Annotated[float, Range(gt=0, le=SECONDS)] | None = None
    """Seconds of a block in which requests are sent; those that are out are answered. An open loop then has as many as
    are expected in that time, in the place of `requests`. Clients of a closed loop take its prompts again if need be.
    """

    search: Literal["goodput", "break-even"] | None = None
    """The levels that are measured: those that it takes to find the greatest one within the limits of `goodput`, or
    those up to the first at which speculation costs. None: all.
    """

    def in_block(self, clients: int, rate: float | None) -> int:
        """The different requests of one block at a level of `clients`, or of `rate` per second."""
        if rate is None:
            return max(self.requests, self.per_client * clients)
        return self.requests if self.duration_s is None else max(1, round(self.expected(rate, self.duration_s)))

    def expected(self, rate: float, seconds: float) -> float:
        """Expected number of arrivals within `seconds` of a block, at `rate` per second after the ramp."""
        ramp = min(seconds, self.ramp_s)
        return rate * (seconds - ramp) + (rate * ramp * ramp / (2 * self.ramp_s) if ramp else 0.0)


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """Arrival of the requests of one block. Exactly one of the two fields is set.

    `clients`: a closed loop. So many clients share the list of requests; each sends the next one as soon as it has the
        whole answer to its last one.
    `arrivals_ns`: an open loop. Request i is due so many nanoseconds after the block began, whatever has been answered
        by then; ascending.

    `ramp_ns`, `until_ns`: of a closed loop. Its clients begin one after the other over `ramp_ns`, and none sends a
        request later than `until_ns`; until then, they take the list again when it is through. None: it ends with it.
    `new_tokens`: tokens of each answer, where they differ; () where the budget says how many all have.
    """

    clients: int | None = None
    arrivals_ns: tuple[int, ...] = ()
    ramp_ns: int = 0
    until_ns: int | None = None
    new_tokens: tuple[int, ...] = ()

    def tokens_of(self, prompt: int, budget: int) -> int:
        """Tokens of the answer to a prompt. `budget`: those of all, unless they differ."""
        return self.new_tokens[prompt] if self.new_tokens else budget

    def starts_ns(self) -> Iterator[int]:
        """Yield the time at which each client of a closed loop begins."""
        yield from (self.ramp_ns * i // self.clients for i in range(self.clients or 0) if self.clients)


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


@dataclass(frozen=True, slots=True)
class LevelUse:
    """The share of the latency limits that requests used up at one level: `use`, with its 95 % interval.

    At most 1 where the limits held. None where there is no figure. `cell`: key of the cell. `requests`: how many were
    sent. `goodput_req_s`: those that kept to the limits, per second.
    """

    level: float
    cell: str
    requests: int
    use: float | None
    ci_low: float | None
    ci_high: float | None
    goodput_req_s: float | None


@dataclass(frozen=True, slots=True)
class MaxGoodput:
    """The greatest level at which the scenario's latency limits hold, in one sweep of one role.

    `k`: its draft length; 0 for the baseline. `value`: the level at which the estimated use of the limits first exceeds
    1, interpolated; None where `outcome` is not `crosses`. `low`: up to there the limits hold at `confidence`; None
    where not even at the smallest level. `high`: from there on they do not; None where that is beyond the sweep.
    """

    scenario: str
    context: int
    k: int
    open_loop: bool
    levels: tuple[LevelUse, ...]
    outcome: Literal["crosses", "everywhere", "nowhere", "unknown"]
    value: float | None
    low: float | None
    high: float | None
    confidence: float


@dataclass(frozen=True, slots=True)
class BestDraft:
    """The draft length with the greatest speed at one level of load, among several and 0, which is the baseline.

    `ratio`: its speed over the next best one's (`next_k`), with the 95 % interval. `as_good`: draft lengths that are
    not told from it, the error being shared by all comparisons with it.
    """

    scenario: str
    context: int
    level: float
    open_loop: bool
    k: int
    next_k: int
    ratio: float
    ci_low: float
    ci_high: float
    as_good: tuple[int, ...]
