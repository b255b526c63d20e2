"""Choice of the cache positions that a partial verification keeps.

A cache is cut into blocks of `BLOCK` positions, from position 0 on. Kept are the first blocks (the sink), those of the
middle whose keys the newest queries may like best (retrieval, by layer and key/value head), and all from the window's
first block on. Shapes as in `ops`; C blocks of a cache, R of them retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.specpv import BLOCK


def summaries(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(largest, smallest) of every element of the keys [B, G, S, D] of a block, float32 [B, G, C, D]; S is a multiple
    of `BLOCK`.
    """
    batch, groups, positions, size = keys.shape
    cut = keys.float().reshape(batch, groups, positions // BLOCK, BLOCK, size)
    return cut.amax(dim=3), cut.amin(dim=3)


def block_scores(queries: Tensor, largest: Tensor, smallest: Tensor) -> Tensor:
    """Score each block for `queries` [B, N, T, D] by its summaries [B, G, C, D]: float32 [B, G, C].

    For one query q it is max(q · largest, q · smallest), as in the authors' repository (Quest, arXiv 2406.10774, takes
    the larger product element by element). It is the mean over the queries, and over the heads of a group.
    """
    batch, heads, rows, size = queries.shape
    groups = largest.shape[1]
    grouped = queries.float().view(batch, groups, heads // groups * rows, size)
    scores = torch.maximum(grouped @ largest.transpose(2, 3), grouped @ smallest.transpose(2, 3))
    return scores.mean(dim=2)


def first_of_window(length: Tensor, sink: int, window: int) -> Tensor:
    """The block [B] with which the window begins, of caches with `length` [B] positions.

    It holds at least the last `window` blocks' worth of positions, and up to `BLOCK` − 1 more, so that none lies
    between it and the blocks that can be retrieved.
    """
    return (length // BLOCK - window).clamp(min=sink)


def choose(scores: Tensor, first: int, stop: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` blocks of the largest `scores` [B, G, C] among blocks `first` up to, not including, `stop` [B].

    Returns their numbers [B, G, R] and which of these are meant, bool [B, G, R]: there may be fewer than `count`. The
    lowest block wins an exact tie.
    """
    number = torch.arange(scores.shape[-1], device=scores.device)
    allowed = (number >= first) & (number < stop[:, None])
    open_to = scores.masked_fill(~allowed[:, None], -torch.inf)
    chosen = open_to.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return chosen, allowed[:, None].expand_as(scores).gather(-1, chosen)


def kept_positions(sink: int, chosen: Tensor, meant: Tensor, window: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """The positions that are kept of caches up to, not including, position `stop` [B].

    `chosen`, `meant`: as from `choose`. `window` [B]: the block with which the window begins. Returns positions
    [B, G, P] and which of these are meant, bool [B, G, P].
    """
    batch, groups, _ = chosen.shape
    device, within = chosen.device, torch.arange(BLOCK, device=chosen.device)
    sinks = torch.arange(sink * BLOCK, device=device)
    retrieved = (chosen[..., None] * BLOCK + within).flatten(2)
    longest = max(int((stop - window * BLOCK).max()), 0)
    tail = window[:, None] * BLOCK + torch.arange(longest, device=device)
    shape = (batch, groups, -1)
    positions = torch.cat((sinks.expand(shape), retrieved, tail[:, None].expand(shape)), dim=2)
    there = torch.cat(
        (
            (sinks < stop[:, None])[:, None].expand(shape),
            meant.repeat_interleave(BLOCK, dim=2),
            (tail < stop[:, None])[:, None].expand(shape),
        ),
        dim=2,
    )
    return positions, there
