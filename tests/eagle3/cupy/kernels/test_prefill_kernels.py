"""The kernels of a prefill: what is launched; and their results beside torch's, on a CPU as C++ and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from specgate.backends.eagle3.cupy.engine import prefill
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode, prefill_draft, prefill_target
from specgate.backends.eagle3.cupy.engine.prefill_attention import (
    FIRST_RIGHT,
    Library,
    PrefillAttention,
    attend_last,
    cudnn_version,
    split_heads,
)
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.prefill.launchers import (
    PrefillGate,
    PrefillHeads,
    PrefillStream,
    row_threads,
)
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.lib.layout import target_tensors
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.gpu_pairs import engine, random_prompts
from tests.eagle3.cupy.kernels.crossed import on_device
from tests.eagle3.cupy.kernels.device import integers, normal, poisoned, relative_error
from tests.eagle3.cupy.kernels.launches import PAIRS, Launch, check_arguments, recorded
from tests.eagle3.cupy.pairs import (
    BOUNDARIES,
    DRAFT,
    TARGET,
    draft_checkpoint,
    draft_weights,
    random_weights,
    target_checkpoint,
    without_weights,
)

EPS = 1e-5
ROUNDED = 3e-3
"""Of results that are rounded to bfloat16 once."""
FUSED, PLAIN = (PrefillMode(fused, PrefillAttention((Library.TORCH,))) for fused in (True, False))
DENSE = [name for name in PAIRS if name != "experts"]


# ── without a GPU ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What would be launched; nothing is."""
    return recorded(monkeypatch)


def prefilled_on_paper(name: str, positions: int) -> None:
    """A prompt through target and draft, on the `meta` device."""
    pair = PAIRS[name]
    target, draft = without_weights(pair.target, pair.draft, pair.boundaries, 512)
    heads = [Heads(g.heads, g.kv_heads, g.head_dim, 512) for g in (pair.target, pair.draft)]
    pages = [Pages.allocate(n, 8, h, "meta") for n, h in zip((pair.target.layers, 1), heads, strict=True)]
    tokens, blocks = (torch.empty(n, dtype=torch.int64, device="meta") for n in (positions, 8))
    _, features = prefill_target(target, pages[0], tokens, blocks, pair.boundaries, replace(FUSED, chunk=128))
    assert features is not None
    prefill_draft(draft, pages[1], tokens, blocks, features, replace(FUSED, chunk=128))


@pytest.mark.parametrize("name", DENSE)
def test_each_argument_is_what_its_field_declares(launched: list[Launch], name: str) -> None:
    prefilled_on_paper(name, 300)
    assert {launch.name for launch in launched} == {"prefill_stream", "prefill_heads", "prefill_gate", "prefill_draft"}
    check_arguments(launched)
    assert all(len(launch.grid) <= 2 for launch in launched)


@pytest.mark.parametrize(("positions", "chunks"), [(128, 1), (129, 2), (300, 3)])
def test_a_layer_is_one_launch_for_the_cache_and_three_per_chunk(
    launched: list[Launch], positions: int, chunks: int
) -> None:
    prefilled_on_paper("llama-3.1-8b", positions)
    names = [launch.name for launch in launched]
    layers = PAIRS["llama-3.1-8b"].target.layers
    rows_of_layers = chunks * (layers - 1) + 1  # of the last layer one row alone
    assert names.count("prefill_heads") == layers + 1  # and the draft's
    assert names.count("prefill_gate") == rows_of_layers
    assert names.count("prefill_stream") == chunks + 2 * rows_of_layers
    assert names.count("prefill_draft") == -(-(positions - 1) // 128)


@pytest.mark.parametrize("width", [64, 576, 2880, 4096, 8192])
def test_a_row_is_divided_among_whole_warps_of_which_none_is_idle(width: int) -> None:
    threads, groups = row_threads(width), width // 8
    each = -(-groups // threads)
    assert threads % 32 == 0 and threads <= 512
    assert (threads - 32) * each < groups <= threads * each


def test_operands_of_another_shape_are_refused_by_name() -> None:
    x, added = torch.empty(3, 64), torch.empty(3, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"normed: .*is needed"):
        PrefillStream(64)(normed=added[:2], x=x, added=added, weight=added[0], eps=EPS)
    with pytest.raises(ValueError, match=r"gate_up: .*is needed"):
        PrefillGate(96)(out=torch.empty(3, 96, dtype=torch.bfloat16), gate_up=added)
    qkv, angles = torch.empty(70, 5 * 64, dtype=torch.bfloat16), (torch.empty(70, 32), torch.empty(69, 32))
    pages = Pages.allocate(1, 2, Heads(3, 1, 64, 128), "cpu")
    with pytest.raises(ValueError, match=r"sine: .*is needed"):
        PrefillHeads(3, 1, 64)(qkv, pages.k[0], pages.v[0], torch.arange(2), angles)
    with pytest.raises(ValueError, match=r"blocks: .*is needed"):
        PrefillHeads(3, 1, 64)(qkv, pages.k[0], pages.v[0], torch.arange(1), (angles[0], angles[0]))


# ── the kernels' own sources, on a CPU ───────────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def test_a_prompt_leaves_bit_by_bit_what_torch_leaves(on_host: None) -> None:
    """On these numbers: a norm may differ in its last bit, and so, rarely, in a rounding."""
    target = Target.of(target_checkpoint(TARGET, random_weights(target_tensors(TARGET), 1)), 512)
    head = draft_checkpoint(DRAFT, random_weights(draft_weights(DRAFT), 2), BOUNDARIES)
    draft = Draft.of(head, target, 512)
    tokens = torch.randint(TARGET.vocab, (2 * BLOCK + 5,), generator=torch.Generator().manual_seed(0))
    blocks, values = torch.tensor([5, 0, 3]), []
    for mode in (FUSED, PLAIN):
        pages = [
            Pages.allocate(n, 6, Heads(1, g, 64, 512), "cpu") for n, g in ((3, TARGET.kv_heads), (1, DRAFT.kv_heads))
        ]
        for cache in pages:
            cache.k.fill_(7.0)
            cache.v.fill_(7.0)
        stream, features = prefill_target(target, pages[0], tokens, blocks, BOUNDARIES, replace(mode, chunk=128))
        assert features is not None
        prefill_draft(draft, pages[1], tokens, blocks, features, replace(mode, chunk=128))
        values.append([stream, features, *(t for cache in pages for t in (cache.k, cache.v))])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*values, strict=True))


# Of 1,032 groups of eight a thread has several, and some lanes have one less.
@on_device("hidden", cpu=[(8 * 1032,)], gpu=[(64,), (576,), (2880,), (4096,), (8192,)])
def test_the_stream_is_torchs_and_its_norm_is_within_a_rounding(device: str, hidden: int) -> None:
    x, added = normal(70, hidden, dtype=torch.float32, device=device), normal(70, hidden, seed=1, device=device)
    weight, embedding = normal(hidden, seed=2, device=device), normal(500, hidden, seed=3, device=device)
    tokens = integers(500, 70, device=device).long()
    mine, theirs = x.clone(), x.clone()
    normed = prefill.add(mine, added, weight, EPS, FUSED)
    prefill.add(theirs, added, weight, EPS, PLAIN)
    assert torch.equal(mine, theirs)
    assert relative_error(normed, oracles.rms_norm(mine, weight, EPS)) < ROUNDED
    normed = prefill.embed(mine, embedding, tokens, weight, EPS, FUSED)
    assert torch.equal(mine, embedding[tokens].float())
    assert relative_error(normed, oracles.rms_norm(mine, weight, EPS)) < ROUNDED


# Of 6 + 1 heads, the last ones together are two queries and a key.
@on_device(
    "shape, positions",
    cpu=[((6, 1, 128), 70)],
    gpu=[*product([(9, 3, 64), (32, 8, 128), (0, 8, 128), (4, 4, 64)], [1, BLOCK - 1, BLOCK, BLOCK + 1, 300])],
)
def test_heads_are_rotated_and_cached_bit_by_bit_as_by_torch(
    device: str, shape: tuple[int, int, int], positions: int
) -> None:
    sizes, count = Heads(*shape, 320), -(-positions // BLOCK)
    qkv = normal(positions, sizes.qkv_width, device=device)
    blocks = torch.tensor([6, 2, 5, 0, 3], device=device)[:count]
    cosine, sine = (normal(320, shape[2] // 2, dtype=torch.float32, seed=s, device=device) for s in (0, 1))
    entries: list[tuple[torch.Tensor, ...]] = []
    for mode in (FUSED, PLAIN):
        own, pages = qkv.clone(), Pages.allocate(2, 7, sizes, device)
        pages.k.fill_(7.0)
        pages.v.fill_(7.0)
        prefill.cache_heads(own, (cosine, sine), pages, 1, blocks, sizes, mode)
        entries.append((own, pages.k, pages.v))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*entries, strict=True))


# ── on a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.gpu
@pytest.mark.parametrize("intermediate", [96, 1536, 14336])
@torch.inference_mode()
def test_gates_are_within_a_rounding_over_their_whole_range(intermediate: int) -> None:
    gate_up = normal(70, 2 * intermediate, scale=20.0)
    gate_up[0, :8] = torch.tensor([-100.0, -88.5, -0.0, 0.0, 88.5, 100.0, 3e38, -3e38])
    gate, up = gate_up.double().chunk(2, dim=-1)
    want, out = torch.nn.functional.silu(gate) * up, poisoned(70, intermediate)
    PrefillGate(intermediate)(out=out, gate_up=gate_up)
    assert relative_error(out[1:], want[1:]) < ROUNDED
    assert torch.equal(out[0].isfinite(), want[0].bfloat16().isfinite())


@pytest.mark.gpu
@torch.inference_mode()
def test_a_prompt_leaves_what_it_leaves_without_the_kernels() -> None:
    """Keys, values and the last row; what differs are roundings of norms, which later layers carry on."""
    made = engine()
    (tokens,) = random_prompts([300], made.target.geometry.vocab)
    ids, blocks = torch.tensor(tokens, device="cuda"), torch.arange(5, device="cuda")
    draft = made.draft
    assert draft is not None
    values = []
    for mode in (FUSED, PLAIN):
        sizes = [Heads(g.heads, g.kv_heads, g.head_dim, 512) for g in (made.target.geometry, draft.geometry)]
        pages = [Pages.allocate(layers, 5, h, "cuda") for layers, h in zip((4, 1), sizes, strict=True)]
        stream, features = prefill_target(
            made.target, pages[0], ids, blocks, draft.boundaries, replace(mode, chunk=128)
        )
        assert features is not None
        prefill_draft(draft, pages[1], ids, blocks, features, replace(mode, chunk=128))
        values.append([stream[-1:], features, *(t for p in pages for t in (p.k, p.v))])
    assert all(relative_error(mine, theirs) < 2e-2 for mine, theirs in zip(*values, strict=True))


@pytest.mark.gpu
@torch.inference_mode()
def test_a_prompts_bits_do_not_depend_on_whether_a_draft_reads_along() -> None:
    made = engine()
    assert made.draft is not None
    (tokens,) = random_prompts([300], made.target.geometry.vocab)
    ids, blocks, values = torch.tensor(tokens, device="cuda"), torch.arange(5, device="cuda"), []
    for boundaries in ((), (1, 2, 3), (0, 2, 4)):
        g = made.target.geometry
        pages = Pages.allocate(4, 5, Heads(g.heads, g.kv_heads, g.head_dim, 512), "cuda")
        stream, _ = prefill_target(made.target, pages, ids, blocks, boundaries, made.mode)
        values.append((stream[-1], pages.k, pages.v))
    for other in values[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(values[0], other, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("library", list(Library))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (32, 8, 128)])
@pytest.mark.parametrize("positions", [BLOCK + 1, 1000])
@torch.inference_mode()
def test_every_library_computes_causal_attention(
    library: Library, heads: int, kv_heads: int, head_dim: int, positions: int
) -> None:
    if library is Library.CUDNN and (cudnn_version() or 0) < FIRST_RIGHT:
        pytest.skip("this cuDNN is wrong for some lengths, and not used")
    sizes = Heads(heads, kv_heads, head_dim, positions)
    q, k, v = split_heads(normal(positions, sizes.qkv_width), sizes)
    attention = PrefillAttention.on(q.device, library)
    out = attention(q, k, v)
    keys, values = (t.transpose(0, 1) for t in (k, v))
    for position in {0, positions // 2, positions - 1}:
        want = oracles.attention(q[position], keys, values, position, None)
        assert relative_error(out[position], want.flatten()) < 6e-3
    assert torch.equal(out, attention(q, k, v))
    assert relative_error(attend_last(q[-1:], k, v), out[-1:]) < 6e-3


@pytest.mark.gpu
@pytest.mark.parametrize("positions", [1, 2, 3])
@torch.inference_mode()
def test_prompts_of_a_few_tokens_find_a_library(positions: int) -> None:
    sizes = Heads(9, 3, 64, positions)
    q, k, v = split_heads(normal(positions, sizes.qkv_width), sizes)
    out = PrefillAttention.on(q.device)(q, k, v)
    want = oracles.attention(q[-1], k.transpose(0, 1), v.transpose(0, 1), positions - 1, None)
    assert relative_error(out[-1], want.flatten()) < 6e-3


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
@torch.inference_mode()
def test_a_prefill_takes_no_more_memory_than_planned(fused: bool) -> None:
    made, mode = engine(), PrefillMode.on(torch.device("cuda"), fused=fused)
    g, draft = made.target.geometry, made.draft
    assert draft is not None
    (tokens,) = random_prompts([2000], g.vocab)
    ids, blocks = torch.tensor(tokens, device="cuda"), torch.arange(32, device="cuda")
    mode.prepare(made.target, draft, [2000])
    peaks = []
    for _ in range(2):  # the second one finds cuBLAS's own workspace made
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _, features = prefill_target(made.target, made.b.target.pages, ids, blocks, draft.boundaries, mode)
        assert features is not None and made.b.draft is not None
        prefill_draft(draft, made.b.draft.pages, ids, blocks, features, mode)
        del features, _
        peaks.append(torch.cuda.max_memory_allocated() - before)
    # torch's allocator rounds each of some twenty tensors up to 2 MiB.
    assert peaks[-1] <= prefill.workspace_bytes(g, draft.geometry, 2000, fused=fused) + 20 * (2 << 20)
