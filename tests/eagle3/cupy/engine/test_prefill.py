"""Prefill on the CPU: pages, features and last rows against the reference engine in float32, on the same weights.

The oracle rounds nothing to bfloat16; what differs is rounding, some parts in a thousand. A row that is wrong (another
position, head, token or norm) differs from it by as much as it is large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.prefill import (
    PrefillMode,
    prefill_draft,
    prefill_target,
    workspace_bytes,
    write_pages,
)
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library, PrefillAttention
from specgate.backends.eagle3.cupy.engine.prefilled import LastRow, prefill_prompts
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, Pages, tensors_of
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Cached, CacheLayout, Sizes, assign_blocks
from specgate.backends.eagle3.lib.kv.modes import KvMode, KvModes
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.reference import kv_planes
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.target import target_forward
from specgate.checkpoints.geometry import DraftGeometry
from tests.eagle3.cupy.pairs import (
    BOUNDARIES,
    DRAFT,
    TARGET,
    draft_checkpoint,
    draft_weights,
    random_weights,
    target_checkpoint,
)

ON_CPU = PrefillMode.on(torch.device("cpu"))
POSITIONS = 3 * BLOCK
LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]
ROUNDING = 0.02
"""Of a row: the norm of its error over its own. Seen: 0.010."""
FOREIGN = 77.0
"""What pages hold before a prefill, to see what it writes."""


@dataclass(frozen=True, slots=True)
class Pair:
    target: Target
    draft: Draft
    reference: ReferenceEngine


def pair(draft: DraftGeometry = DRAFT) -> Pair:
    """A random pair, loaded into both engines: the reference gets the same bfloat16 numbers, as float32."""
    weights, head = random_weights(target_tensors(TARGET), 1), random_weights(draft_weights(draft), 2)
    target = Target.of(target_checkpoint(TARGET, dict(weights)), POSITIONS)
    wide_weights, wide_head = ({name: t.float() for name, t in tensors.items()} for tensors in (weights, head))
    reference = ReferenceEngine(
        target_checkpoint(TARGET, wide_weights),
        draft_checkpoint(draft, wide_head, BOUNDARIES),
        max_batch=3,
        max_positions=POSITIONS,
        device="cpu",
    )
    return Pair(target, Draft.of(draft_checkpoint(draft, dict(head), BOUNDARIES), target, POSITIONS), reference)


@pytest.fixture(scope="module")
def plain() -> Pair:
    return pair()


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(TARGET.vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def foreign_pages(layers: int, heads: Heads) -> Pages:
    pages = Pages.allocate(layers, 6, heads, "cpu")
    pages.k.fill_(FOREIGN)
    pages.v.fill_(FOREIGN)
    return pages


def heads_of(kv_heads: int) -> Heads:
    return Heads(kv_heads, kv_heads, 64, POSITIONS)


def by_position(pages: Pages, layer: int, blocks: list[int]) -> tuple[Tensor, Tensor]:
    """Keys and values [G, positions, D] of the blocks, as the kernels' layout says."""
    k = torch.cat([pages.k[layer, block] for block in blocks], dim=1)
    v = torch.cat([pages.v[layer, block].transpose(1, 2) for block in blocks], dim=1)
    return k.float(), v.float()


def assert_rows_agree(rows: Tensor, expected: Tensor) -> None:
    """The last axis is a row; the worst one counts."""
    error = (rows.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert rows.shape == expected.shape
    assert error.max() < ROUNDING, f"worst row {int(error.argmax())}: {float(error.max()):.3f}"


@pytest.mark.parametrize("length", LENGTHS)
@torch.inference_mode()
def test_the_pages_hold_the_references_keys_and_values(plain: Pair, length: int) -> None:
    blocks = [5, 0, 3][: -(-length // BLOCK)]
    pages, tokens = foreign_pages(TARGET.layers, heads_of(TARGET.kv_heads)), prompt(length)
    prefill_target(plain.target, pages, torch.tensor(tokens), torch.tensor(blocks), (), ON_CPU)
    plain.reference.prefill([tokens], draft=False)
    cache = plain.reference.cache
    for layer in range(TARGET.layers):
        k, v = by_position(pages, layer, blocks)
        assert_rows_agree(k[:, :length], kv_planes.plain(cache.k[layer])[0, :, :length])
        assert_rows_agree(v[:, :length], kv_planes.plain(cache.v[layer])[0, :, :length])
        assert not k[:, length:].any()
        assert not v[:, length:].any()
    untouched = [block for block in range(6) if block not in blocks]
    assert (pages.k[:, untouched] == FOREIGN).all()
    assert (pages.v[:, untouched] == FOREIGN).all()


@pytest.mark.parametrize("chunk", [1, 7, BLOCK, BLOCK + 1, 4096])
@torch.inference_mode()
def test_stream_and_features_are_the_references_whatever_the_chunk(plain: Pair, chunk: int) -> None:
    tokens, blocks = prompt(2 * BLOCK + 5), torch.arange(3)
    pages = foreign_pages(TARGET.layers, heads_of(TARGET.kv_heads))
    stream, features = prefill_target(
        plain.target, pages, torch.tensor(tokens), blocks, BOUNDARIES, replace(ON_CPU, chunk=chunk)
    )
    engine, rows = plain.reference, torch.arange(len(tokens))[None]
    expected = target_forward(
        engine.tw, TARGET, engine.table, engine.cache.slots(0, 1), torch.tensor([tokens]), rows, BOUNDARIES
    )
    assert features is not None
    assert expected[1] is not None
    assert stream.dtype == torch.float32
    assert features.dtype == torch.bfloat16
    assert_rows_agree(stream, expected[0][0])
    for mine, theirs in zip(features.chunk(3, dim=-1), expected[1][0].chunk(3, dim=-1), strict=True):
        assert_rows_agree(mine, theirs)
    assert torch.equal(features[:, : TARGET.hidden], plain.target.weights.embed[tokens])


@pytest.mark.parametrize("length", [1, BLOCK + 1])
@torch.inference_mode()
def test_the_last_row_and_the_cache_are_the_same_whoever_reads_along(plain: Pair, length: int) -> None:
    tokens, blocks, values = torch.tensor(prompt(length)), torch.tensor([5, 0]), []
    for boundaries in ((), (0, 2), BOUNDARIES):
        pages = foreign_pages(TARGET.layers, heads_of(TARGET.kv_heads))
        stream, _ = prefill_target(plain.target, pages, tokens, blocks, boundaries, ON_CPU)
        values.append((stream[-1], pages.k, pages.v))
    for other in values[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(values[0], other, strict=True))


@pytest.mark.parametrize("fused", [False, True])
def test_beyond_a_chunk_only_what_is_as_long_as_the_prompt_takes_more_memory(fused: bool) -> None:
    def of(*width: int, dtype: torch.dtype = torch.bfloat16) -> int:
        return sum(torch.empty(100, n, dtype=dtype).nbytes for n in width)

    g, heads = TARGET, heads_of(TARGET.kv_heads)
    queries = g.heads * heads.head_dim
    stream, sums = of(g.hidden, dtype=torch.float32), of(g.heads, dtype=torch.float32)
    longer = stream + sums + of(queries + 2 * g.kv_heads * heads.head_dim, queries)
    for draft, more in ((None, 0), (DRAFT, of(DRAFT.features * g.hidden))):
        sizes = [workspace_bytes(g, draft, positions, 50, fused=fused) for positions in (50, 150)]
        assert sizes[1] - sizes[0] == longer + more


@torch.inference_mode()
def test_without_boundaries_nothing_is_captured(plain: Pair) -> None:
    pages = foreign_pages(TARGET.layers, heads_of(TARGET.kv_heads))
    _, features = prefill_target(plain.target, pages, torch.tensor([4, 5]), torch.tensor([0]), (), ON_CPU)
    assert features is None


@pytest.mark.parametrize(
    "variant",
    [
        DRAFT,
        replace(DRAFT, fc_norm=True),
        replace(DRAFT, norm_before_fc=True),
        replace(DRAFT, hidden=64, own_embedding=False, window=16),
    ],
    ids=["plain", "each stream normed", "all streams normed", "the target's embedding"],
)
@pytest.mark.parametrize("chunk", [7, 4096])
@torch.inference_mode()
def test_the_drafts_pages_hold_the_references_keys_and_values(variant: DraftGeometry, chunk: int) -> None:
    both, tokens, blocks = pair(variant), prompt(BLOCK + 20), [4, 1]
    features = reference_features(both, tokens)
    pages = foreign_pages(1, heads_of(variant.kv_heads))
    prefill_draft(both.draft, pages, torch.tensor(tokens), torch.tensor(blocks), features, replace(ON_CPU, chunk=chunk))
    k, v = by_position(pages, 0, blocks)
    drafter, filled = both.reference.drafter, len(tokens) - 1
    assert isinstance(drafter, EagleDrafter)
    assert_rows_agree(k[:, :filled], kv_planes.plain(drafter.cache.k[0])[0, :, :filled])
    assert_rows_agree(v[:, :filled], kv_planes.plain(drafter.cache.v[0])[0, :, :filled])
    assert not k[:, filled:].any()


def reference_features(both: Pair, tokens: list[int]) -> Tensor:
    """The reference prefilled with `tokens`, its draft included; the features that the draft has seen, in bfloat16."""
    both.reference.prefill([tokens], draft=True)
    pages = foreign_pages(TARGET.layers, heads_of(TARGET.kv_heads))
    blocks = torch.arange(-(-len(tokens) // BLOCK))
    _, features = prefill_target(both.target, pages, torch.tensor(tokens), blocks, BOUNDARIES, ON_CPU)
    assert features is not None
    return features


@pytest.mark.parametrize("length", [1, BLOCK + 1])
@torch.inference_mode()
def test_the_draft_leaves_the_block_of_the_last_position_alone(plain: Pair, length: int) -> None:
    """The token after a prompt's last is not known yet."""
    pages, tokens = foreign_pages(1, heads_of(DRAFT.kv_heads)), torch.tensor(prompt(length))
    blocks, features = torch.arange(-(-length // BLOCK)), torch.zeros(length, 3 * TARGET.hidden, dtype=torch.bfloat16)
    prefill_draft(plain.draft, pages, tokens, blocks, features, ON_CPU)
    assert (pages.k[0, blocks[-1]] == FOREIGN).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_written_pages_are_read_back_by_position(length: int) -> None:
    k, v = (torch.randn(length, 2, 64).bfloat16() for _ in range(2))
    pages, blocks = foreign_pages(2, heads_of(2)), [4, 2, 1]
    write_pages(pages, 1, torch.tensor(blocks), k, v)
    for position in range(length):
        block, place = blocks[position // BLOCK], position % BLOCK
        assert torch.equal(pages.k[1, block, :, place], k[position])
        assert torch.equal(pages.v[1, block, :, :, place], v[position])
    assert (pages.k[0] == FOREIGN).all()


def filled(plain: Pair, prompts: list[list[int]], *, draft: bool) -> tuple[Buffers, list[LastRow], list[list[int]]]:
    """Buffers after a prefill of `prompts`, each prompt's last row, and its blocks."""
    sizes = Sizes(len(prompts), POSITIONS, 4)
    buffers, layout = Buffers.allocate(TARGET, DRAFT, sizes, "cpu"), assign_blocks(prompts, sizes)
    last = prefill_prompts(plain.target, plain.draft if draft else None, buffers, prompts, layout, ON_CPU)
    return buffers, last, [list(blocks) for blocks in layout.blocks]


@pytest.mark.parametrize("length", LENGTHS)
@torch.inference_mode()
def test_a_slot_reads_the_same_whether_its_prompt_was_computed_or_reused(plain: Pair, length: int) -> None:
    same, other = prompt(length), prompt(BLOCK + 9, seed=1)
    buffers, last, blocks = filled(plain, [same, other, same], draft=True)
    alone, expected, own = filled(plain, [same], draft=True)
    for pages, want in zip(buffers.pages, alone.pages, strict=True):
        for layer in range(pages.k.shape[0]):
            for slot in (0, 2):
                for mine, theirs in zip(
                    by_position(pages, layer, blocks[slot]), by_position(want, layer, own[0]), strict=True
                ):
                    assert torch.equal(mine, theirs)
    for slot in (0, 2):
        assert torch.equal(last[slot].stream, expected[0].stream)
        assert last[slot].features is not None
        assert last[slot].features is last[0].features


@pytest.mark.parametrize(("kv", "fused"), [("bf16", False), ("fp8", False), ("fp8", True)])
@torch.inference_mode()
def test_prompts_that_begin_alike_have_the_bits_that_each_has_alone(
    plain: Pair, kv: KvMode, fused: bool, on_host: None
) -> None:
    """Chunks are as long as a block. In the second call all prompts begin with what the first has left."""
    mode, whole = PrefillMode(fused, PrefillAttention((Library.TORCH,))), prompt(2 * BLOCK + 5)
    one, two = [*whole[: 2 * BLOCK], 3, 3, 3, 3, 3], [*whole[: 2 * BLOCK + 1], 4, 4, 4, 4]
    sizes = Sizes(5, POSITIONS, 4, kv=KvModes(kv, kv))

    def filled_by(b: Buffers, prompts: list[list[int]], cached: Cached = ()) -> tuple[CacheLayout, list[list[Tensor]]]:
        layout = assign_blocks(prompts, sizes, BLOCK, cached)
        rows = prefill_prompts(plain.target, plain.draft, b, prompts, layout, replace(mode, chunk=BLOCK))
        caches = [[t[:, list(own)] for pages in b.pages for t in tensors_of(pages)] for own in layout.blocks]
        return layout, [[*cache, *tensors_of(row)] for cache, row in zip(caches, rows, strict=True)]

    shared, first_call, second_call = (
        Buffers.allocate(TARGET, DRAFT, sizes, "cpu"),
        [whole, one, two, two, whole[:-1]],
        [two, whole],
    )
    layout, left = filled_by(shared, first_call)
    assert layout.start == (0, BLOCK, 2 * BLOCK, len(two), 0) and layout.reused_positions == 5 * BLOCK
    again, left_again = filled_by(shared, second_call, tuple(zip(map(tuple, first_call), layout.blocks, strict=True)))
    assert again.start == (2 * BLOCK, 2 * BLOCK) and {own[:2] for own in again.blocks} == {layout.blocks[0][:2]}
    for tokens, mine in zip([*first_call, *second_call], [*left, *left_again], strict=True):
        _, (alone,) = filled_by(Buffers.allocate(TARGET, DRAFT, sizes, "cpu"), [tokens])
        assert all(torch.equal(*pair) for pair in zip(mine, alone, strict=True))


@torch.inference_mode()
def test_the_last_row_is_the_references(plain: Pair) -> None:
    tokens = prompt(BLOCK + 1)
    _, (last,), _ = filled(plain, [tokens], draft=True)
    engine, rows = plain.reference, torch.arange(len(tokens))[None]
    stream, features = target_forward(
        engine.tw, TARGET, engine.table, engine.cache.slots(0, 1), torch.tensor([tokens]), rows, BOUNDARIES
    )
    assert features is not None
    assert last.features is not None
    assert_rows_agree(last.stream, stream[0, -1])
    assert_rows_agree(last.features, features[0, -1])


@torch.inference_mode()
def test_without_the_draft_its_pages_stay_empty(plain: Pair) -> None:
    buffers, (last,), _ = filled(plain, [prompt(9)], draft=False)
    assert buffers.draft is not None
    assert not buffers.draft.pages.k.any()
    assert last.features is None
