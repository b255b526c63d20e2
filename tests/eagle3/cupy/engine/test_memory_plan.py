"""The memory plan tells, before anything is allocated, what will be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specgate.backends.eagle3.cupy.engine import limits
from specgate.backends.eagle3.cupy.engine.limits import plan, require
from specgate.backends.eagle3.cupy.engine.ranks.prefill_experts import scores_bytes
from specgate.backends.eagle3.cupy.kernels.heads import OUTER_BYTES
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, bytes_of, tensors_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.kv.modes import KvModes
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import weight_bytes
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.geometry import DraftGeometry
from specgate.contract import Sampling
from specgate.errors import EnvironmentRefused
from tests.eagle3.cupy.kernels.codes.caches import CODES
from tests.eagle3.cupy.pairs import DRAFT, TARGET

SIZES = Sizes(slots=3, positions=200, max_rows=4)
TREE = TreeShape.of([(0,), (1,), (0, 0), (0, 1), (1, 2)])
SAMPLED = Sizes(3, 200, 4, sampling=Sampling(top_p=0.9, logit_bias=((3, -1.0),)))
NARROW, NVFP4 = (Sizes(3, 200, 4, kv=KvModes(mode, mode)) for mode in CODES)
PLAN = {
    "weights": 270_000_000,
    "key/value cache": 5_000_000_000,
    "buffers of a step": 400_000_000,
    "prefill workspace": 30_000_000,
}


@pytest.mark.parametrize("draft", [None, DRAFT, replace(DRAFT, window=64)], ids=["none", "full", "window"])
@pytest.mark.parametrize(
    "sizes",
    [SIZES, Sizes(1, 64, 1), Sizes(8, 65, 8), SAMPLED, Sizes(2, 90, TREE.rows, tree=TREE), NARROW, NVFP4],
    ids=str,
)
def test_the_plan_is_what_the_allocation_takes(draft: DraftGeometry | None, sizes: Sizes) -> None:
    buffers = Buffers.allocate(TARGET, draft, sizes, "cpu")
    planned = plan(TARGET, draft, sizes)
    assert planned["key/value cache"] == sum(bytes_of(pages) for pages in buffers.pages)
    assert planned["key/value cache"] + planned["buffers of a step"] == bytes_of(buffers)


def test_the_cache_is_two_bytes_per_layer_head_and_whole_block_of_positions() -> None:
    per_position = 2 * 2 * (TARGET.layers * TARGET.kv_heads + DRAFT.kv_heads) * 64
    assert plan(TARGET, DRAFT, SIZES)["key/value cache"] == 3 * 256 * per_position


def test_a_cache_in_fp8_is_a_byte_and_a_scale_of_sixteen_positions() -> None:
    heads = TARGET.layers * TARGET.kv_heads + DRAFT.kv_heads
    assert plan(TARGET, DRAFT, NARROW)["key/value cache"] == 3 * 256 * 2 * heads * 64 + 3 * 16 * 2 * heads * 4
    of_target, of_draft = (replace(SIZES, kv=kv) for kv in (KvModes("fp8"), KvModes(None, "fp8")))
    whole, narrow, *parts = (
        plan(TARGET, DRAFT, sizes)["key/value cache"] for sizes in (SIZES, NARROW, of_target, of_draft)
    )
    assert sum(parts) == whole + narrow


def test_a_cache_in_nvfp4_is_half_a_byte_and_a_scale_of_sixteen_elements_and_little_beside_a_block() -> None:
    heads, blocks = TARGET.layers * TARGET.kv_heads + DRAFT.kv_heads, 3 * 4
    of_block = 64 * 2 * (64 // 2 + 64 // 16)
    assert plan(TARGET, DRAFT, NVFP4)["key/value cache"] == blocks * heads * (of_block + OUTER_BYTES)


def test_a_gpu_that_has_a_part_of_a_mixture_needs_less_and_room_for_the_routers_scores() -> None:
    pair, sizes = EXPERT_GEOMETRIES["gpt-oss-120b"](), Sizes(slots=1, positions=32768, max_rows=4)
    part = Shard(0, 2).geometry(pair.target)
    whole, own = (plan(g, pair.draft, sizes) for g in (pair.target, part))
    assert all(own[purpose] < size for purpose, size in whole.items())
    assert scores_bytes(part) == 4 * 32768 * 128 and scores_bytes(TARGET) == 0
    wanted = (Shard(0, ranks).wanted(target_tensors(pair.target)) for ranks in (1, 2))
    all_weights, of_part = (weight_bytes(tensors, torch.bfloat16) for tensors in wanted)
    assert all_weights / 2 < of_part < 0.52 * all_weights


def test_planning_allocates_nothing() -> None:
    vast = Sizes(slots=64, positions=1 << 20, max_rows=1)
    assert plan(TARGET, DRAFT, vast)["key/value cache"] > 1 << 35
    assert all(tensor.is_meta for tensor in tensors_of(Buffers.allocate(TARGET, DRAFT, vast, "meta")))


def test_drawing_takes_memory_only_where_tokens_are_drawn() -> None:
    greedy, drawn = (plan(TARGET, DRAFT, sizes)["buffers of a step"] for sizes in (SIZES, SAMPLED))
    of_filters = 3 * 4 * 8 * (2048 + 16384)  # rows: a sum of each bucket, and the list of columns
    assert of_filters < drawn - greedy < of_filters + 2 * TARGET.vocab * 4
    assert Buffers.allocate(TARGET, DRAFT, SIZES, "meta").sampling is None


def test_buffers_are_finite_from_the_start() -> None:
    assert not any(tensor.any() for tensor in tensors_of(Buffers.allocate(TARGET, DRAFT, SIZES, "cpu")))


def test_what_fits_exactly_is_allowed_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda device: 5_700_000_000)
    require(PLAN, SIZES, torch.device("cpu"))
    assert capsys.readouterr().out == (
        "memory plan: weights 0.27 GB, key/value cache 5.00 GB, buffers of a step 0.40 GB, "
        "prefill workspace 0.03 GB; 5.70 GB free\n"
    )


def test_a_byte_too_many_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda device: 5_699_999_999)
    message = (
        r"3 slots of 200 positions need 5\.70 GB \(weights 0\.27 GB, key/value cache 5\.00 GB, buffers of a step "
        r"0\.40 GB, prefill workspace 0\.03 GB\), but 5\.70 GB are free on cpu\n  a smaller batch, a shorter context"
    )
    with pytest.raises(EnvironmentRefused, match=message):
        require(PLAN, SIZES, torch.device("cpu"))
