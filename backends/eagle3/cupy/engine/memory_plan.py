"""Bytes that an engine will allocate: computed before it is, printed, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specgate.backends.eagle3.cupy.engine.prefill import workspace_bytes
from specgate.backends.eagle3.cupy.engine.prefill_experts import expert_workspace_bytes
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, bytes_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.errors import EnvironmentRefused


def plan(
    target: TargetGeometry, draft: DraftGeometry | None, sizes: Sizes, *, fused: bool = True, packed_rows: int = 0
) -> Mapping[str, int]:
    """Purpose → bytes, of everything beside the weights. `fused`, `packed_rows`: see `PrefillMode`."""
    buffers = Buffers.allocate(target, draft, sizes, "meta")
    pages = sum(bytes_of(pages) for pages in buffers.pages)
    if target.experts is None:
        prefill = workspace_bytes(target, draft, sizes.positions, fused=fused)
    else:
        prefill = expert_workspace_bytes(
            target, draft, sizes.positions, sizes.slots, fused=fused, packed_rows=packed_rows
        )
    return {
        "key/value cache": pages,
        "buffers of a step": bytes_of(buffers) - pages,
        "prefill workspace": prefill,
    }


def require(plan: Mapping[str, int], weights: int, sizes: Sizes, device: torch.device) -> None:
    """Print the plan; raise EnvironmentRefused, with its numbers, where `device` has not so much free."""
    free, needed = free_bytes(device), sum(plan.values())
    parts = ", ".join(f"{name} {in_gb(size)}" for name, size in plan.items())
    print(f"memory plan: weights {in_gb(weights)} (loaded), {parts}; {in_gb(free)} free", flush=True)
    if needed > free:
        raise EnvironmentRefused(
            f"{sizes.slots} slots of {sizes.positions} positions need {in_gb(needed)} beside the weights ({parts}), "
            f"but {in_gb(free)} are free",
            hint="a smaller batch or a shorter context",
        )


def in_gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
