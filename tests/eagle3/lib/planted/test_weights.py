from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.planted import rows
from specgate.backends.eagle3.lib.planted.draft import PlantedDraft
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.register import PAIRS, kernel
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.lib.weights import pack_layer
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES, tiny
from specgate.backends.eagle3.reference.ops import rope
from specgate.backends.eagle3.reference.target import queries_keys_values
from tests.eagle3.lib.planted.recipes import RECIPE_A, RECIPE_B, digest, made_draft, made_target

Maker = Callable[..., dict[str, Tensor]]
RECIPES = pytest.mark.parametrize("recipe", [RECIPE_A, RECIPE_B], ids=lambda r: r.name)


GOLDEN = {
    ("A", "target"): "204660877252e193671855e8fd9b232b9dba9fb83469deee3ef1468b264e914c",
    ("A", "draft"): "da279e7fe4e4d93eefb0c255152c957fe1cb3a4018b3817cbd1786a3deddb690",
    ("B", "target"): "df0c1b91cf058473c1b53fd331f26699253dd98a0970e92276831c9b1ca3edb0",
    ("B", "draft"): "352d6a20ec0f5d424f2b6f9c4514b1f18623e48a51ad87dc537969c31c0f8734",
}


@RECIPES
@pytest.mark.parametrize(("part", "made"), [("target", made_target), ("draft", made_draft)], ids=["target", "draft"])
def test_a_seed_means_the_weights_that_it_has_always_meant_in_whatever_blocks_they_are_made(
    recipe: Recipe, part: str, made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in (rows.BLOCK, 3000):
        monkeypatch.setattr(rows, "BLOCK", block)
        assert digest(made(recipe)) == GOLDEN[recipe.name, part], block


@pytest.mark.gpu
@RECIPES
@pytest.mark.parametrize("made", [made_target, made_draft], ids=["target", "draft"])
def test_a_gpu_makes_the_bits_that_a_cpu_makes(recipe: Recipe, made: Maker) -> None:
    on_cpu, on_gpu = made(recipe, "cpu"), made(recipe, "cuda")
    assert [name for name in on_cpu if not torch.equal(on_cpu[name], on_gpu[name].cpu())] == []


def test_another_seed_is_another_pair_and_the_signal_touches_the_lm_head_alone() -> None:
    first = made_target(RECIPE_A)
    other, stronger = made_target(replace(RECIPE_A, seed=2)), made_target(replace(RECIPE_A, signal=2.0))
    matrices = {name for name, tensor in first.items() if tensor.dim() == 2}
    assert {name for name in first if not torch.equal(first[name], other[name])} == matrices
    assert {name for name in first if not torch.equal(first[name], stronger[name])} == {"lm_head.weight"}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_drafts_projection_is_orthonormal_in_every_geometry(name: str) -> None:
    g = GEOMETRIES[name]().draft
    recipe = replace(RECIPE_A, draft_vocab=64)
    draft = PlantedDraft(recipe, g, tables(recipe, 128), torch.device("cpu"))
    q = draft.projection()
    assert torch.equal(q @ q.T, torch.eye(g.kv_heads * g.head_dim))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("distance", [0, 1, 59, 66])
def test_a_head_that_looks_a_distance_back_sees_that_slot_alone(name: str, distance: int) -> None:
    """In bfloat16, over 4096 slots and at the far end of what the geometry serves, with the engine's own RoPE."""
    spec, positions = GEOMETRIES[name]().target.rope, GEOMETRIES[name]().target.max_positions
    key, query = (channels.to(torch.bfloat16) for channels in kernel(spec, distance))
    cos, sin = (t.to(torch.bfloat16) for t in cos_sin_table(spec, positions))
    slots = torch.arange(4096) if distance else torch.arange(positions - 4096, positions)
    at = int(slots[-1])
    keys = rope(key.expand(len(slots), -1), cos[slots], sin[slots]).float()
    scores = keys @ rope(query[None], cos[at : at + 1], sin[at : at + 1])[0].float() / spec.dim**0.5
    assert float(scores.softmax(0)[-1 - distance]) > 0.999


def test_every_head_size_of_the_geometries_has_its_pairs() -> None:
    assert {shape().target.head_dim for shape in GEOMETRIES.values()} == set(PAIRS)


def test_recipe_b_finds_room_for_its_heads_in_every_geometry_that_norms_none() -> None:
    for shape in (shape for make in GEOMETRIES.values() if not (shape := make()).target.head_norms):
        assert shape.target.heads >= 8 and shape.draft.kv_heads >= 2 and shape.boundaries[2] < shape.target.layers
    assert tiny().boundaries == RECIPE_B.boundaries


@pytest.mark.parametrize("name", ["tiny", "qwen3-tiny"])
def test_attention_scores_have_the_same_deviation_with_norms_of_heads_as_without(name: str) -> None:
    g = GEOMETRIES[name]().target
    target = PlantedTarget(RECIPE_A, g, tables(RECIPE_A, g.vocab), torch.device("cpu"))
    tensors = {n: target.make(n, want.shape) for n, want in target_tensors(replace(g, layers=1)).items()}
    w = pack_layer(tensors, "model.layers.0.")
    stream = 3 * torch.randn(200, g.hidden, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    heads = queries_keys_values(w, g, stream).float().view(200, -1, g.head_dim)
    scores = heads[:, 0] @ heads[:, g.heads].T / g.head_dim**0.5
    assert float(scores.std()) == pytest.approx(rows.SCORE, rel=0.1)
