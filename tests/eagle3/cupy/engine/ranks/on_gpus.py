"""Engines on several GPUs, of planted pairs that are made in memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from bench.tensor_parallel.ready import compile_all
from specgate.backends.eagle3.cupy.device import shared_gpus
from specgate.backends.eagle3.cupy.engine.facts import engine_facts
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.ranks.rank import Rank, models_of
from specgate.backends.eagle3.cupy.engine.run_parts import parts_of
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.peers import with_mailboxes
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.lib.pair import TargetCheckpoint
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.shard import Shard, shards
from specgate.backends.eagle3.pair_tools.plant.calibrate import made_target
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from tests.eagle3.lib.planted.drafts import made_draft

SIZES = Sizes(slots=8, positions=2048, max_rows=6)


def gpus_or_skip(number: int) -> tuple[torch.device, ...]:
    shown = torch.cuda.device_count()
    if shown < number:
        pytest.skip(f"needs {number} GPUs; CUDA shows {shown} here")
    if not all(torch.cuda.can_device_access_peer(a, b) for a, b in permutations(range(number), 2)):
        pytest.skip(f"needs {number} GPUs that reach each other's memory")
    return shared_gpus(number)


def part_of(whole: TargetCheckpoint, shard: Shard, device: torch.device) -> TargetCheckpoint:
    tensors = {name: shard.part(name, tensor).to(device) for name, tensor in whole.tensors.items()}
    return replace(whole, tensors=tensors, shard=shard)


def engine_on(
    devices: tuple[torch.device, ...],
    pair: PairGeometry,
    recipe: Recipe,
    *,
    draft_ranks: int = 1,
    tree: DraftTree | None = None,
) -> CupyEngine:
    """A planted pair on so many GPUs, with all kernels of spec-1, -3 and -5 compiled. `draft_ranks`: the draft is
    divided among so many. `tree`: what the longest role drafts.
    """
    sizes = replace(SIZES, max_rows=tree.rows, tree=tree) if tree else SIZES
    whole = made_target(recipe, pair, torch.bfloat16, "cuda:0")
    draft = made_draft(recipe, pair, torch.bfloat16, "cuda:0")
    targets = [part_of(whole, shard, device) for shard, device in zip(shards(len(devices)), devices, strict=True)]
    facts = engine_facts(targets[0], draft, None, {}, sizes, graphs=True, draft_ranks=draft_ranks)
    part, of_draft = targets[0].shard.geometry(whole.geometry), Shard(0, draft_ranks).of_draft(draft.geometry)
    allocated = [Buffers.allocate(part, of_draft, sizes, device) for device in devices]
    split_width = of_draft.hidden if draft_ranks > 1 else None
    buffers = with_mailboxes(allocated, sizes, part.hidden, split_width) if len(devices) > 1 else allocated
    models = models_of(targets, draft, sizes.positions, devices, draft_ranks=draft_ranks)
    for device in devices:
        torch.cuda.synchronize(device)
    own = [Rank(*model, sizes, b) for model, b in zip(models, buffers, strict=True)]
    made = CupyEngine(own, facts, parts_of(sizes))
    print(f"compiled in {compile_all(made, 8, (0, 1, 3) if tree else (0, 1, 3, 5)):.1f} s")
    return made
