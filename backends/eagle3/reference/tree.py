"""Trees of draft tokens in place of chains: the option, growing them with the draft, and verifying them.

A node's keys and values are kept behind the positions of a path. Before a node looks, those of its ancestors are put at
the positions that they would have in a chain. So what the draft says behind a path does not depend on the rest of the
tree, and on a path of rank 0 it says what it says in a chain.

Row i of a tree is kept in cache row length + L + i, behind the L positions that a path of L levels takes; the root is
where its position is. A cache in few bits keeps them as they were computed: what a position quantises to depends on its
path. Attention puts one path after the other at these positions (`cache.along_paths`). At the end the
accepted path is put there for good, in all layers. What rows may look at comes from packed masks alone, which are
checked in every step (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.trees.accepting import accept_tree, compaction
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth, FixedGrowth, Growth, parents_of
from specgate.backends.eagle3.lib.trees.options import (
    TREE,
    WIDTH,
    check_width,
    described,
    dynamic_tree,
    is_dynamic,
    tree_of_roles,
)
from specgate.backends.eagle3.lib.trees.options import check_ranks as check_option_ranks
from specgate.backends.eagle3.lib.trees.topology import ancestors, depths, leaf_mask, leaf_paths, pack, unpack
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.reference.cache import TreeRows
from specgate.backends.eagle3.reference.ops import FEW_ROWS, check_finite, target_argmax
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class TreePlan:
    """`shape`: the tree of a file; None for a dynamic tree of `nodes` draft tokens and `width` nodes per level.
    `levels`: of the longest role's tree.
    """

    asked: str
    shape: TreeShape | None
    nodes: int
    levels: int
    width: int = 0

    @property
    def rows(self) -> int:
        """Rows of a verification: the draft tokens and the root."""
        return self.nodes + 1

    @property
    def draft_rows(self) -> int:
        """Rows behind the positions of the longest path that the draft may write while it grows the tree."""
        return max(self.rows, (self.levels - 1) * self.width)

    @property
    def branches(self) -> bool:
        """True if it is more than a chain. A tree with one branch is drafted and verified as a chain."""
        return self.shape is None or not self.shape.is_chain

    def growth(self, k: int, device: str) -> Growth:
        """Return the growth of the tree for spec-`k`. A role shorter than the tree drafts its first levels."""
        if self.shape is None:
            return DynamicGrowth(k, self.width, self.nodes)
        return FixedGrowth(self.shape.first_levels(k), device)

    @property
    def words(self) -> str:
        """For the facts that an engine states of itself."""
        return described(self.shape or DynamicGrowth(self.levels, self.width, self.nodes))


def plan_tree(options: Mapping[str, str], max_k: int, device: str) -> TreePlan | None:
    """The tree that `options` ask for; None where they ask for none. `max_k`: the longest role's draft tokens.

    Raises UsageError for a tree that is none, or that is not the roles'.
    """
    check_width(options)
    if TREE not in options:
        return None
    option = options[TREE]
    if is_dynamic(option):
        growth = dynamic_tree(option, options.get(WIDTH), max_k)
        plan = TreePlan(option, None, growth.most, max_k, growth.width)
    else:
        shape = tree_of_roles(option, max_k)
        plan = TreePlan(option, shape, shape.nodes, shape.depth)
    if device == "cpu" and plan.rows > FEW_ROWS:
        raise UsageError(
            f"option {TREE} = {option}: {plan.nodes} draft tokens; on a CPU the reference engine verifies at most "
            f"{FEW_ROWS - 1} bit-exactly",
            hint="a smaller tree, or device=cuda",
        )
    return plan


def check_ranks(plan: TreePlan, draft_vocab: int) -> None:
    """Raise UsageError where the tree takes more tokens behind a node than the draft knows."""
    check_option_ranks(plan.asked, plan.width if plan.shape is None else plan.shape.highest_rank + 1, draft_vocab)


Choose = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits [B, R, V], draft tokens [B, N] and ancestor masks [B, R, R] → the target's tokens [B, R] behind all rows."""
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


@runtime_checkable
class VerifiesTrees(Protocol):
    """A target that can run the rows of a tree."""

    device: str

    def forward_tree(
        self, slots: slice, tokens: Tensor, positions: Tensor, boundaries: Sequence[int], tree: TreeRows
    ) -> tuple[Tensor, Tensor | None]:
        """As `loop.Target.forward`, of the rows of a `tree`, which says where they are kept and what they look at."""

    def compact(self, read: Tensor, write: Tensor) -> None:
        """Move cached keys and values in all layers: what is in rows `read` [B, L] to rows `write` [B, L]."""

    def logits(self, stream: Tensor) -> Tensor:
        """As `loop.Target.logits`."""


class VerifiedTree(NamedTuple):
    """Output of a verification, row by row of the accepted path [B, L + 1, …]. The path ends behind `accepted` [B] + 1
    rows.

    `tokens`: the target's next token behind each row. `logits` [B, L + 1, V]: the logits that it was chosen by.
    `features`: the auxiliary hidden states; None without boundaries.
    """

    accepted: Tensor
    tokens: Tensor
    logits: Tensor
    features: Tensor | None


def packed_masks(parents: Tensor, levels: int) -> Tensor:
    """The ancestor masks int32 [B, R, words] of `parents` [B, R]."""
    return pack(ancestors(parents, levels))


def tree_rows(mask: Tensor, length: Tensor, levels: int) -> TreeRows:
    """The rows of trees with the ancestor masks `mask` [B, R, R] behind `length` [B] cached positions."""
    number = torch.arange(mask.shape[1], device=mask.device)
    leaves = int(leaf_mask(mask).sum(dim=1).max())  # read back to the host, which the reference engine can afford
    paths = leaf_paths(mask, levels, leaves)
    first = length + levels
    read, _ = compaction(paths, length[:, None], first[:, None])
    return TreeRows(
        rows=torch.where(number == 0, length[:, None], first[:, None] + number),
        paths=torch.cat((length[:, None, None].expand(-1, leaves, -1), read), dim=2),
        start=length,
        queries=torch.where(paths >= 0, paths, len(number)),
        at=length[:, None] + torch.arange(levels + 1, device=mask.device),
    )


def verify_tree(
    model: VerifiesTrees,
    tree: DraftTree,
    masks: Tensor,
    last_token: Tensor,
    length: Tensor,
    levels: int,
    boundaries: Sequence[int],
    choose: Choose | None = None,
) -> VerifiedTree:
    """Run the target on `last_token` [B] and the tree behind it, accept the longest path, and leave the caches as if
    that path had been decoded alone.

    `masks` int32 [B, R, words] are the tree's. `choose`: in place of the greedy choice. Raises BackendError where
    logits are not finite.
    """
    mask = unpack(masks, tree.parents.shape[1])
    rows = tree_rows(mask, length, levels)
    tokens = torch.cat((last_token[:, None], tree.tokens), dim=1)
    logits, features = run(model, tokens, length[:, None] + depths(mask), boundaries, rows)
    check_finite(logits, "the target's logits")
    targets = choose(logits, tree.tokens, mask) if choose else target_argmax(logits)
    accepted = accept_tree(tree.tokens, targets, tree.parents, mask, levels)
    model.compact(*compaction(accepted.path, length, length + levels))
    on_path = accepted.path.clamp(min=0)
    return VerifiedTree(
        accepted.length, accepted.tokens, along(logits, on_path), None if features is None else along(features, on_path)
    )


def run(
    model: VerifiesTrees, tokens: Tensor, positions: Tensor, boundaries: Sequence[int], tree: TreeRows
) -> tuple[Tensor, Tensor | None]:
    """(logits [B, R, V], features [B, R, n·H] or None) of all rows.

    On a CPU, as many slots run together as have few rows: products of more are those of prefill, whose bits differ.
    """
    batch, rows = tokens.shape
    together = batch if model.device != "cpu" else max(1, FEW_ROWS // rows)
    logits, features = list[Tensor](), list[Tensor]()
    for start in range(0, batch, together):
        slots = slice(start, min(start + together, batch))
        of = tree.slots(slots.start, slots.stop)
        stream, states = model.forward_tree(slots, tokens[slots], positions[slots], boundaries, of)
        logits.append(model.logits(stream))
        if states is not None:
            features.append(states)
    return torch.cat(logits), torch.cat(features) if features else None


def along(rows: Tensor, path: Tensor) -> Tensor:
    """The rows [B, R, X] of a path [B, L + 1]: [B, L + 1, X]."""
    return rows.gather(1, path[..., None].expand(-1, -1, rows.shape[2]))
