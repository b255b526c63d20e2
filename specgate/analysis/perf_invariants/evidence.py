"""Parts that the invariants share: evidence, sums of counters, and unobservable ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specgate.contract import Block, BlockTrace, Held, Invariant

Evidence = Mapping[str, float | int | str | None]


def unseen(id_: str, trace: BlockTrace | None) -> Invariant:
    """An invariant that is not observable, because no block was traced or nothing could be observed of it."""
    why = "no block was traced" if trace is None else trace.unseen or ""
    return Invariant(id_, Held.UNSEEN, "not_traced", why)


def total_of(counter: str, blocks: Sequence[Block]) -> int | None:
    """The counter's sum over the blocks; None where one of them lacks it."""
    values = [b.counters.get(counter) for b in blocks]
    return None if not values or None in values else sum(v for v in values if v is not None)
