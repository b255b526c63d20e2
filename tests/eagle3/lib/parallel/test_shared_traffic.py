"""Traffic of each of the GPUs that share a target, and its effect on certificates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.facts import link_traffic
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, GEOMETRIES
from specgate.contract.traffic import LinkTraffic, Slot, pass_bytes

PAIR = GEOMETRIES["llama-3.1-8b"]()


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_gpu_moves_its_part_of_weights_and_cache_and_the_whole_draft(ranks: int) -> None:
    g = PAIR.target
    whole = pair_traffic(g, PAIR.draft, torch.bfloat16)
    part = pair_traffic(Shard(0, ranks).geometry(g), PAIR.draft, torch.bfloat16, link=link_traffic(g, ranks))
    assert part.draft == whole.draft and (part.gpus, whole.gpus) == (ranks, 1)
    slots = [Slot(32768, 4)]
    one, all_of_it = pass_bytes(part.target, slots), pass_bytes(whole.target, slots)
    norms, row = (2 * g.layers + 1) * g.hidden * 2, g.hidden * 2 * 4
    assert one.kv_read * ranks == all_of_it.kv_read and one.kv_written * ranks == all_of_it.kv_written
    assert (one.weights - norms - row) * ranks == all_of_it.weights - norms - row


def test_each_gpu_moves_its_part_of_the_experts_that_are_touched_and_a_whole_bias() -> None:
    pair = EXPERT_GEOMETRIES["gpt-oss-120b"]()
    g, part = pair.target, Shard(0, 2).geometry(pair.target)
    whole, own = (pair_traffic(one, pair.draft, torch.bfloat16) for one in (g, part))
    assert own.draft == whole.draft
    assert whole.target.experts is not None and own.target.experts is not None
    bias = 2 * g.hidden  # of down: zeros but for the first rank, and read all the same
    assert 2 * (own.target.experts.expert_bytes - bias) == whole.target.experts.expert_bytes - bias
    assert replace(own.target.experts, expert_bytes=0) == replace(whole.target.experts, expert_bytes=0)
    slots = [Slot(32768, 4)]
    one, all_of_it = (pass_bytes(traffic.target, slots, touched=500.0) for traffic in (own, whole))
    assert 2 * one.kv_read == all_of_it.kv_read and all_of_it.weights / 2 < one.weights < all_of_it.weights / 1.9


def test_a_row_sends_its_sums_to_every_other_gpu() -> None:
    g = PAIR.target
    assert link_traffic(g, 1) is None
    assert link_traffic(g, 2) == LinkTraffic(2, 2 * 32 * 4096 * 8 + 32)
    four = link_traffic(g, 4)
    assert four is not None and four.row_bytes == 3 * (2 * 32 * 4096 * 8 + 32)


def test_each_gpu_moves_its_part_of_a_split_draft_and_sends_its_sums() -> None:
    g, part = PAIR.draft, Shard(0, 2).of_draft(PAIR.draft)
    whole, own = (pair_traffic(PAIR.target, draft, torch.bfloat16).draft for draft in (g, part))
    assert whole is not None and own is not None
    slots = [Slot(32768, 1)]
    one, all_of_it = pass_bytes(own.step, slots), pass_bytes(whole.step, slots)
    norms, row = 4 * g.hidden * 2, g.hidden * 2
    assert 2 * one.kv_read == all_of_it.kv_read
    assert 2 * (one.weights - norms - row) == all_of_it.weights - norms - row
    fc = g.hidden * g.features * g.target_hidden * 2  # of the extension alone, on every GPU
    assert pass_bytes(own.extension, slots).weights - one.weights == fc
    link = link_traffic(PAIR.target, 2, part)
    assert link == LinkTraffic(2, 2 * 32 * 4096 * 8 + 32, 2 * 4096 * 8 + 32)
