"""Prefill of targets with a mixture of experts on the CPU, against the reference engine on the same weights; and on a
GPU, the kernels' way against torch's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import prefill_experts, prefill_mixture
from specgate.backends.eagle3.cupy.engine.limits import plan
from specgate.backends.eagle3.cupy.engine.prefill import PACKED_ROWS, PrefillMode
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library, PrefillAttention
from specgate.backends.eagle3.cupy.engine.prefill_experts import (
    expert_workspace_bytes,
    prefill_expert_prompts,
    together,
)
from specgate.backends.eagle3.cupy.engine.prefill_mixture import Part, add_mixtures
from specgate.backends.eagle3.cupy.engine.prefilled import LastRow, prefill_prompts
from specgate.backends.eagle3.cupy.kernels.experts.packing import PackedExperts
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, Pages
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes, assign_blocks
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.backends.eagle3.reference import gpt_oss
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.gpt_oss import GptOssTarget
from specgate.backends.eagle3.reference.kv_planes import plain
from tests.eagle3.cupy.gpu_pairs import expert_engine, modes_on_gpu, random_prompts
from tests.eagle3.cupy.pairs import (
    BOUNDARIES,
    DRAFT,
    MIXTURE,
    WINDOW,
    draft_checkpoint,
    draft_weights,
    random_weights,
    target_checkpoint,
)

ON_CPU = PrefillMode.on(torch.device("cpu"))
POSITIONS = 3 * BLOCK
ROUNDING = 0.02
"""Of a row: the norm of its error over its own."""
TORCH = PrefillAttention((Library.TORCH,))
ONE_BY_ONE, GROUPED = PrefillMode(False, TORCH), PrefillMode(False, TORCH, grouped=True)


@pytest.fixture(scope="module")
def both() -> tuple[Target, ReferenceEngine]:
    """The same numbers in both engines: bfloat16 here, float32 there."""
    weights = random_weights(target_tensors(MIXTURE), 1)
    wide = {name: t.float() if t.is_floating_point() else t.clone() for name, t in weights.items()}
    reference = ReferenceEngine(
        target_checkpoint(MIXTURE, wide), None, max_batch=1, max_positions=POSITIONS, device="cpu"
    )
    return Target.of(target_checkpoint(MIXTURE, dict(weights)), POSITIONS), reference


def errors(tensor: Tensor, expected: Tensor) -> Tensor:
    each: Tensor = (tensor.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return each


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 131])
@pytest.mark.parametrize("mode", [ONE_BY_ONE, GROUPED], ids=["one by one", "grouped"])
@torch.inference_mode()
def test_streams_and_pages_are_the_references(
    both: tuple[Target, ReferenceEngine], length: int, mode: PrefillMode
) -> None:
    target, reference = both
    tokens = torch.randint(MIXTURE.vocab, (length,), generator=torch.Generator().manual_seed(length))
    pages, blocks = Pages.allocate(3, 4, Sizes(1, POSITIONS, 1).heads(MIXTURE), "cpu"), torch.tensor([3, 0, 1])
    ((prefilled, features),) = prefill_expert_prompts(
        target, pages, [(tokens, blocks)], (0, 1, 3), replace(mode, chunk=50)
    )
    at = torch.arange(length)[None]
    stream, expected = reference.model.forward(slice(0, 1), tokens[None], at, (0, 1, 3))
    assert features is not None and expected is not None
    # Rounding alone sends a row to another expert where two logits are nearly equal.
    assert errors(prefilled, stream[0]).quantile(0.9) < ROUNDING
    assert errors(features, expected[0]).quantile(0.9) < ROUNDING
    for layer in range(3):
        k = torch.cat([pages.k[layer, block] for block in (3, 0, 1)], dim=1)[:, :length]
        v = torch.cat([pages.v[layer, block].transpose(1, 2) for block in (3, 0, 1)], dim=1)[:, :length]
        assert errors(k, plain(reference.cache.k[layer])[0, :, :length]).quantile(0.9) < ROUNDING
        assert errors(v, plain(reference.cache.v[layer])[0, :, :length]).quantile(0.9) < ROUNDING


@pytest.mark.parametrize("length", [1, BLOCK + 1])
@torch.inference_mode()
def test_the_last_row_and_the_cache_are_the_same_whoever_reads_along(
    both: tuple[Target, ReferenceEngine], length: int
) -> None:
    tokens = torch.randint(MIXTURE.vocab, (length,), generator=torch.Generator().manual_seed(length))
    values, blocks = [], torch.tensor([3, 0])
    for boundaries in ((), (0, 2), (0, 1, 3)):
        pages = Pages.allocate(3, 4, Sizes(1, POSITIONS, 1).heads(MIXTURE), "cpu")
        ((stream, _),) = prefill_expert_prompts(both[0], pages, [(tokens, blocks)], boundaries, ON_CPU)
        values.append((stream[-1], pages.k, pages.v))
    for other in values[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(values[0], other, strict=True))


@pytest.mark.parametrize("mode", [ONE_BY_ONE, GROUPED], ids=["one by one", "grouped"])
@pytest.mark.parametrize("at_once", [1, 3, 8])
@torch.inference_mode()
def test_a_mixture_of_rows_is_the_references(
    both: tuple[Target, ReferenceEngine], monkeypatch: pytest.MonkeyPatch, mode: PrefillMode, at_once: int
) -> None:
    """With all experts decoded at a time, some, or one; the matrices are of two sizes."""
    monkeypatch.setattr(prefill_mixture, "DECODED", at_once * 4 * MIXTURE.intermediate * MIXTURE.hidden)
    target, reference = both
    w = target.weights
    assert not isinstance(w, TargetWeights) and isinstance(reference.model, GptOssTarget)
    assert MIXTURE.experts is not None
    x = torch.randn(40, MIXTURE.hidden, generator=torch.Generator().manual_seed(4)).bfloat16()
    expected, _ = gpt_oss.mixture(reference.model.weights.layers[1], x.float(), MIXTURE.experts)
    part = Part(torch.zeros(40, MIXTURE.hidden), x.clone())
    add_mixtures([part], w.layers[1], MIXTURE, w.norm, mode)
    assert errors(part.x, expected).max() < ROUNDING
    normed = torch.nn.functional.rms_norm(part.x, (MIXTURE.hidden,), w.norm.float(), MIXTURE.rms_eps)
    assert torch.equal(part.normed, normed.bfloat16())
    alone = [Part(torch.zeros(1, MIXTURE.hidden), row[None].clone()) for row in x]
    add_mixtures(alone, w.layers[1], MIXTURE, w.norm, mode)
    assert errors(torch.cat([one.x for one in alone]), expected).max() < ROUNDING


@torch.inference_mode()
def test_each_expert_of_a_layer_is_decoded_once_for_all_prompts(
    both: tuple[Target, ReferenceEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, results = both[0].weights, list[tuple[int, int]]()
    assert not isinstance(w, TargetWeights)
    matrix = PackedExperts.matrix

    def counted(weight: PackedExperts, expert: int) -> Tensor:
        results.append((id(weight), expert))
        return matrix(weight, expert)

    monkeypatch.setattr(PackedExperts, "matrix", counted)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(n, MIXTURE.hidden, generator=generator).bfloat16() for n in (30, 1, 40)]
    add_mixtures([Part(x.float(), x) for x in rows], w.layers[0], MIXTURE, w.norm, ONE_BY_ONE)
    assert len(results) == len(set(results)) == 2 * 8


PROMPTS = [131, 1, WINDOW, BLOCK + 9, 131]


def filled(
    target: Target, draft: Draft, lengths: list[int], mode: PrefillMode, device: str = "cpu"
) -> tuple[Buffers, list[LastRow], list[list[int]]]:
    """Buffers after a prefill of prompts of these lengths, each prompt's last row, and its blocks."""
    g, sizes = target.geometry, Sizes(len(lengths), POSITIONS, 4)
    prompts = [torch.randint(g.vocab, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
    buffers, layout = Buffers.allocate(g, draft.geometry, sizes, device), assign_blocks(prompts, sizes)
    last = prefill_prompts(target, draft, buffers, prompts, layout, mode)
    return buffers, last, [list(blocks) for blocks in layout.blocks]


def differences(target: Target, draft: Draft, mode: PrefillMode, device: str = "cpu") -> list[str]:
    """What a prompt of PROMPTS leaves otherwise in the company of the others than alone."""
    buffers, last, blocks = filled(target, draft, PROMPTS, mode, device)
    values = []
    for slot, length in enumerate(PROMPTS):
        alone, (expected,), (own,) = filled(target, draft, [length], mode, device)
        row, features = last[slot], expected.features
        assert row.features is not None and features is not None
        same = {
            "stream": torch.equal(row.stream, expected.stream),
            "features": torch.equal(row.features, features),
            **{
                f"pages {n}": torch.equal(mine.k[:, blocks[slot]], theirs.k[:, own])
                and torch.equal(mine.v[:, blocks[slot]], theirs.v[:, own])
                for n, (mine, theirs) in enumerate(zip(buffers.pages, alone.pages, strict=True))
            },
        }
        values += [f"{what} of {length} tokens in slot {slot}" for what, equal in same.items() if not equal]
    return values


@pytest.mark.parametrize("rows", [200, 10_000], ids=["in turn", "together"])
@pytest.mark.parametrize("mode", [ONE_BY_ONE, GROUPED], ids=["one by one", "grouped"])
@torch.inference_mode()
def test_a_prompts_bits_do_not_depend_on_what_else_is_prefilled(
    both: tuple[Target, ReferenceEngine], monkeypatch: pytest.MonkeyPatch, mode: PrefillMode, rows: int
) -> None:
    """One of the prompts is there twice."""
    monkeypatch.setattr(prefill_experts, "ROWS", rows)
    head = draft_checkpoint(DRAFT, random_weights(draft_weights(DRAFT), 2), BOUNDARIES)
    assert not differences(both[0], Draft.of(head, both[0], POSITIONS), mode)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([5], [[5]]),
        ([40_000], [[40_000]]),
        ([40_000, 1], [[40_000], [1]]),
        ([16_384] * 4, [[16_384, 16_384], [16_384, 16_384]]),
        ([1_024] * 8, [[1_024] * 8]),
        ([32_768, 1, 32_767, 1], [[32_768], [1, 32_767], [1]]),
    ],
)
def test_as_many_prompts_go_together_as_the_experts_take_rows(lengths: list[int], expected: list[list[int]]) -> None:
    assert [lengths[some.start : some.stop] for some in together(lengths)] == expected


@pytest.mark.parametrize("fused", [False, True])
def test_the_workspace_grows_with_the_prompts_that_go_together(fused: bool) -> None:
    def of(positions: int, slots: int) -> int:
        return expert_workspace_bytes(MIXTURE, DRAFT, positions, slots, fused=fused)

    assert 0 < of(100, 1) < of(1000, 1) < of(1000, 4) < of(1000, 32) < of(1000, 33) == of(1000, 64)
    assert of(40_000, 1) == of(40_000, 8)


def test_decoded_weights_are_bounded_whatever_the_number_of_experts() -> None:
    large = replace(MIXTURE, hidden=2880, intermediate=2880)
    assert large.experts is not None
    each = 4 * 2880 * 2880
    assert prefill_mixture.decoded_bytes(large) == 8 * each
    many = replace(large, experts=replace(large.experts, count=128))
    assert each < prefill_mixture.decoded_bytes(many) <= prefill_mixture.DECODED
    few, more = (
        plan(many, None, Sizes(1, rows, 1), packed_rows=PACKED_ROWS)["prefill workspace"]
        for rows in (PACKED_ROWS, PACKED_ROWS + 1)
    )
    assert more > prefill_mixture.decoded_bytes(many) > few  # of few rows none are decoded
    assert plan(many, None, Sizes(1, 512, 1), fused=False)["prefill workspace"] > prefill_mixture.decoded_bytes(many)


# ── on a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["grouped", "one by one", "packed", "wgmma"])
@torch.inference_mode()
def test_the_kernels_leave_what_torch_leaves(name: str) -> None:
    """A planted token chooses its experts by itself, so that roundings send none elsewhere."""
    made, values = expert_engine(), []
    assert made.draft is not None
    g = made.target.geometry
    prompts = [torch.tensor(ids, device="cuda") for ids in random_prompts([300, 700, 1, 33], g.vocab)]
    for mode in (modes_on_gpu()[name], modes_on_gpu()["torch"]):
        pages = Pages.allocate(g.layers, 20, Sizes(1, 1280, 1).heads(g), "cuda")
        starts = (0, 5, 16, 17)
        cached = [
            (ids, torch.arange(at, at - (-len(ids) // BLOCK), device="cuda"))
            for ids, at in zip(prompts, starts, strict=True)
        ]
        results = prefill_expert_prompts(made.target, pages, cached, made.draft.boundaries, mode=mode)
        values.append([*(t for x, features in results for t in (x[-1:], features)), pages.k, pages.v])
    for mine, theirs in zip(*values, strict=True):
        assert mine is not None and theirs is not None
        assert errors(mine.flatten(1), theirs.float().flatten(1)).nan_to_num().max() < ROUNDING


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["grouped", "one by one", "packed", "wgmma", "torch"])
@torch.inference_mode()
def test_a_prompts_bits_on_a_gpu_do_not_depend_on_what_else_is_prefilled(name: str) -> None:
    made = expert_engine()
    assert made.draft is not None
    assert not differences(made.target, made.draft, modes_on_gpu()[name], "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["grouped", "usual", "torch"])
@torch.inference_mode()
def test_a_prefill_of_experts_takes_no_more_memory_than_planned(name: str) -> None:
    made, mode = expert_engine(), {**modes_on_gpu(), "usual": PrefillMode.on(torch.device("cuda"))}[name]
    g, draft = made.target.geometry, made.draft
    assert draft is not None
    prompts = random_prompts([1500, 1500], g.vocab)
    layout, peaks = assign_blocks(prompts, made.sizes), []
    mode.prepare(made.target, draft, [1500])
    for _ in range(2):  # the second one finds cuBLAS's own workspace made
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        prefill_prompts(made.target, draft, made.b, prompts, layout, mode)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    # torch's allocator rounds each of some thirty tensors up to 2 MiB.
    planned = expert_workspace_bytes(g, draft.geometry, 1500, 2, fused=mode.fused, packed_rows=mode.packed_rows)
    assert peaks[-1] <= planned + 30 * (2 << 20)
