"""Whole steps of a target whose heads have norms of queries and keys, as Qwen3's have, on a CPU, each kernel run from
its own source: beside the reference engine, and speculation beside its baseline.
"""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.prefill import cache_heads
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.lib.kv.modes import KvModes
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.checkpoints.geometry import RopeSpec
from tests.eagle3.cupy.engine.tracing import check_common_rows, reference_logits, same_prefixes
from tests.eagle3.cupy.gpu_pairs import random_prompts
from tests.eagle3.cupy.kernels.test_prefill_kernels import FUSED, PLAIN
from tests.eagle3.cupy.step.decoder import LENGTHS, TREE, Decoder, made_pair

pytestmark = pytest.mark.usefixtures("whole_steps")


@pytest.mark.parametrize(
    ("tree", "kv", "error"), [(TREE, None, 0.02), (None, "nvfp4", 0.15)], ids=["tree", "chain over nvfp4"]
)
def test_steps_are_the_reference_engines_and_speculation_is_the_baseline_bit_for_bit(
    tree: DraftTree | None, kv: str | None, error: float
) -> None:
    modes = KvModes(kv)  # type: ignore[arg-type]
    made = Decoder.of(tree, kv=modes, head_norms=True)
    text, wanted = made.decode(0, 14)
    pair = made_pair(torch.float32, head_norms=True)
    oracle = ReferenceEngine(*pair, max_batch=3, max_positions=230, device="cpu", kv=modes)
    oracle.prefill(random_prompts(LENGTHS), draft=False)
    at = [(slot, n) for slot in range(3) for n in (0, 6)]
    ours = torch.stack([wanted[slot, LENGTHS[slot] + n] for slot, n in at]).double()
    theirs = torch.stack([reference_logits(oracle, slot, text.tokens[slot][: n + 1]) for slot, n in at]).double()
    assert float((ours - theirs).norm() / theirs.norm()) < error
    block, logits = made.decode(3, 3, text.tokens)
    assert same_prefixes(block.tokens, text.tokens)
    check_common_rows(logits, wanted, 3 * 3 + 6)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_prompts_heads_are_normed_rotated_and_cached_as_torch_does_it(head_dim: int) -> None:
    heads = Heads(3, 1, head_dim, 200, norm_eps=1e-6)
    table = cos_sin_table(RopeSpec("default", 1e6, head_dim), 200)
    generator = torch.Generator().manual_seed(1)
    qkv = (3 * torch.randn(70, heads.qkv_width, generator=generator)).to(torch.bfloat16)
    norms = (1 + 0.5 * torch.randn(2, head_dim, generator=generator)).to(torch.bfloat16)
    values = []
    for mode in (FUSED, PLAIN):
        own, pages = qkv.clone(), Pages.allocate(1, 3, heads, "cpu")
        cache_heads(own, table, pages, 0, torch.tensor([2, 0]), heads, mode, norms)
        values.append([t.float() for t in (own, pages.k, pages.v)])
    for mine, theirs in zip(*values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2**-7, atol=0)
