"""Cache blocks and trees of one step, read from the device for the harness: `protocols.ShowsSpans`."""

from __future__ import annotations

from dataclasses import replace

from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.contract.samples.spans import StepSpans


def before_writing(cycle: Cycle, b: Buffers) -> StepSpans:
    """The cache before the next step of `cycle`, which has reserved its blocks. The stream has to be idle."""
    slots, kv, count = b.slots, b.kv, cycle.slots
    running = set(slots.active[: int(slots.active_count)].tolist())
    begins = cycle.way.begins(b)
    lengths, sizes = slots.length[:count].tolist(), kv.held[:count].tolist()
    return StepSpans(
        step=int(slots.step),
        lengths=tuple(length if slot in running else -1 for slot, length in enumerate(lengths)),
        tables=tuple(tuple(row[:size]) for row, size in zip(kv.block_table[:count].tolist(), sizes, strict=True)),
        writes=tuple(
            # From the position before the first: the draft writes that of the newest committed token.
            (max(0, begin - 1), begin + cycle.reserved) if slot in running else (0, 0)
            for slot, begin in enumerate(begins[:count].tolist())
        ),
        free=tuple(kv.free_blocks[: int(kv.free_count)].tolist()),
    )


def with_trees(step: StepSpans, cycle: Cycle, b: Buffers) -> StepSpans:
    """`step` with the trees that it has verified; of chains as it is. The stream has to be idle."""
    if not cycle.drafting.branches or b.tree is None:
        return step
    parents, masks = (t[: cycle.slots, : cycle.rows].tolist() for t in (b.tree.parents, b.tree.masks))
    running = [length >= 0 for length in step.lengths]
    return replace(
        step,
        parents=tuple(tuple(row) if runs else () for row, runs in zip(parents, running, strict=True)),
        masks=tuple(tuple(map(nodes_of, row)) if runs else () for row, runs in zip(masks, running, strict=True)),
    )


def nodes_of(mask: int) -> tuple[int, ...]:
    """The nodes whose bits are set in a signed 64-bit mask."""
    return tuple(node for node in range(64) if mask >> node & 1)
