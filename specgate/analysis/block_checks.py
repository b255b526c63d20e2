"""Identities that the raw samples of a block must satisfy before any figure of it may be quoted."""

from __future__ import annotations

from collections.abc import Sequence

from specgate.analysis.prompt_acceptance import pooled
from specgate.analysis.served import check_served
from specgate.core import Block
from specgate.errors import InvalidResult


def contradiction(blocks: Sequence[Block]) -> str | None:
    """The first contradiction within the blocks of one cell, as a sentence; None where there is none."""
    try:
        for block in blocks:
            check_block(block)
        if blocks[0].role.speculative:
            pooled(blocks)
    except InvalidResult as error:
        return str(error)
    return None


def check_block(block: Block) -> None:
    """Check a block. Raises InvalidResult with the place and the equation that fails.

    Per step and slot: 0 ≤ accepted ≤ drafted ≤ k, or both are −1 (the slot had finished). Per slot: emitted tokens = Σ
    over its steps of (accepted + 1) − truncated, not counting the prefill token. Steps counted as
    `disabled_draft_error` had no draft.
    """
    where = f"{block.cell.key} set {block.prompt_set} round {block.round}"
    if block.served is not None:
        check_served(block, block.served, where)
        return
    batch, k = len(block.tokens), block.role.k
    widths = {len(row) for row in (*block.accepted, *block.drafted, block.truncated, block.finish)}
    heights = {len(block.accepted), len(block.drafted), len(block.step_ns)}
    if widths != {batch} or len(heights) != 1:
        raise InvalidResult(f"{where}: {batch} slots, but rows of {widths} slots and {heights} steps")
    for step, (accepts, drafts) in enumerate(zip(block.accepted, block.drafted, strict=True)):
        for slot, (a, d) in enumerate(zip(accepts, drafts, strict=True)):
            if not (a == d == -1 or 0 <= a <= d <= k):
                raise InvalidResult(f"{where} step {step} slot {slot}: accepted {a} of {d} drafts at k = {k}")
    for slot, tokens in enumerate(block.tokens):
        accepted = [row[slot] for row in block.accepted if row[slot] >= 0]
        expected = sum(accepted) + len(accepted) - block.truncated[slot]
        if len(tokens) - 1 != expected:
            raise InvalidResult(
                f"{where} slot {slot}: emitted {len(tokens) - 1}, but steps + accepted - truncated = "
                f"{len(accepted)} + {sum(accepted)} - {block.truncated[slot]}"
            )
    if not 0 <= draft_errors(block) <= undrafted(block):
        raise InvalidResult(
            f"{where}: disabled_draft_error = {draft_errors(block)}, but {undrafted(block)} request-steps had no draft"
        )


def undrafted(block: Block) -> int:
    """Request-steps that decoded without a draft; in a baseline block, all of them."""
    return sum(d == 0 for row in block.drafted for d in row)


def draft_errors(block: Block) -> int:
    """Request-steps that had no draft because it could not be used."""
    return block.counters.get("disabled_draft_error", 0)
