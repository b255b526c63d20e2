"""Caches of codes on a GPU: speculation beside its format's baseline, bit for bit, and beside the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, IN_WORDS, KvMode, KvModes
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import BASELINE, Budget, Role, Sampling
from specgate.errors import BackendError
from tests.eagle3.cupy.engine.tracing import check_speculation, nearness, same_prefixes, tokens
from tests.eagle3.cupy.gpu_pairs import (
    GEOMETRIES,
    RAGGED,
    RECIPE_EXPERTS,
    SIZES,
    checkpoints,
    checkpoints_of,
    engine_of,
    expert_pair,
    random_prompts,
    shape,
)
from tests.eagle3.cupy.kernels.codes.caches import CODES

pytestmark = pytest.mark.gpu

STEPS = 24
FORMATS = {
    f"{name} {mode}": kv
    for mode in CODES
    for name, kv in (("target", KvModes(mode)), ("draft", KvModes(None, mode)), ("both", KvModes(mode, mode)))
}
BOTH = [KvModes(mode, mode) for mode in CODES]


@cache
def engine(name: str, kv: KvModes) -> CupyEngine:
    return engine_of(*checkpoints_of(name, "A", torch.bfloat16), replace(SIZES, kv=kv))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_tokens_and_logits_of_every_draft_length_equal_the_baselines_bit_for_bit(
    name: str, kv: str, batch: int
) -> None:
    made = engine(name, FORMATS[kv])
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    check_speculation(made, (1, 2, 3, 5), STEPS)


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
def test_a_long_context_is_bit_exact_too(kv: KvModes) -> None:
    sizes = Sizes(slots=2, positions=33400, max_rows=6, kv=kv)
    made = engine_of(*checkpoints(shape(8, 2, 128)), sizes)
    made.prefill(random_prompts([32768, 16384 + 7]), draft=True)
    check_speculation(made, (1, 3, 5), 20)


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
def test_experts_with_windows_and_sinks_are_bit_exact_too(kv: KvModes) -> None:
    sizes = replace(SIZES, max_rows=4, kv=kv)
    made = engine_of(*checkpoints(expert_pair(), RECIPE_EXPERTS), sizes)
    made.prefill(random_prompts([5, 70, 200, 31]), draft=True)
    check_speculation(made, (1, 3), STEPS)


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
@pytest.mark.parametrize("method", ["coupled", "rejection"])
def test_a_sampled_text_is_reproduced_and_a_coupled_one_is_its_baselines(method: str, kv: KvModes) -> None:
    sampling = Sampling(temperature=1.0, seed=3, method="coupled" if method == "coupled" else "rejection")
    made = engine_of(*checkpoints_of("4:1 of 64", "A", torch.bfloat16), replace(SIZES, kv=kv, sampling=sampling))
    made.prefill(random_prompts([5, 64, 300]), draft=True)
    once, again = (tokens(made, 3, Budget(steps=20)) for _ in range(2))
    assert once == again
    if method == "coupled":
        assert same_prefixes(once, tokens(made, 0, Budget(steps=60)))


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
def test_equal_prompts_share_blocks_and_decode_alike_again_and_again(kv: KvModes) -> None:
    made = engine("4:1 of 64", kv)
    (prompt,) = random_prompts([333])
    made.prefill([prompt, prompt, prompt], draft=True)
    block = made.decode(Role(3), Budget(steps=40), ())
    assert block.counters["cache_hit_tokens"] == 2 * 320
    assert len({*block.tokens}) == 1 and block.counters["kv_integrity_failures"] == 0
    assert made.decode(Role(3), Budget(steps=40), ()).tokens == block.tokens
    assert same_prefixes(block.tokens, made.decode(BASELINE, Budget(steps=40), ()).tokens)


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
@pytest.mark.parametrize("fused", [True, False], ids=["kernels", "torch"])
def test_the_cache_does_not_depend_on_what_else_is_prefilled(fused: bool, kv: KvModes) -> None:
    made = engine("2:1 of 128", kv)
    mode = made.mode
    made.mode = PrefillMode(fused, mode.attention, mode.grouped)
    try:
        prompts = random_prompts([300, 64, 65, 17])
        made.prefill(prompts, draft=True)
        together = tokens(made, 3, Budget(steps=20))
        for prompt, text in zip(prompts, together, strict=True):
            made.prefill([prompt], draft=True)
            assert tokens(made, 3, Budget(steps=20)) == (text,)
    finally:
        made.mode = mode


@pytest.mark.parametrize("mode", CODES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_logits_are_as_near_to_the_float32_reference_of_the_format_as_torchs_in_bfloat16(
    name: str, mode: KvMode
) -> None:
    """And nearer than to the reference in float32 throughout: the format is what differs."""
    of_format, rounded, exact = (
        oracle(name, dtype, kv)
        for dtype, kv in ((torch.float32, KvModes(mode)), (torch.bfloat16, KvModes(mode)), (torch.float32, AS_COMPUTED))
    )
    made, prompts = engine(name, KvModes(mode)), random_prompts([300, 70])
    ours, torchs = nearness(made, of_format, rounded, prompts, 40)
    to_exact, _ = nearness(made, exact, rounded, prompts, 40)
    print(f"{name} {mode}: {ours}; torch in bfloat16: {torchs}; to float32 throughout: {to_exact}")
    assert ours.pooled >= {"fp8": 0.998, "nvfp4": 0.98}[mode]
    # Where a number lies beside a middle, one code more or less is a fiftieth of it in E4M3, and a third in E2M1.
    assert 1 - ours.pooled < {"fp8": 1.3, "nvfp4": 1.6}[mode] * (1 - torchs.pooled)
    assert ours.pooled > to_exact.pooled


@pytest.mark.parametrize("kv", BOTH, ids=CODES)
def test_numbers_that_are_not_finite_end_the_run_and_leave_nothing_behind(kv: KvModes) -> None:
    made = engine_of(*checkpoints_of("4:1 of 64", "A", torch.bfloat16), replace(SIZES, kv=kv))
    prompts = random_prompts([40, 41])
    made.prefill(prompts, draft=True)
    wanted = tokens(made, 3, Budget(steps=10))
    pages = made.b.target.pages
    assert pages.scales is not None
    fresh = Pages.allocate(len(pages.k), pages.k.shape[1], made.sizes.heads(made.target.geometry), "cuda")
    torch.cuda.synchronize()
    with made.stream.current():  # the engine's stream and the default one do not wait for each other
        pages.scales[1].zero_()
    with pytest.raises(BackendError, match="the target's logits are not finite"):
        made.decode(Role(3), Budget(steps=10), ())
    with made.stream.current():
        assert fresh.scales is not None and torch.equal(pages.scales, fresh.scales) and not pages.k.any()
    made.prefill(prompts, draft=True)
    assert tokens(made, 3, Budget(steps=10)) == wanted


@pytest.mark.parametrize("mode", CODES)
def test_facts_name_the_formats_and_the_floors_have_them(mode: KvMode) -> None:
    both, plain = (engine("4:1 of 64", kv).facts() for kv in (KvModes(mode, mode), AS_COMPUTED))
    assert both.details["KV cache"] == both.details["draft's KV cache"] == IN_WORDS[mode]
    assert "KV cache" not in plain.details
    assert both.traffic is not None and plain.traffic is not None
    narrow, wide = (facts.traffic.target.attention[0].position_bytes for facts in (both, plain) if facts.traffic)
    assert narrow / wide == {"fp8": 64 + 4 / 16, "nvfp4": 32 + 4}[mode] / 128


def oracle(name: str, dtype: torch.dtype, kv: KvModes) -> ReferenceEngine:
    made = checkpoints_of(name, "A", dtype)
    return ReferenceEngine(*made, max_batch=8, max_positions=1024, device="cuda", kv=kv)
