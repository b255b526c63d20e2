"""Load that a scenario of `kind: load` offers a server, and that an engine is asked to serve in one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

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
