"""A recorded step on a device that need not be a GPU: launches are noted, and do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
import torch

from specgate.backends.eagle3.cupy.bench.stage import Stage, sizes_of
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from tests.eagle3.cupy.kernels.launches import DYNAMIC, TREE, without_cupy
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, MIXTURE, TARGET

SMALL = Geometry(TARGET, DRAFT, BOUNDARIES)
EXPERTS = Geometry(MIXTURE, DRAFT, BOUNDARIES)
KINDS: Final[Mapping[str, tuple[Geometry, DraftTree | None]]] = {
    "chain": (SMALL, None),
    "tree": (SMALL, TREE),
    "dynamic tree": (SMALL, DYNAMIC),
    "experts": (EXPERTS, None),
}
"""Kind of a step of three drafts → the pair, and what it drafts. Together they launch every kernel of greedy steps."""


def no_launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that would be launched; no GPU, no CuPy."""
    launched = list[str]()

    def note(kernel: Kernel, name: str, *arguments: object, **keywords: object) -> None:
        launched.append(name)

    monkeypatch.setattr(Kernel, "enqueue", note)
    without_cupy(monkeypatch)
    return launched


def staged(
    k: int,
    slots: int = 2,
    context: int = 128,
    geometry: Geometry = SMALL,
    device: str = "meta",
    max_k: int | None = None,
    kv: KvModes = AS_COMPUTED,
    tree: DraftTree | None = None,
) -> Stage:
    """A step of spec-`k` that has run."""
    torch.manual_seed(0)
    sizes = sizes_of(geometry.target, context, slots, k if max_k is None else max_k, kv, tree)
    pair = random_pair(geometry, sizes.positions, device)
    stage = Stage(geometry, pair, Buffers.allocate(geometry.target, geometry.draft, sizes, device), sizes, context, k)
    stage.run()
    return stage
