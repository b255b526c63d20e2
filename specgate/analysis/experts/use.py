"""Blocks → how the passes of a cell used the experts. Pure: the same journal gives the same figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Final

from specgate.analysis.experts.overlap import Rows, mean_touched, overlap_of, passes_with
from specgate.analysis.experts.rows import rows_of_steps
from specgate.contract import Block
from specgate.contract.routing import ExpertCounts, ExpertUse, RowsUse, RowUse, SlotRows
from specgate.contract.traffic import ExpertTraffic

TENTH: Final = 0.1


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
        by_layer=tuple(in_layers(counts, experts.layers)) if counted else (),
        by_rows=tuple(rows_in_passes(counts)) if counted else (),
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


def in_layers(counts: Sequence[ExpertCounts], layers: int) -> Iterator[float]:
    """Layer → experts that a pass touches there, the mean."""
    for layer in range(layers):
        touched_counts = Counter[int]()
        for passes in chain.from_iterable(c.passes for c in counts):
            touched_counts.update(dict(enumerate(passes.layers[layer])))
        yield mean_of(touched_counts)


def mean_of(values: Counter[int]) -> float:
    """The mean of `values`, each with how often it occurs."""
    return sum(value * times for value, times in values.items()) / values.total()


def rows_in_passes(counts: Sequence[ExpertCounts]) -> Iterator[RowsUse]:
    """The passes by their number of rows, in ascending order."""
    by_rows: dict[int, Counter[int]] = {}
    passes = Counter[int]()
    for entry in chain.from_iterable(c.passes for c in counts):
        passes[entry.rows] += sum(entry.layers[0])
        for layer in entry.layers:
            by_rows.setdefault(entry.rows, Counter()).update(dict(enumerate(layer)))
    for rows, touched in sorted(by_rows.items()):
        low, high = quantile(touched, TENTH), quantile(touched, 1 - TENTH)
        yield RowsUse(rows, passes[rows], mean_of(touched), low, high)


def quantile(values: Counter[int], share: float) -> int:
    """The least value that at least `share` of `values` do not exceed."""
    cumulated = 0
    for value in sorted(values):
        cumulated += values[value]
        if cumulated >= share * values.total():
            return value
    return 0


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
