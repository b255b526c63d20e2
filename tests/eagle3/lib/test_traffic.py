"""A pair's traffic, against the tensors that an engine really holds and the caches that it really allocates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.traffic import draft_traffic, pair_traffic
from specgate.backends.eagle3.lib.weights import LayerWeights, pack_draft, pack_target
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from specgate.backends.eagle3.reference.cache import KVCache
from tests.pairs.tiny import write_random_pair


def bytes_of(layer: LayerWeights) -> int:
    tensors = (getattr(layer, name) for name in LayerWeights.__dataclass_fields__)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_targets_weights_are_the_tensors_that_a_pass_reads(tmp_path: Path, tied: bool, dtype: torch.dtype) -> None:
    folder, _ = write_random_pair(tmp_path, seed=1, tied=tied, head_norms=tied)
    checkpoint = load_target(folder, dtype, "cpu")
    traffic = pair_traffic(checkpoint.geometry, None, dtype)
    w = pack_target(checkpoint)
    assert traffic.target.weight_bytes == sum(map(bytes_of, w.layers)) + w.norm.nbytes + w.lm_head.nbytes
    assert traffic.target.token_bytes == (0 if tied else w.embed[0].nbytes)
    assert traffic.draft is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_drafts_extension_reads_fc_and_every_step_layer_and_head(tmp_path: Path, dtype: torch.dtype) -> None:
    target_folder, draft_folder = write_random_pair(tmp_path, seed=1, window=32)
    target = load_target(target_folder, dtype, "cpu")
    draft = load_draft(draft_folder, target.geometry, dtype, "cpu")
    traffic = pair_traffic(target.geometry, draft.geometry, dtype).draft
    w = pack_draft(draft, pack_target(target))
    assert traffic is not None
    step = bytes_of(w.layer) + w.feature_norm.nbytes + w.norm.nbytes + w.lm_head.nbytes
    assert traffic.step.weight_bytes == step
    assert traffic.extension.weight_bytes == step + w.fc.nbytes
    assert {a.window for a in (*traffic.step.attention, *traffic.extension.attention)} == {32}


def test_norms_before_fc_are_the_extensions_and_a_borrowed_head_is_read_too() -> None:
    draft = GEOMETRIES["tiny"]().draft
    plain = draft_traffic(draft, torch.bfloat16)
    normed = draft_traffic(replace(draft, norm_before_fc=True), torch.bfloat16)
    assert normed.step == plain.step
    assert normed.extension.weight_bytes - plain.extension.weight_bytes == 2 * draft.features * draft.target_hidden
    each = draft_traffic(replace(draft, fc_norm=True), torch.bfloat16)
    assert each.extension == normed.extension and each.step == plain.step
    assert draft_traffic(replace(draft, own_lm_head=False), torch.bfloat16) == plain
    assert draft_traffic(replace(draft, own_embedding=True), torch.bfloat16) == plain


def test_a_cached_position_is_as_large_as_in_the_cache() -> None:
    geometry = GEOMETRIES["tiny"]()
    traffic = pair_traffic(geometry.target, geometry.draft, torch.bfloat16)
    for g, layers, attention in (
        (geometry.target, geometry.target.layers, traffic.target.attention),
        (geometry.draft, 1, traffic.draft.step.attention if traffic.draft else ()),
    ):
        cache = KVCache.allocate(layers, 1, g.kv_heads, 512, g.head_dim, torch.bfloat16, "cpu")
        assert sum(a.layers * a.position_bytes for a in attention) * 512 == cache.bytes


def test_the_floor_of_llama_3_1_8b_is_the_one_that_was_worked_out_by_hand() -> None:
    """15.0 GB of weights, 4.3 GB of cache at 32K; a draft step of 0.75 GB, an extension of 0.85 GB."""
    geometry = GEOMETRIES["llama-3.1-8b"]()
    traffic = pair_traffic(geometry.target, geometry.draft, torch.bfloat16)
    assert traffic.target.weight_bytes == pytest.approx(15.0e9, rel=0.01)
    assert traffic.target.attention[0].layers * traffic.target.attention[0].position_bytes * 32768 == 2**32
    assert traffic.draft is not None
    assert traffic.draft.step.weight_bytes == pytest.approx(0.75e9, rel=0.01)
    assert traffic.draft.extension.weight_bytes - traffic.draft.step.weight_bytes == 3 * 4096 * 4096 * 2
