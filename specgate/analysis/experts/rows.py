"""The rows of the target's passes, as the records of a block give them."""

from __future__ import annotations

from specgate.contract import Block


def rows_of_steps(block: Block) -> tuple[tuple[int, ...], ...]:
    """Step → rows of every slot that was active: its newest token and its drafts."""
    return tuple(
        tuple(drafts + 1 for accepts, drafts in zip(*step, strict=True) if accepts >= 0)
        for step in zip(block.accepted, block.drafted, strict=True)
    )
