"""Shards beside the whole: put together again they are it, and a split forward pass gives what the whole one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.pair import load_target, load_target_parts
from specgate.backends.eagle3.lib.shard import WHOLE, Shard, shards
from specgate.backends.eagle3.lib.weights import pack_target
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from tests.pairs.tiny import write_random_pair

SIZES: dict[str, Any] = {"layers": 2, "heads": 8, "kv_heads": 4, "head_dim": 16, "intermediate": 96}
REPLICATED = ("embed_tokens", "norm", "input_layernorm", "post_attention_layernorm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_pair(tmp_path_factory.mktemp("pair"), seed=3, **SIZES)[0]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_parts_of_a_tensor_together_are_the_tensor(folder: Path, ranks: int) -> None:
    whole = load_target(folder, torch.bfloat16, "cpu")
    parts = load_target_parts(folder, torch.bfloat16, ["cpu"] * ranks)
    assert [part.shard for part in parts] == [*shards(ranks)] and {part.sha256 for part in parts} == {whole.sha256}
    for name, tensor in whole.tensors.items():
        pieces = [part.tensors[name] for part in parts]
        if ranks == 1 or name.split(".")[-2] in REPLICATED:
            assert all(torch.equal(piece, tensor) for piece in pieces), name
            continue
        axis = 1 if name.split(".")[-2] in ("o_proj", "down_proj") else 0
        assert torch.equal(torch.cat(pieces, axis), tensor), name
        assert all(piece.is_contiguous() and piece.shape[axis] == tensor.shape[axis] // ranks for piece in pieces), name
        assert all(piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces), name  # nothing else is kept


def layer(x: Tensor, w: dict[str, Tensor], prefix: str, heads: int, kv_heads: int) -> Tensor:
    """A decoder layer's two branches without norms and positions, each added to the stream; float64."""
    q, k, v = (
        F.linear(x, w[f"{prefix}self_attn.{n}_proj.weight"].double()).view(len(x), -1, 16).transpose(0, 1)
        for n in "qkv"
    )
    k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
    return F.linear(mixed, w[f"{prefix}self_attn.o_proj.weight"].double())


def mlp(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    gate, up = (F.linear(x, w[f"{prefix}mlp.{n}_proj.weight"].double()) for n in ("gate", "up"))
    return F.linear(F.silu(gate) * up, w[f"{prefix}mlp.down_proj.weight"].double())


@pytest.mark.parametrize("ranks", [2, 4])
def test_partial_sums_of_all_ranks_add_up_to_the_whole_layers(folder: Path, ranks: int) -> None:
    whole = load_target(folder, torch.bfloat16, "cpu")
    parts = load_target_parts(folder, torch.bfloat16, ["cpu"] * ranks)
    x = torch.randn(9, whole.geometry.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for prefix in ("model.layers.0.", "model.layers.1."):
        want = layer(x, whole.tensors, prefix, 8, 4)
        got = sum(layer(x, part.tensors, prefix, 8 // ranks, 4 // ranks) for part in parts)
        assert torch.allclose(torch.as_tensor(got), want, atol=1e-12)
        got = sum(mlp(x, part.tensors, prefix) for part in parts)
        assert torch.allclose(torch.as_tensor(got), mlp(x, whole.tensors, prefix), atol=1e-12)
    if not whole.geometry.tied_embeddings:
        logits = [F.linear(x, part.tensors["lm_head.weight"].double()) for part in parts]
        assert torch.allclose(torch.cat(logits, -1), F.linear(x, whole.tensors["lm_head.weight"].double()), atol=1e-12)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_parts_geometry_implies_its_tensors(name: str, ranks: int) -> None:
    g, shard = GEOMETRIES[name]().target, Shard(1, ranks)
    if shard.unfit(g):
        with pytest.raises(ValueError, match=f"cannot be divided by {ranks}"):
            shard.geometry(g)
        return
    expected = shard.wanted(target_tensors(g))
    for tensor, want in target_tensors(shard.geometry(g)).items():
        kept = g.vocab if tensor == "model.embed_tokens.weight" else want.shape[0]
        assert expected[tensor].shape == (kept, *want.shape[1:]), tensor


def test_a_tied_head_is_a_part_of_the_embedding(tmp_path: Path) -> None:
    folder = write_random_pair(tmp_path, seed=3, **SIZES)[0]
    parts = load_target_parts(folder, torch.bfloat16, ["cpu"] * 2)
    tied = [
        pack_target(replace(part, geometry=replace(part.geometry, tied_embeddings=True), tensors=dict(part.tensors)))
        for part in parts
    ]
    assert torch.equal(torch.cat([one.lm_head for one in tied]), tied[0].embed)


def test_a_whole_target_is_not_cut() -> None:
    g = GEOMETRIES["smollm2-135m"]().target
    assert WHOLE.geometry(g) is g and not WHOLE.unfit(g)
    assert WHOLE.span("lm_head.weight", (7, 3)) is None
    assert set(Shard(0, 2).unfit(g)) == {"num_key_value_heads", "num_attention_heads"}
