"""Layout of prompts in the cache: properties that hold for any prompts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.state.slots import FREE, SHARED
from specgate.backends.eagle3.cupy.memory.sizes import CacheLayout, Sizes, assign_blocks

SIZES = Sizes(slots=6, positions=4 * BLOCK + 10, max_rows=4)
EDGES = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 4 * BLOCK, 4 * BLOCK + 9]

lengths = st.one_of(st.sampled_from(EDGES), st.integers(1, SIZES.positions - 1))
# A prompt is told from another by one token, so that equal, unequal and prefix-sharing ones all come up.
prompts = st.builds(
    lambda length, at: [5] * min(at, length - 1) + [6] + [5] * (length - 1 - at),
    lengths,
    st.sampled_from([0, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1, 4 * BLOCK + 9]),
)
batches = st.lists(prompts, min_size=1, max_size=SIZES.slots).flatmap(
    lambda some: st.lists(st.sampled_from(some), min_size=1, max_size=SIZES.slots)
)


def blocks_of(layout: CacheLayout, slot: int) -> list[int]:
    """As the kernels read them."""
    return layout.kv.block_table[slot, : int(layout.kv.held[slot])].tolist()


@given(batches)
def test_a_slot_holds_just_the_blocks_that_its_prompt_needs(batch: list[list[int]]) -> None:
    layout = assign_blocks(batch, SIZES)
    for slot, prompt in enumerate(batch):
        blocks = blocks_of(layout, slot)
        assert (len(blocks) - 1) * BLOCK < len(prompt) <= len(blocks) * BLOCK
        assert len(set(blocks)) == len(blocks)
        assert blocks == list(layout.blocks[slot])
        assert layout.kv.prompt_blocks[slot] == len(blocks)
    assert not layout.kv.held[len(batch) :].any()


@given(batches)
def test_every_block_is_one_slots_or_shared_or_free(batch: list[list[int]]) -> None:
    layout = assign_blocks(batch, SIZES)
    holders = Counter(block for slot in range(len(batch)) for block in blocks_of(layout, slot))
    for block, owner in enumerate(layout.kv.owner.tolist()):
        if holders[block] == 1:
            assert block in blocks_of(layout, owner)
        else:
            assert owner == (SHARED if holders[block] else FREE)


@given(batches)
def test_the_free_stack_is_exactly_the_rest_lowest_on_top(batch: list[list[int]]) -> None:
    layout = assign_blocks(batch, SIZES)
    used = {block for slot in range(len(batch)) for block in blocks_of(layout, slot)}
    free = layout.kv.free_blocks[: int(layout.kv.free_count)].tolist()
    assert free == sorted(set(range(SIZES.blocks)) - used, reverse=True)


@given(batches)
def test_a_step_writes_to_blocks_of_its_own_slot_alone(batch: list[list[int]]) -> None:
    layout = assign_blocks(batch, SIZES)
    for slot, prompt in enumerate(batch):
        blocks = blocks_of(layout, slot)
        first_written = len(prompt) - 1  # the draft extends from there; the target writes from the next position on
        for position in range(first_written, len(blocks) * BLOCK):
            assert layout.kv.owner[blocks[position // BLOCK]] == slot


@given(batches)
def test_equal_prompts_share_all_but_their_last_block_and_others_nothing(batch: list[list[int]]) -> None:
    layout = assign_blocks(batch, SIZES)
    for slot, prompt in enumerate(batch):
        twin = layout.twin[slot]
        assert twin == batch.index(prompt)
        assert layout.private[slot] == (len(layout.blocks[slot]) if twin == slot else 1)
        for other in range(slot):
            common = set(layout.blocks[slot]) & set(layout.blocks[other])
            assert common == (set(layout.blocks[slot][:-1]) if batch[other] == prompt else set())
    assert layout.reused_positions == sum(
        BLOCK * ((len(prompt) - 1) // BLOCK) for slot, prompt in enumerate(batch) if batch.index(prompt) != slot
    )


def shared_tokens(one: list[int], other: list[int]) -> int:
    """How many positions of `one` may come from `other`: chunks of two blocks, all but its last position."""
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    chunk = 2 * BLOCK
    return (min(common, len(one) - 1) - 1) // chunk * chunk if len(one) == len(other) and common > chunk else 0


@given(batches, batches)
def test_prompts_of_one_length_share_the_chunks_that_they_begin_with_alike_and_so_do_calls(
    before: list[list[int]], batch: list[list[int]]
) -> None:
    """A shared block holds the same tokens and has the same token behind it, and belongs to nobody else."""
    chunk, first = 2 * BLOCK, assign_blocks(before, SIZES, 2 * BLOCK)
    layout = assign_blocks(batch, SIZES, chunk, tuple(zip(map(tuple, before), first.blocks, strict=True)))
    for made, prompts, earlier in ((first, before, []), (layout, batch, before)):
        for slot, prompt in enumerate(prompts):
            if prompt in prompts[:slot]:
                assert (made.twin[slot], made.start[slot]) == (prompts.index(prompt), len(prompt))
                continue
            assert made.start[slot] == max(
                (shared_tokens(prompt, other) for other in [*earlier, *prompts[:slot]]), default=0
            )
            assert made.twin[slot] == slot and made.private[slot] == len(made.blocks[slot]) - made.start[slot] // BLOCK
    cached = [*zip(before, first.blocks, strict=True)]
    for slot, prompt in enumerate(batch):
        for at, block in enumerate(layout.blocks[slot]):
            if (at + 1) * BLOCK <= layout.start[slot] < len(prompt):
                sources = [*cached, *zip(batch[:slot], layout.blocks[:slot], strict=True)]
                same = [of for of, own in sources if own[at : at + 1] == (block,) and len(of) == len(prompt)]
                assert any(of[: (at + 1) * BLOCK + 1] == prompt[: (at + 1) * BLOCK + 1] for of in same)
            elif layout.twin[slot] == slot:
                assert all(block not in own for own in layout.blocks[:slot])


def test_every_slot_can_still_grow_to_its_longest() -> None:
    layout = assign_blocks([[5] * (SIZES.positions - 1)] * SIZES.slots, SIZES)
    missing = SIZES.slots * SIZES.max_blocks - sum(map(len, layout.blocks))
    assert int(layout.kv.free_count) >= missing
