"""Planted experts: four-bit numbers of the wanted size, and a router that chooses what was put into the embedding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import free_bytes, weight_bytes
from specgate.backends.eagle3.lib.planted import rows
from specgate.backends.eagle3.lib.planted.experts import (
    FOUR_BITS,
    GATE,
    GATED_SQUARE,
    LEAST_LIKELY,
    TargetExperts,
    layer_order,
    levels,
    mixed_energy,
    random_blocks,
    random_scales,
    routing_coordinates,
)
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.routing import GROUPS
from specgate.backends.eagle3.lib.planted.rows import key_of
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.backends.eagle3.lib.weights import decoded
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, gpt_oss_tiny
from tests.eagle3.lib.planted.recipes import RECIPE_EXPERTS, digest, made_draft, made_target

CPU = torch.device("cpu")
TINY = gpt_oss_tiny()
LAYER = "model.layers.1."


@pytest.fixture(scope="module")
def target() -> dict[str, Tensor]:
    return made_target(RECIPE_EXPERTS, geometry=TINY.target)


@pytest.mark.parametrize("std", [0.0123, 0.02, 1.0, 2.9])
def test_random_four_bit_numbers_have_the_deviation_asked_for(std: float) -> None:
    blocks = random_blocks(key_of(1, "blocks"), (64, 64, 8, 16), CPU)
    scales = random_scales(key_of(1, "scales"), (64, 64, 8), std, CPU)
    numbers = decoded(blocks, scales, torch.float32)
    assert float(numbers.std()) == pytest.approx(std, rel=0.01)
    assert abs(float(numbers.mean())) < 5 * std / math.sqrt(numbers.numel())
    assert len(set(scales.flatten().tolist())) <= 2


def test_each_of_the_sixteen_numbers_is_as_frequent_as_the_others() -> None:
    blocks = random_blocks(key_of(1, "blocks"), (64, 64, 8, 16), CPU)
    codes = torch.cat((blocks & 0xF, blocks >> 4)).flatten().int()
    counts = torch.bincount(codes, minlength=16).double()
    assert float((counts / counts.mean() - 1).abs().max()) < 5 * math.sqrt(16 / codes.numel())
    assert pytest.approx(math.sqrt(68.5 / 8)) == FOUR_BITS


def test_the_size_of_an_experts_activation_is_its_integral() -> None:
    """Gate and up are independent, so the mean square of their product is that of both."""

    def mean_square(what: Callable[[float], float]) -> float:
        return float(quad(lambda z: what(z) ** 2 * norm.pdf(z, scale=GATE), -20, 20)[0])

    gate = mean_square(lambda z: min(z, 7.0) / (1 + math.exp(-1.702 * z)))
    up = mean_square(lambda z: max(-7.0, min(7.0, z - 1)) + 1)
    assert gate * up == pytest.approx(GATED_SQUARE, rel=0.002)


def test_a_mixture_of_equal_experts_has_the_energy_of_its_weights() -> None:
    experts = replace(TINY.target.experts, per_token=4) if TINY.target.experts else None
    assert experts is not None
    weights = torch.tensor(levels(experts)).softmax(0)
    assert mixed_energy(experts) == pytest.approx(float((weights * weights).sum()), rel=1e-6)
    assert levels(experts)[-1] == LEAST_LIKELY


def test_tensors_are_those_that_the_geometry_implies(target: dict[str, Tensor]) -> None:
    wanted = target_tensors(TINY.target)
    assert {name: tuple(tensor.shape) for name, tensor in target.items()} == {n: w.shape for n, w in wanted.items()}
    packed = {name for name, tensor in target.items() if tensor.dtype == torch.uint8}
    assert packed == {name for name, want in wanted.items() if want.dtype == "U8"}
    assert {tensor.dtype for name, tensor in target.items() if name not in packed} == {torch.bfloat16}


@pytest.mark.parametrize(
    "part", ["self_attn.sinks", "self_attn.q_proj.bias", "self_attn.o_proj.bias", "mlp.router.bias"]
)
def test_vectors_are_not_the_ones_of_a_norm(target: dict[str, Tensor], part: str) -> None:
    assert len(set(target[LAYER + part].tolist())) > 4


def test_no_layer_writes_to_the_routing_coordinates(target: dict[str, Tensor]) -> None:
    assert TINY.target.experts is not None
    reserved = routing_coordinates(TINY.target.experts)
    down = f"{LAYER}mlp.experts.down_proj"
    written = [
        target[f"{LAYER}self_attn.o_proj.weight"],
        target[f"{LAYER}self_attn.o_proj.bias"],
        *decoded(target[f"{down}_blocks"], target[f"{down}_scales"], torch.float32),
        *target[f"{down}_bias"],
    ]
    assert all(not part[:reserved].any() and part[reserved:].any() for part in written)


def test_blocks_do_not_depend_on_the_pieces_they_are_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> tuple[Tensor, Tensor]:
        key = key_of(1, "w")
        return random_blocks(key, (3, 40, 2, 16), CPU), random_scales(key, (3, 40, 2), 0.1, CPU)

    whole = made()
    monkeypatch.setattr(rows, "BLOCK", 77)
    assert all(torch.equal(a, b) for a, b in zip(whole, made(), strict=True))


@pytest.mark.gpu
def test_a_gpu_makes_the_bits_that_a_cpu_makes(target: dict[str, Tensor]) -> None:
    on_gpu = made_target(RECIPE_EXPERTS, "cuda", geometry=TINY.target)
    assert [name for name in target if not torch.equal(target[name], on_gpu[name].cpu())] == []


@pytest.mark.gpu
def test_the_120b_is_made_in_little_more_memory_than_it_takes() -> None:
    g = EXPERT_GEOMETRIES["gpt-oss-120b"]().target
    wanted = target_tensors(g)
    size = weight_bytes(wanted, torch.bfloat16)
    if free_bytes(torch.device("cuda")) < 1.05 * size:
        pytest.skip(f"needs a GPU with {1.05 * size / 1e9:.0f} GB of free memory")
    recipe = replace(RECIPE_EXPERTS, draft_vocab=32000)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    planted = PlantedTarget(recipe, g, tables(recipe, g.vocab), torch.device("cuda"))
    made = {name: planted.make(name, want.shape) for name, want in wanted.items()}
    assert sum(tensor.nbytes for tensor in made.values()) == size
    assert torch.cuda.max_memory_allocated() - before <= 1.05 * size


GOLDEN = {
    "target": "838877e27ec47d5a398732f2cea906d82630c79f10018407b9c20c2e04c53f65",
    "draft": "407662fe948b64d1bbceb890b5ad57cb251a2a8ab10371d1ed745ff2a282d03c",
}


def test_a_seed_means_the_weights_that_it_has_always_meant(target: dict[str, Tensor]) -> None:
    draft = made_draft(RECIPE_EXPERTS, geometry=TINY.draft)
    assert {"target": digest(target), "draft": digest(draft)} == GOLDEN


def test_the_overlap_touches_the_embedding_alone(target: dict[str, Tensor]) -> None:
    other = made_target(replace(RECIPE_EXPERTS, expert_overlap=1.0), geometry=TINY.target)
    assert {name for name in target if not torch.equal(target[name], other[name])} == {"model.embed_tokens.weight"}


@pytest.mark.parametrize("name", EXPERT_GEOMETRIES)
def test_every_router_tells_the_chosen_from_the_others_with_room_to_spare(name: str) -> None:
    """At the size that the residual stream has at the first and the last router, as `rows.py` estimates it."""
    g = EXPERT_GEOMETRIES[name]().target
    assert g.experts is not None
    recipe = replace(RECIPE_EXPERTS, draft_vocab=128)
    made = TargetExperts(recipe, g, tables(recipe, 256), CPU)
    embedding = torch.randn(256, g.hidden, generator=torch.Generator().manual_seed(1))
    made.wire_embedding(embedding, torch.arange(256))
    normed = embedding / embedding.square().mean(dim=1, keepdim=True).sqrt()
    assert float(embedding[:, : routing_coordinates(g.experts)].square().mean()) == pytest.approx(1, rel=1e-4)
    router = made.make(f"{LAYER}mlp.router.weight", (g.experts.count, g.hidden))
    bias = made.make(f"{LAYER}mlp.router.bias", (g.experts.count,))
    assert router is not None and bias is not None
    logits, result = (normed.to(torch.bfloat16).float() @ router.float().T + bias.float()).topk(
        g.experts.per_token + 1, dim=1
    )
    order = layer_order(recipe, g.experts, 1)
    expected = order[made.choices[1 % GROUPS]]
    assert torch.equal(result[:, :-1].sort(dim=1).values, expected.sort(dim=1).values)
    assert float((logits[:, -2] - logits[:, -1]).min()) > 1


def test_a_recipe_says_its_overlap_and_dense_ones_say_nothing() -> None:
    assert RECIPE_EXPERTS.keys()["expert_overlap"] == 0.5
    assert "expert_overlap" not in Recipe("A", 1, 64, 1.0, (1, 2, 3)).keys()  # noqa: SIM118 (not a mapping)
