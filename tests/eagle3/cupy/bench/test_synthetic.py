"""Random weights of a mixture: do rows choose experts as independent tokens do?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specgate.backends.eagle3.cupy.bench.synthetic import random_tensors
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.weights import decoded
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.pairs import MIXTURE

ROWS = 8
EXPERTS = ExpertGeometry(64, 4, mxfp4=True)


def test_rows_choose_experts_as_independent_ones_do() -> None:
    """All but attention, of which random keys leave next to nothing but its bias."""
    torch.manual_seed(0)
    g = replace(MIXTURE, layers=8, windows=(None,) * 8, hidden=256, intermediate=64, experts=EXPERTS)
    tensors = random_tensors(target_tensors(g), "cpu")
    x = tensors["model.embed_tokens.weight"][:ROWS].double()
    touched = []
    for layer in range(g.layers):
        own = {name.split(f"layers.{layer}.")[-1]: t for name, t in tensors.items() if f"layers.{layer}." in name}
        x = x + own["self_attn.o_proj.bias"].double()
        normed = oracles.rms_norm(x, own["post_attention_layernorm.weight"], 1e-9)
        logits = oracles.route(normed, own["mlp.router.weight"], own["mlp.router.bias"])
        experts, weights = oracles.chosen_experts(logits, EXPERTS.per_token)
        touched.append(len({*experts.flatten().tolist()}))
        both, down = (
            decoded(own[f"mlp.experts.{part}_proj_blocks"], own[f"mlp.experts.{part}_proj_scales"], torch.bfloat16)
            for part in ("gate_up", "down")
        )
        act = oracles.expert_gate_up(normed, both, own["mlp.experts.gate_up_proj_bias"], experts, 1.702, 7.0)
        x = x + oracles.expert_down(act, down, own["mlp.experts.down_proj_bias"], experts, weights)
    independent = EXPERTS.count * (1 - (1 - EXPERTS.per_token / EXPERTS.count) ** ROWS)
    assert sum(touched) / g.layers == pytest.approx(independent, rel=0.15)
