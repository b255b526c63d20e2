"""I4 by what an engine shows of its cache and its trees in drawn steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.analysis.perf_invariants.spans import intact
from specgate.contract import Block, BlockTrace, Held, Invariant, Role
from specgate.contract.samples.spans import ShownSpans, StepSpans
from tests.support.factories import block, plan_of, scenario, spans_of

PARENTS = (0, 0, 0, 1, 2, 3)
MASKS = ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 2, 4), (0, 1, 3, 5))
"""A tree of two branches, of three and two nodes."""


def timed() -> Block:
    """A block of two slots, of twelve steps of spec-3."""
    plan = plan_of(scenario(batch=[2]))
    return block(next(r for r in plan.rounds if not r.warmup and r.prompt_set == 0), Role(3))


def judged(shown: ShownSpans | None, blocks: list[Block] | None = None) -> Invariant:
    trace = BlockTrace("a cell", 0, 0, "profiler", 4, (), spans=shown)
    return intact(blocks or [timed()], trace)


def changed(change: Callable[[StepSpans], StepSpans], step: int = 1) -> ShownSpans:
    shown = spans_of(timed())
    return replace(shown, steps=tuple(change(s) if i == step else s for i, s in enumerate(shown.steps)))


def with_table(step: StepSpans, slot: int, place: int, block_id: int) -> StepSpans:
    table = list(step.tables[slot])
    table[place] = block_id
    return replace(step, tables=tuple(tuple(table) if s == slot else t for s, t in enumerate(step.tables)))


def test_intact_spans_hold_and_say_how_many_steps_were_looked_at() -> None:
    invariant = judged(spans_of(timed()))
    assert (invariant.held, invariant.message) == (Held.HELD, "cache spans of 2 slots are intact in 3 drawn steps")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: with_table(s, 1, -1, s.tables[0][-1]), "slot 0 may write block 4, and slot 1 has it, too"),
        (lambda s: with_table(s, 1, -1, s.free[0]), "block 5 is free, and slot 1 has it"),
        (lambda s: with_table(s, 0, 0, s.tables[0][1]), "the 5 blocks of slot 0 are not each one of 200, once"),
        (lambda s: with_table(s, 0, 0, 200), "the 5 blocks of slot 0 are not each one of 200, once"),
        (lambda s: replace(s, free=(*s.free, s.free[0])), "a block is free twice"),
        (lambda s: replace(s, lengths=(s.lengths[0] + 1, s.lengths[1])), "slot 0 has 74 committed positions, and its"),
        (lambda s: replace(s, lengths=(s.lengths[0], -1)), "slot 1 has -1 committed positions, and its tokens make 70"),
        (lambda s: replace(s, writes=((73, 76), s.writes[1])), "slot 0 needs 4 positions from 73 on, and may write up"),
        (lambda s: replace(s, writes=((73, 99), s.writes[1])), "slot 0 may write positions 73 to 99, and stands from"),
        (lambda s: replace(s, writes=((74, 77), s.writes[1])), "slot 0 may write positions 74 to 77, and stands from"),
        (
            lambda s: replace(with_table(s, 0, 0, 7), free=(0, *s.free[:2], *s.free[3:])),
            "committed positions of slot 0 lie in other blocks than before",
        ),
    ],
)
def test_a_broken_span_of_one_step_is_named(change: Callable[[StepSpans], StepSpans], message: str) -> None:
    invariant = judged(changed(change))
    assert (invariant.held, invariant.reason_code) == (Held.BROKEN, "kv_integrity")
    assert message in invariant.message and invariant.message.startswith("step 3: ")


def test_blocks_that_are_only_read_may_be_shared() -> None:
    """Equal prompts share what no step will ever write."""
    shown = spans_of(timed())
    steps = tuple(with_table(s, 1, 0, s.tables[0][0]) for s in shown.steps)
    assert judged(replace(shown, steps=steps)).held is Held.HELD


def with_trees(step: StepSpans, node: int = 0, parent: int = 0, mask: tuple[int, ...] = (0,)) -> StepSpans:
    """The same step with the tree in both slots; in slot 1, node `node` has this parent and this mask."""
    parents, masks = list(PARENTS), list(MASKS)
    parents[node], masks[node] = parent, mask
    return replace(step, parents=(PARENTS, tuple(parents)), masks=(MASKS, tuple(masks)))


@pytest.mark.parametrize(
    ("node", "parent", "mask", "message"),
    [
        (3, 1, (0, 2, 3), "node 3 of slot 1 looks at [0, 2, 3]: [0, 1, 3] is right"),
        (5, 3, (0, 1, 2, 3, 5), "node 5 of slot 1 looks at [0, 1, 2, 3, 5]: [0, 1, 3, 5] is right"),
        (2, 0, (0,), "node 2 of slot 1 looks at [0]: [0, 2] is right"),
        (4, 5, (0, 2, 4), "node 4 of slot 1 has the parent 5: one that comes before it is right"),
        (0, 0, (), "node 0 of slot 1 looks at []: [0] is right"),
    ],
)
def test_a_node_that_looks_at_what_is_not_above_it_breaks_the_masks(
    node: int, parent: int, mask: tuple[int, ...], message: str
) -> None:
    shown = spans_of(timed())
    first, second, last = map(with_trees, shown.steps)
    invariant = judged(replace(shown, steps=(first, with_trees(second, node, parent, mask), last)))
    assert (invariant.reason_code, invariant.message) == ("mask_integrity", f"step 3: {message}")


def test_a_tree_deeper_than_the_role_is_no_tree_of_it() -> None:
    shown = spans_of(timed())
    block_ = replace(timed(), role=Role(2))
    steps = tuple(map(with_trees, shown.steps))
    assert "has 3 levels: at most 2 are right" in judged(replace(shown, steps=steps), [block_]).message


def test_trees_without_masks_are_not_seen_and_whole_ones_hold() -> None:
    shown, blocks = spans_of(timed()), [replace(timed(), counters={"tree_tokens": 60, "mask_integrity_failures": 0})]
    assert judged(shown, blocks).reason_code == "no_masks"
    whole = judged(replace(shown, steps=tuple(map(with_trees, shown.steps))), blocks)
    assert (whole.held, whole.message) == (Held.HELD, "cache spans and masks of 2 slots are intact in 3 drawn steps")


def test_steps_of_another_text_hold_nothing_and_break_what_needs_no_text() -> None:
    shown = replace(spans_of(timed()), tokens=((1, 2), (3, 4)))
    assert (judged(shown).held, judged(shown).reason_code) == (Held.UNSEEN, "other_text")
    lost = replace(shown, steps=tuple(with_table(s, 1, -1, s.tables[0][-1]) for s in shown.steps))
    assert judged(lost).reason_code == "kv_integrity"
    assert judged(replace(shown, steps=(), tokens=timed().tokens)).reason_code == "other_text"


def test_an_engine_that_counts_its_own_failures_is_its_own_word_and_a_count_breaks() -> None:
    counted = [replace(timed(), counters={"kv_integrity_failures": 0})]
    assert (judged(None, counted).held, judged(None, counted).reason_code) == (Held.UNSEEN, "engines_own_word")
    assert judged(None).reason_code == "not_counted"
    broken = [replace(timed(), counters={"kv_integrity_failures": 1})]
    assert judged(spans_of(timed()), broken).held is Held.BROKEN
