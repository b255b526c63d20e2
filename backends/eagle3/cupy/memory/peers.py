"""Memory of several GPUs that they can write to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.peers.launchers import (
    COLUMNS,
    Exchanges,
    Mailboxes,
    choices_shape,
    sums_shape,
)
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes


def with_mailboxes(
    buffers: Sequence[Buffers], sizes: Sizes, hidden: int, draft_hidden: int | None = None
) -> tuple[Buffers, ...]:
    """`buffers`, one of each rank, with mailboxes that all ranks can reach. `draft_hidden`: the width of a draft that
    is split, too, and has mailboxes of its own; None where every rank has it whole.
    """
    faults = [b.slots.fault for b in buffers]
    made = [
        replace(b, target=replace(b.target, layer=replace(b.target.layer, mailboxes=own)))
        for b, own in zip(buffers, mailboxes(faults, sizes.rows, hidden), strict=True)
    ]
    if draft_hidden is None:
        return tuple(made)
    of_draft = mailboxes(faults, sizes.rows, draft_hidden)
    return tuple(
        replace(b, draft=replace(b.draft, layer=replace(b.draft.layer, mailboxes=own))) if b.draft else b
        for b, own in zip(made, of_draft, strict=True)
    )


def mailboxes(faults: Sequence[Tensor], rows: int, hidden: int) -> tuple[Mailboxes, ...]:
    """Of each rank, for steps of up to `rows` rows, at exchange 0. `faults`: of its slots, on its device."""
    ranks, devices = len(faults), [fault.device for fault in faults]
    sums = [reachable(sums_shape(ranks, rows, hidden), device) for device in devices]
    choices = [reachable(choices_shape(ranks, rows), device) for device in devices]

    def counted(blocks: int, device: torch.device) -> Tensor:
        return torch.zeros(blocks, dtype=torch.int32, device=device)

    return tuple(
        Mailboxes(
            rank=rank,
            sums=Exchanges(counted(hidden // COLUMNS, device), *sums),
            choices=Exchanges(counted(1, device), *choices),
            partial=torch.zeros(rows, hidden, device=device),
            fault=fault,
        )
        for rank, (fault, device) in enumerate(zip(faults, devices, strict=True))
    )


def mailbox_bytes(ranks: int, sizes: Sizes, hidden: int, draft_hidden: int | None = None) -> int:
    """Return their bytes on each GPU."""
    if ranks == 1:
        return 0
    total = 0
    for width in [hidden] if draft_hidden is None else [hidden, draft_hidden]:
        words = math.prod(sums_shape(ranks, sizes.rows, width)) + math.prod(choices_shape(ranks, sizes.rows))
        total += 8 * words + 4 * sizes.rows * width
    return total


def reachable(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Zeros that every GPU with peer access to `device` can read and write.

    They come from `cudaMalloc`. What torch allocates does not have to, and may then be hidden from other GPUs.
    """
    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype, device=device)
    import cupy

    with cupy.cuda.Device(device.index):
        memory = cupy.zeros(math.prod(shape) * dtype.itemsize, dtype=cupy.uint8)
        cupy.cuda.get_current_stream().synchronize()
        shared: Tensor = torch.utils.dlpack.from_dlpack(memory)
        return shared.view(dtype).view(shape)


def reset(mailboxes: Sequence[Mailboxes]) -> None:
    """Begin at exchange 0 again, on all ranks. Nothing may be running on any of them."""
    for own in mailboxes:
        for of in (own.sums, own.choices):
            for tensor in (of.exchanges, of[1 + own.rank]):
                assert tensor is not None
                tensor.zero_()
    for own in mailboxes:
        if own.fault.device.type == "cuda":
            torch.cuda.synchronize(own.fault.device)
