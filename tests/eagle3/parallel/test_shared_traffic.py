"""What GPUs that share a target move, each of them, and what certificates make of it."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.cupy_eagle3.engine.facts import link_traffic
from specgate.core.traffic import LinkTraffic, Slot, pass_bytes
from specgate.eagle3.parallel.shard import Shard
from specgate.eagle3.traffic import pair_traffic
from specgate.pair_tools.plant.geometries import GEOMETRIES

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


def test_a_row_sends_its_sums_to_every_other_gpu() -> None:
    g = PAIR.target
    assert link_traffic(g, 1) is None
    assert link_traffic(g, 2) == LinkTraffic(2, 2 * 32 * 4096 * 8 + 32)
    four = link_traffic(g, 4)
    assert four is not None and four.row_bytes == 3 * (2 * 32 * 4096 * 8 + 32)
