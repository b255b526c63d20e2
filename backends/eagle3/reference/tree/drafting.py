"""Grow a tree with the draft: its layer and head run once per level, on the nodes that get children.

A node's keys and values are kept behind the positions of a path. Before a node looks, those of its ancestors are put at
the positions that they would have in a chain. So what the draft says behind a path does not depend on the rest of the
tree, and on a path of rank 0 it says what it says in a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.trees.growing import Growth, parents_of
from specgate.backends.eagle3.reference.cache import TreeRows

Head = Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""`draft.likeliest_tokens` of a draft: hidden states [B, F, Hd] and a number of ranks → tokens, log-probabilities, and
what feeds the next step.
"""


class Step(Protocol):
    """The draft's layer over rows of a tree: tokens [B, F], hidden states [B, F, Hd], positions [B, F] → [B, F, Hd]."""

    def __call__(self, tokens: Tensor, hidden: Tensor, positions: Tensor, tree: TreeRows | None) -> Tensor: ...


class DraftTree(NamedTuple):
    """`tokens` [B, N]: the draft tokens, level by level. `parents` [B, N + 1]: of every row, the root first."""

    tokens: Tensor
    parents: Tensor


def grow_tree(growth: Growth, stream: Tensor, start: Tensor, head: Head, step: Step) -> DraftTree:
    """The tree that `growth` grows behind the newest token.

    `stream` [B, Hd]: the draft's hidden state of the row that precedes that token. `start` [B]: the position of the
    draft's next row.
    """
    batch, device = len(stream), stream.device
    behind = start + growth.levels - 1  # the cache row behind the positions of the longest path
    tokens, log_probs, hidden = head(stream[:, None], growth.ranks(1))
    scores, above = torch.zeros(batch, 1, device=device), torch.full((batch, 1), -1, device=device)
    ways, filled, begin = start.new_empty(batch, 1, 0), 0, 0
    pool: list[tuple[Tensor, Tensor, Tensor]] = []
    for level in range(1, growth.levels + 1):
        ranks = tokens.shape[2]
        candidates, of_level = tokens.flatten(1), (scores[..., None] + log_probs).flatten(1)
        pool.append((candidates, of_level, above.repeat_interleave(ranks, dim=1)))
        if level == growth.levels:
            break
        chosen = growth.frontier(level, of_level)
        parent, count = chosen // ranks, chosen.shape[1]
        rows = behind[:, None] + filled + torch.arange(count, device=device)
        ways = torch.cat((ways.gather(1, parent[..., None].expand(-1, -1, level - 1)), rows[..., None]), dim=2)
        fed = hidden.gather(1, parent[..., None].expand(-1, -1, hidden.shape[2]))
        positions = (start + level - 1)[:, None].expand(-1, count)
        queries = torch.arange(count, device=device)[None, :, None].expand(batch, -1, -1)
        tree = TreeRows(rows, ways, start, queries, positions[:, :1])
        expanded = step(candidates.gather(1, chosen), fed, positions, tree)
        tokens, log_probs, hidden = head(expanded, growth.ranks(level + 1))
        scores, above = of_level.gather(1, chosen), chosen + begin
        filled, begin = filled + count, begin + candidates.shape[1]
    all_tokens, all_scores, all_parents = (torch.cat(part, dim=1) for part in zip(*pool, strict=True))
    nodes = growth.chosen(all_scores)
    return DraftTree(all_tokens.gather(1, nodes), parents_of(nodes, all_parents))
