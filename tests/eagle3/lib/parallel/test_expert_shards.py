"""Shards of a mixture of experts beside the whole: put together they are it, and what they give adds up to what it
gives.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.pair import TargetCheckpoint, load_target, load_target_parts
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.shard import AXES, ONCE, Shard, kind, shards
from specgate.backends.eagle3.lib.weights import decoded
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, geometry_of
from specgate.backends.eagle3.pair_tools.plant.write import write_target
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from specgate.checkpoints.mxfp4 import BLOCK
from tests.checkpoints.gpt_oss_folders import write_gpt_oss, write_quantised

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "head_dim": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
RECIPE = Recipe("A", seed=3, draft_vocab=512, signal=0.75, boundaries=(1, 2, 4), expert_overlap=0.5)
EXPERTS = ExpertGeometry(6, 2, mxfp4=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Experts as floats, in MXFP4, and made from a seed."""
    pytest.importorskip("transformers")
    floats = write_gpt_oss(tmp_path_factory.mktemp("floats"), seed=5, **SIZES)
    quantised = write_quantised(tmp_path_factory.mktemp("quantised") / "target", floats)
    planted = tmp_path_factory.mktemp("planted") / "target"
    planted.mkdir()
    write_target(planted, geometry_of("gpt-oss-tiny").target, RECIPE, {}, written=False)
    return {"floats": floats, "mxfp4": quantised, "planted": planted}


@pytest.mark.parametrize(
    ("source", "ranks"), [("floats", 2), ("floats", 4), ("mxfp4", 2), ("mxfp4", 4), ("planted", 2)]
)
def test_all_parts_of_a_tensor_together_are_the_tensor(folders: dict[str, Path], source: str, ranks: int) -> None:
    whole = load_target(folders[source], torch.bfloat16, "cpu")
    parts = load_target_parts(folders[source], torch.bfloat16, ["cpu"] * ranks)
    for name, tensor in whole.tensors.items():
        pieces = [part.tensors[name] for part in parts]
        if kind(name) in ONCE:
            assert torch.equal(pieces[0], tensor) and not any(piece.any() for piece in pieces[1:]), name
        elif (axis := AXES.get(kind(name))) is None:
            assert all(torch.equal(piece, tensor) for piece in pieces), name
        else:
            assert torch.equal(torch.cat(pieces, axis), tensor), name
            assert all(piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces), name
        assert all(torch.equal(part.shard.part(name, tensor), own) for part, own in zip(parts, pieces, strict=True))
    divided = {kind(name) for name in whole.tensors} & set(AXES)
    assert {"self_attn.sinks", "q_proj.bias", "o_proj.weight"} <= divided and len(divided) >= 10


def matrices(part: TargetCheckpoint, name: str) -> Tensor:
    """A matrix of every expert, float64 [E, N, K]."""
    if name in part.tensors:
        return part.tensors[name].transpose(1, 2).double()
    return decoded(part.tensors[f"{name}_blocks"], part.tensors[f"{name}_scales"], torch.float64)


def mixture(x: Tensor, part: TargetCheckpoint, prefix: str) -> Tensor:
    """Return the sum of a rank's experts for rows x [R, H], each with the weights of the whole router; float64."""
    w, experts = part.tensors, part.geometry.experts
    assert experts is not None
    logits = F.linear(x, w[f"{prefix}router.weight"].double(), w[f"{prefix}router.bias"].double())
    ordered, chosen = logits.sort(dim=-1, descending=True, stable=True)
    weights = ordered[:, : experts.per_token].softmax(-1)
    total = torch.zeros_like(x)
    up_rows, down_rows = (matrices(part, f"{prefix}experts.{name}_proj") for name in ("gate_up", "down"))
    for row in range(len(x)):
        for weight, e in zip(weights[row], chosen[row, : experts.per_token].tolist(), strict=True):
            both = up_rows[e] @ x[row] + w[f"{prefix}experts.gate_up_proj_bias"][e].double()
            gate, up = both[::2].clamp(max=experts.limit), both[1::2].clamp(-experts.limit, experts.limit)
            act = gate * torch.sigmoid(experts.alpha * gate) * (up + 1)
            total[row] += weight * (down_rows[e] @ act + w[f"{prefix}experts.down_proj_bias"][e].double())
    return total


@pytest.mark.parametrize(("source", "ranks"), [("floats", 4), ("mxfp4", 2), ("mxfp4", 4), ("planted", 2)])
def test_what_the_experts_of_all_ranks_give_adds_up_to_what_whole_ones_give(
    folders: dict[str, Path], source: str, ranks: int
) -> None:
    whole = load_target(folders[source], torch.bfloat16, "cpu")
    parts = load_target_parts(folders[source], torch.bfloat16, ["cpu"] * ranks)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, whole.geometry.hidden, dtype=torch.float64, generator=generator)
    want = mixture(x, whole, "model.layers.1.mlp.")
    values = torch.stack([mixture(x, part, "model.layers.1.mlp.") for part in parts])
    assert want.abs().max() > 0.1 and not torch.allclose(values[0], want)
    assert torch.allclose(values.sum(0), want, atol=1e-12)


@pytest.mark.parametrize("source", ["floats", "mxfp4"])
def test_attention_with_biases_and_sinks_adds_up_too(folders: dict[str, Path], source: str) -> None:
    whole = load_target(folders[source], torch.bfloat16, "cpu")
    parts = load_target_parts(folders[source], torch.bfloat16, ["cpu"] * 2)
    x = torch.randn(7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def attention(part: TargetCheckpoint) -> Tensor:
        w = {n.removeprefix("model.layers.0.self_attn."): t.double() for n, t in part.tensors.items() if "s.0." in n}
        q, k, v = (
            F.linear(x, w[f"{n}_proj.weight"], w[f"{n}_proj.bias"]).view(len(x), -1, 16).transpose(0, 1) for n in "qkv"
        )
        k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
        beside = torch.cat((scores, w["sinks"].view(-1, 1, 1).expand(-1, 7, 1)), -1).softmax(-1)[..., :-1]
        return F.linear((beside @ v).transpose(0, 1).flatten(1), w["o_proj.weight"], w["o_proj.bias"])

    assert torch.allclose(sum((attention(part) for part in parts), torch.zeros(())), attention(whole), atol=1e-12)


@given(
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 200),
    st.sampled_from([True, False]),
)
def test_a_parts_geometry_implies_its_tensors_wherever_it_can_be_divided(
    ranks: int, kv_heads: int, group: int, width: int, mxfp4: bool
) -> None:
    g = replace(
        geometry_of("gpt-oss-tiny").target,
        layers=1,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        intermediate=BLOCK * width,
        experts=replace(EXPERTS, mxfp4=mxfp4),
    )
    shard = Shard(ranks - 1, ranks)
    if ranks > 1 and (shard.unfit(g) or shard.cuts_blocks(g)):
        with pytest.raises(ValueError, match=f"by {ranks}|a part of {ranks} would cut blocks of MXFP4"):
            shard.geometry(g)
        return
    expected = shard.wanted(target_tensors(g))
    for tensor, want in target_tensors(shard.geometry(g)).items():
        kept = g.vocab if tensor == "model.embed_tokens.weight" else want.shape[0]
        assert expected[tensor].shape == (kept, *want.shape[1:]), tensor


@pytest.mark.parametrize("name", EXPERT_GEOMETRIES)
def test_two_gpus_can_have_any_published_size_and_four_none(name: str) -> None:
    g: TargetGeometry = EXPERT_GEOMETRIES[name]().target
    assert not Shard(0, 2).unfit(g) and not Shard(0, 2).cuts_blocks(g)
    assert Shard(0, 4).unfit(g) or Shard(0, 4).cuts_blocks(g)


def test_parts_of_all_ranks_are_in_order() -> None:
    spans = [shard.span("model.layers.3.mlp.experts.down_proj_blocks", (8, 64, 90, 16)) for shard in shards(2)]
    assert [(span.axis, span.start, span.stop) for span in spans if span] == [(2, 0, 45), (2, 45, 90)]
    with pytest.raises(ValueError, match=r"down_proj_blocks: 90 cannot be divided by 4"):
        Shard(0, 4).span("model.layers.3.mlp.experts.down_proj_blocks", (8, 64, 90, 16))
