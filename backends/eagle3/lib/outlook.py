"""Memory traffic that the passes of a pair need under a scenario's options, from configs alone."""

from __future__ import annotations

import torch

from specgate.backends.eagle3.lib.kv.modes import DRAFT_KV, KV
from specgate.backends.eagle3.lib.kv.modes import kv_modes
from specgate.backends.eagle3.lib.pair import open_draft, open_target
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.contract import PairRef, Scenario, Traffic


def traffic_of(pair: PairRef, scenario: Scenario) -> tuple[Traffic, int]:
    """Return what a pass of `pair` moves on each GPU, and how many GPUs share the target: as the scenario's options
    say, where the target can be divided so.

    Raises CheckpointError for a pair that cannot be read; weights are not.
    """
    target = open_target(pair.target, scenario.rope_keys).geometry
    draft = open_draft(pair.draft, target).geometry if pair.draft else None
    formats = {name: value for name, value in scenario.options.items() if name in (KV, DRAFT_KV)}
    gpus = scenario.options.get("tp", "1")
    shard = Shard(0, int(gpus)) if gpus.isdigit() and int(gpus) > 0 else Shard()
    if shard.unfit(target) or shard.cuts_blocks(target):  # the engine will refuse it, by its name
        shard = Shard()
    part, dtype = shard.geometry(target), getattr(torch, scenario.dtype)
    of_draft = Shard(0, 1 if scenario.options.get("draft_tp") == "1" else shard.ranks)
    if draft and not of_draft.unfit(draft):
        draft = of_draft.of_draft(draft)
    return pair_traffic(part, draft, dtype, kv_modes(formats)), shard.ranks
