"""Prefill of a target with a mixture of experts on the CPU, against the reference engine on the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.engine import prefill_experts
from specgate.backends.cupy_eagle3.engine.prefill_experts import (
    attention_with_sinks,
    expert_workspace_bytes,
    mixture,
    prefill_expert_target,
)
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK
from specgate.backends.cupy_eagle3.memory.buffers import Pages
from specgate.backends.cupy_eagle3.memory.expert_weights import ExpertTargetWeights
from specgate.backends.cupy_eagle3.memory.model import Target
from specgate.backends.cupy_eagle3.memory.sizes import Sizes
from specgate.backends.reference import gpt_oss
from specgate.backends.reference.engine import ReferenceEngine
from specgate.backends.reference.gpt_oss import GptOssTarget
from specgate.eagle3.layout import target_tensors
from tests.backends.cupy_eagle3.pairs import MIXTURE, WINDOW, random_weights, target_checkpoint

POSITIONS = 3 * BLOCK
ROUNDING = 0.02
"""Of a row: the norm of its error over its own."""


@pytest.fixture(scope="module")
def both() -> tuple[Target, ReferenceEngine]:
    """The same numbers in both engines: bfloat16 here, float32 there."""
    weights = random_weights(target_tensors(MIXTURE), 1)
    wide = {name: t.float() if t.is_floating_point() else t.clone() for name, t in weights.items()}
    reference = ReferenceEngine(
        target_checkpoint(MIXTURE, wide), None, max_batch=1, max_positions=POSITIONS, device="cpu"
    )
    return Target.of(target_checkpoint(MIXTURE, dict(weights)), POSITIONS), reference


def errors(found: Tensor, expected: Tensor) -> Tensor:
    each: Tensor = (found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return each


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 131])
@torch.inference_mode()
def test_streams_and_pages_are_the_references(both: tuple[Target, ReferenceEngine], length: int) -> None:
    target, reference = both
    tokens = torch.randint(MIXTURE.vocab, (length,), generator=torch.Generator().manual_seed(length))
    pages, blocks = Pages.allocate(3, 4, Sizes(1, POSITIONS, 1).heads(MIXTURE), "cpu"), torch.tensor([3, 0, 1])
    found, features = prefill_expert_target(target, pages, tokens, blocks, (0, 1, 3), chunk=50)
    at = torch.arange(length)[None]
    stream, expected = reference.model.forward(slice(0, 1), tokens[None], at, (0, 1, 3))
    assert features is not None and expected is not None
    # Rounding alone sends a row to another expert where two logits are nearly equal.
    assert errors(found, stream[0]).quantile(0.9) < ROUNDING
    assert errors(features, expected[0]).quantile(0.9) < ROUNDING
    for layer in range(3):
        k = torch.cat([pages.k[layer, block] for block in (3, 0, 1)], dim=1)[:, :length]
        v = torch.cat([pages.v[layer, block].transpose(1, 2) for block in (3, 0, 1)], dim=1)[:, :length]
        assert errors(k, reference.cache.k[layer][0, :, :length]).quantile(0.9) < ROUNDING
        assert errors(v, reference.cache.v[layer][0, :, :length]).quantile(0.9) < ROUNDING


@pytest.mark.parametrize("window", [None, 1, 8, 50, 51])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 1, 64), (6, 2, 64), (4, 4, 128)])
def test_every_position_sees_its_window_and_the_sink(
    window: int | None, heads: int, kv_heads: int, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_experts, "WINDOWS", 3)
    length, generator = 51, torch.Generator().manual_seed(heads)
    q, k, v = (torch.randn(length, n, head_dim, generator=generator).bfloat16() for n in (heads, kv_heads, kv_heads))
    sinks = (3 * torch.randn(heads, generator=generator)).bfloat16()
    found = attention_with_sinks(q, k, v, sinks, window)
    keys, values = k.transpose(0, 1), v.transpose(0, 1)
    expected = [oracles.attention(q[p], keys, values, p, window, sinks).flatten() for p in range(length)]
    assert errors(found, torch.stack(expected)).max() < ROUNDING
    without = torch.stack([oracles.attention(q[p], keys, values, p, window).flatten() for p in range(length)])
    assert errors(found, without).max() > 10 * ROUNDING


@torch.inference_mode()
def test_a_mixture_of_rows_is_the_references(both: tuple[Target, ReferenceEngine]) -> None:
    target, reference = both
    assert isinstance(target.weights, ExpertTargetWeights) and isinstance(reference.model, GptOssTarget)
    assert MIXTURE.experts is not None
    x = torch.randn(40, MIXTURE.hidden, generator=torch.Generator().manual_seed(4)).bfloat16()
    found = mixture(x, target.weights.layers[1], MIXTURE.experts)
    expected, _ = gpt_oss.mixture(reference.model.weights.layers[1], x.float(), MIXTURE.experts)
    assert errors(found, expected).max() < ROUNDING
    alone = torch.cat([mixture(row[None], target.weights.layers[1], MIXTURE.experts) for row in x])
    assert errors(alone, expected).max() < ROUNDING


def test_the_workspace_grows_with_the_prompt() -> None:
    short, long = (expert_workspace_bytes(MIXTURE, positions) for positions in (100, 1000))
    assert 0 < short < long
