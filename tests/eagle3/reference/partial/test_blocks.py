"""Choice of the positions that are kept: scores and choices by brute force in plain Python, and invariants of any
cache.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.lib.specpv import BLOCK
from specgate.backends.eagle3.reference.partial import block_scores, choose, first_of_window, kept_positions, summaries

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=3)
NUMBERS = {"sink": st.integers(0, 4), "retrieval": st.integers(0, 9), "window": st.integers(1, 6)}


def chosen_for(lengths: list[int], sink: int, retrieval: int, window: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(window, chosen, meant) of caches of these lengths, whose blocks have random scores with ties."""
    scores = torch.randint(0, 5, (len(lengths), 2, 64), generator=torch.Generator().manual_seed(seed)).float()
    begins = first_of_window(torch.tensor(lengths), sink, window)
    return begins, *choose(scores, sink, begins, retrieval)


@given(lengths=LENGTHS, rows=st.integers(1, 20), seed=st.integers(0, 99), **NUMBERS)
def test_sink_and_window_are_always_kept_nothing_twice_and_nothing_of_the_future(
    lengths: list[int], rows: int, seed: int, sink: int, retrieval: int, window: int
) -> None:
    begins, chosen, meant = chosen_for(lengths, sink, retrieval, window, seed)
    stop = torch.tensor(lengths) + rows
    positions, there = kept_positions(sink, chosen, meant, begins, stop)
    for slot, length in enumerate(lengths):
        for head in range(2):
            kept = positions[slot, head][there[slot, head]].tolist()
            assert len(kept) == len(set(kept))
            assert max(kept) == length + rows - 1
            assert set(range(min(sink * BLOCK, length))) <= set(kept)
            assert set(range(max(0, length - window * BLOCK), length + rows)) <= set(kept)
            between = max(0, length // BLOCK - window - sink)
            tail = length + rows - max(sink, length // BLOCK - window) * BLOCK
            assert len(kept) == min(sink * BLOCK, length + rows) + min(retrieval, between) * BLOCK + max(tail, 0)


@given(lengths=LENGTHS, seed=st.integers(0, 99), **NUMBERS)
def test_the_blocks_of_the_largest_scores_are_retrieved_and_of_equal_ones_the_lowest(
    lengths: list[int], seed: int, sink: int, retrieval: int, window: int
) -> None:
    scores = torch.randint(0, 5, (len(lengths), 2, 64), generator=torch.Generator().manual_seed(seed)).float()
    _, chosen, meant = chosen_for(lengths, sink, retrieval, window, seed)
    for slot, length in enumerate(lengths):
        allowed = range(sink, max(sink, length // BLOCK - window))
        for head in range(2):
            best = sorted(allowed, key=lambda block: (-float(scores[slot, head, block]), block))[:retrieval]
            assert chosen[slot, head][meant[slot, head]].tolist() == best


def test_where_all_that_lies_between_is_retrieved_every_position_is_kept() -> None:
    begins, chosen, meant = chosen_for([200, 77], 1, 12, 2, 0)
    positions, there = kept_positions(1, chosen, meant, begins, torch.tensor([204, 81]))
    for slot, stop in enumerate((204, 81)):
        assert sorted(positions[slot, 1][there[slot, 1]].tolist()) == list(range(stop))


def test_scores_are_the_mean_over_queries_and_heads_of_the_larger_product_with_a_blocks_extremes() -> None:
    g = torch.Generator().manual_seed(5)
    keys = torch.randn(2, 2, 3 * BLOCK, 4, generator=g)
    queries = torch.randn(2, 6, 5, 4, generator=g)
    scores = block_scores(queries, *summaries(keys))
    for slot in range(2):
        for group in range(2):
            for block in range(3):
                own = keys[slot, group, block * BLOCK : (block + 1) * BLOCK].tolist()
                largest, smallest = ([f(row[e] for row in own) for e in range(4)] for f in (max, min))
                products = []
                for head in range(3 * group, 3 * group + 3):
                    for row in queries[slot, head].tolist():
                        high, low = (sum(a * b for a, b in zip(row, x, strict=True)) for x in (largest, smallest))
                        products.append(max(high, low))
                assert abs(float(scores[slot, group, block]) - sum(products) / len(products)) < 1e-5
