"""Ancestor masks packed into words, as attention kernels read them, and whether packed masks are whole.

Bit j % 32 of word j // 32 of row i is set where row i may look at row j. Bits beyond the last row are 0.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

BITS: Final = 32


def words(rows: int) -> int:
    """Words of a packed row."""
    return -(-rows // BITS)


def pack(mask: Tensor) -> Tensor:
    """bool [..., R, R] → int32 [..., R, words]."""
    columns = mask.shape[-1]
    padded = torch.nn.functional.pad(mask, (0, -columns % BITS))
    by_word = padded.view(*mask.shape[:-1], words(columns), BITS)
    weights = torch.ones(BITS, dtype=torch.int64, device=mask.device) << torch.arange(BITS, device=mask.device)
    return (by_word * weights).sum(dim=-1).to(torch.int32)  # keeps the low 32 bits, so that bit 31 is the sign


def unpack(packed: Tensor, rows: int) -> Tensor:
    """int32 [..., R, words] → bool [..., R, rows]."""
    bits = packed[..., None] >> torch.arange(BITS, device=packed.device, dtype=packed.dtype)
    return (bits & 1).bool().flatten(-2)[..., :rows]


def broken_rows(packed: Tensor, parents: Tensor) -> Tensor:
    """bool [B, R]: rows of the masks int32 [B, R, words] that are not what the tree of `parents` int64 [B, R] gives.

    A row has to look at what its parent looks at, and at itself; the root at itself alone; and a parent has to come
    before its child. By induction from the root on, masks without a broken row are the ancestor masks of the tree, with
    no bit beyond it. This does not build the masks a second time, and so shares no error with `topology.ancestors`.
    """
    rows = parents.shape[1]
    number = torch.arange(rows, device=parents.device)
    own = torch.zeros(rows, packed.shape[2], dtype=torch.int64, device=parents.device)
    own.scatter_(1, (number // BITS)[:, None], (torch.ones_like(number) << (number % BITS))[:, None])
    own = own.to(torch.int32)
    legal = (parents >= 0) & ((parents < number) | (number == 0))
    above = packed.gather(1, parents.clamp(0, rows - 1)[..., None].expand_as(packed))
    expected = torch.where((number == 0)[:, None], own, above | own)
    return (packed != expected).any(dim=2) | ~legal | ((number == 0) & (parents != 0))
