"""Accept counts of later rounds, against those of the first one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.analysis.checks.repeats import check_repeats
from specgate.contract import Block, Cell, Role
from specgate.errors import InvalidResult
from tests.support.factories import blocks_of, plan_of, scenario


def measured(later: tuple[int, ...], first: tuple[int, ...] = (1, 0, 2)) -> list[Block]:
    """Blocks of a spec cell whose texts are the same in every round, as far as they go."""
    plan = plan_of(scenario("a", spec=(3,), prompt_sets=4, rounds=2))
    cell, seen, made = Cell(plan.points[0], Role(3)), set[int](), list[Block]()
    for block in (b for b in blocks_of(plan, steps=24) if b.cell == cell and not b.warmup):
        cycle = later if block.prompt_set in seen else first
        seen.add(block.prompt_set)
        accepted = tuple((cycle[i % len(cycle)],) for i in range(24))
        length = 1 + sum(a + 1 for (a,) in accepted)
        made.append(replace(block, accepted=accepted, drafted=((3,),) * 24, tokens=(tuple(range(2, 2 + length)),)))
    return made


@pytest.mark.parametrize("later", [(1, 0, 2), (1, 0, 0), (0, 0, 0)])
def test_counts_that_repeat_or_fall_are_no_memory(later: tuple[int, ...]) -> None:
    check_repeats(measured(later))


@pytest.mark.parametrize("later", [(3, 3, 3), (1, 0, 3), (1, 1, 2), (1, 0, 2, 3)])
def test_counts_that_grow_after_the_same_tokens_are(later: tuple[int, ...]) -> None:
    with pytest.raises(InvalidResult, match=r"accept more drafts than in an earlier round, after the same tokens"):
        check_repeats(measured(later))


def test_other_texts_are_not_compared() -> None:
    blocks = measured((3, 3, 3))
    seen = set[int]()
    for i, block in enumerate(blocks):
        if block.prompt_set in seen:
            blocks[i] = replace(block, tokens=(tuple(t + 500 for t in block.tokens[0]),))
        seen.add(block.prompt_set)
    check_repeats(blocks)
