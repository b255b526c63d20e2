"""Select the blocks that may be judged, and pair them: those of rounds in which one engine process ran every role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate.analysis.grouping import grouped
from specgate.contract import BASELINE, Block, Cell, Plan, Round


def whole_generation(blocks: Sequence[Block], round_: Round) -> int | None:
    """The worker generation that ran every role of `round_`; None where none did. A pair must come from one process.

    Where several did, it is the newest: a measured round that was whole is measured again only as a part of a point
    that another machine measured anew. Warm-up rounds run again in every process, and the oldest counts.
    """
    ran = {(b.role, b.worker_generation) for b in blocks if in_round(b, round_)}
    whole = [s for s in {s for _, s in ran} if all((role, s) in ran for role in round_.order)]
    return (min if round_.warmup else max)(whole, default=None)


def whole_rounds(plan: Plan, blocks: Sequence[Block]) -> list[Block]:
    """The blocks that may be judged, in plan order: those of every round that one process ran completely."""
    of = grouped(blocks, lambda b: (b.point, b.prompt_set, b.round, b.warmup))
    whole = []
    for round_ in plan.rounds:
        round_blocks = of[round_.point, round_.prompt_set, round_.index, round_.warmup]
        generation = whole_generation(round_blocks, round_)
        whole += [b for b in round_blocks if b.worker_generation == generation]
    return whole


def in_round(block: Block, round_: Round) -> bool:
    """True if `block` is one of `round_`."""
    return (block.point, block.prompt_set, block.round, block.warmup) == (
        round_.point,
        round_.prompt_set,
        round_.index,
        round_.warmup,
    )


def pairs_of(blocks: Sequence[Block], cell: Cell) -> Iterator[tuple[Block, Block]]:
    """(baseline, spec) blocks that ran in the same round and the same engine process, in running order."""
    mine = [b for b in blocks if b.role in (BASELINE, cell.role) and b.point == cell.point]
    baselines = {(b.prompt_set, b.round, b.worker_generation): b for b in mine if b.role == BASELINE}
    for block in mine:
        key = (block.prompt_set, block.round, block.worker_generation)
        if block.role == cell.role and not block.warmup and key in baselines:
            yield baselines[key], block
