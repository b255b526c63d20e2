"""Experts that passes touch: counts, their overlap between tokens, and the bytes that follow.

`ExpertTraffic.distinct` has the formula, `docs/definitions.md` the definition.

Longer drafts touch more experts and are accepted less often in their last places, so the best length is often a short
one. A chain that was cut off after k tokens would have had the first k of the same drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final

from specgate.contract import Block
from specgate.contract.routing import ExpertUse, RowUse, SlotRows
from specgate.contract.traffic import ExpertTraffic


def rows_of_steps(block: Block) -> tuple[tuple[int, ...], ...]:
    """Step → rows of every slot that was active: its newest token and its drafts."""
    return tuple(
        tuple(drafts + 1 for accepts, drafts in zip(*step, strict=True) if accepts >= 0)
        for step in zip(block.accepted, block.drafted, strict=True)
    )


Rows = Mapping[tuple[int, ...], int]
"""Rows of every active slot → how many passes had them."""
HALVINGS: Final = 60
MOST_INDEPENDENT: Final = 4.0
"""How many independent slots one may at most count as: slots that avoid each other's experts count as more than one."""


def overlap_of(experts: ExpertTraffic, tokens: int, touched: float) -> float | None:
    """The overlap at which `tokens` neighbouring tokens touch `touched` experts of a layer.

    Below 0 where they share less than independent tokens would. None where nothing can be told: of a single token, and
    where every token goes to every expert.
    """
    independent = experts.distinct(tokens)
    if tokens < 2 or experts.active >= experts.count:
        return None
    return (independent - touched) / (independent - experts.active)


def mean_touched(experts: ExpertTraffic, rows: Rows, overlap: float, independence: float = 1.0) -> float:
    """Experts of a layer that a pass touches by `ExpertTraffic.distinct_of_slots`, the mean over passes with `rows`."""
    total = sum(n * experts.distinct_of_slots(of, overlap, independence) for of, n in rows.items())
    return total / sum(rows.values())


def independence_of(experts: ExpertTraffic, rows: Rows, overlap: float, touched: float) -> float:
    """Number of independent slots that a slot counts as, if passes touch `touched` experts of a layer in the mean."""
    if all(len(of) <= 1 for of in rows):
        return 1.0
    return solved(lambda n: touched - mean_touched(experts, rows, overlap, n), 0.0, MOST_INDEPENDENT)


def needed_overlap(experts: ExpertTraffic, rows: Rows, touched: float, independence: float = 1.0) -> float | None:
    """The least overlap at which passes touch no more than `touched` experts of a layer in the mean.

    0 where independent tokens do already; None where even tokens that all choose the same experts touch more.
    """
    if mean_touched(experts, rows, 0.0, independence) <= touched:
        return 0.0
    if mean_touched(experts, rows, 1.0, independence) > touched:
        return None
    return solved(lambda o: mean_touched(experts, rows, o, independence) - touched, 0.0, 1.0)


def solved(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of `falling` between `low` and `high`, or the end that is nearest to it."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def passes_with(rows: Sequence[tuple[int, ...]]) -> Rows:
    """Rows of every active slot, in descending order → the passes of `rows` that had them; passes without rows are left
    out.
    """
    return Counter(tuple(sorted(of, reverse=True)) for of in rows if of)


def use_of(blocks: Sequence[Block], experts: ExpertTraffic) -> ExpertUse | None:
    """The figures over all `blocks` of a cell; None where no pass had a row."""
    rows = passes_with(tuple(chain.from_iterable(map(rows_of_steps, blocks))))
    if not rows:
        return None
    counts = [b.experts for b in blocks if b.experts is not None]
    counted, passes = len(counts) == len(blocks), sum(rows.values())
    independent = mean_touched(experts, rows, 0.0)
    touched = sum(sum(c.touched) for c in counts) / passes / experts.layers if counted else independent
    by_row = tuple(rows_in_slots(blocks, experts)) if counted else ()
    return ExpertUse(
        count=experts.count,
        active=experts.active,
        counted=counted,
        touched=touched,
        independent=independent,
        bytes_per_pass=touched * experts.layers * experts.expert_bytes,
        overlap=cell_overlap(experts, rows, touched, by_row) if counted else None,
        slots=tuple(SlotRows(of, n) for of, n in sorted(rows.items(), reverse=True)),
        by_row=by_row,
    )


def cell_overlap(experts: ExpertTraffic, rows: Rows, touched: float, by_row: Sequence[RowUse]) -> float | None:
    """The overlap of neighbouring tokens: by the rows of single slots where these were counted, else by what passes of
    one slot touch.
    """
    if by_row:
        return overlap_of(experts, len(by_row), by_row[-1].touched)
    if len(rows) > 1 or len(only := next(iter(rows))) > 1:
        return None
    return overlap_of(experts, only[0], touched)


def rows_in_slots(blocks: Sequence[Block], experts: ExpertTraffic) -> Iterator[RowUse]:
    """The rows of a slot's pass one by one, over all slots and steps; nothing where one block has not counted them.

    Where some slots have fewer rows than others, what a row brings is the mean over the slots that have it.
    """
    counted = [b.experts.fresh for b in blocks if b.experts and b.experts.fresh]
    if len(counted) < len(blocks):
        return
    places = Counter(place for b in blocks for step in rows_of_steps(b) for rows in step for place in range(rows))
    touched = 0.0
    for place, fresh in enumerate(map(sum, zip_longest(*counted, fillvalue=0))):
        touched += fresh / (places[place] * experts.layers) if places[place] else 0.0
        yield RowUse(place + 1, touched, overlap_of(experts, place + 1, touched))
