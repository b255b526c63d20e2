"""Verify a tree in one target pass, so that every row gets the bits that plain decoding gives it.

Row i of a tree is kept in cache row length + L + i, behind the L positions that a path of L levels takes; the root is
where its position is. Attention puts one path after the other at these positions (`cache.along_paths`). At the end the
accepted path is put there for good, in all layers. What rows may look at comes from packed masks alone, which are
checked in every step (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.trees.accepting import accept_tree, compaction
from specgate.backends.eagle3.lib.trees.masks import pack, unpack
from specgate.backends.eagle3.lib.trees.topology import ancestors, depths, leaf_mask, leaf_paths
from specgate.backends.eagle3.reference.cache import TreeRows
from specgate.backends.eagle3.reference.ops import FEW_ROWS, check_finite, target_argmax
from specgate.backends.eagle3.reference.tree.drafting import DraftTree


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
        paths=read,
        start=length + 1,
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
) -> VerifiedTree:
    """Run the target on `last_token` [B] and the tree behind it, accept the longest path, and leave the caches as if
    that path had been decoded alone.

    `masks` int32 [B, R, words] are the tree's. Raises BackendError where logits are not finite.
    """
    mask = unpack(masks, tree.parents.shape[1])
    rows = tree_rows(mask, length, levels)
    tokens = torch.cat((last_token[:, None], tree.tokens), dim=1)
    logits, features = run(model, tokens, length[:, None] + depths(mask), boundaries, rows)
    check_finite(logits, "the target's logits")
    accepted = accept_tree(tree.tokens, target_argmax(logits), tree.parents, mask, levels)
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
