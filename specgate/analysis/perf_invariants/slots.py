"""I4 and I5: no integrity failure was counted, and the tokens of every slot account for its steps."""

from __future__ import annotations

from collections.abc import Sequence

from specgate.analysis.perf_invariants.evidence import total_of
from specgate.contract import Block, CellResult, Held, Invariant

KV, MASKS = "kv_integrity_failures", "mask_integrity_failures"
TREES = "tree_tokens"
"""The counter of draft tokens in trees: blocks that have it were decoded with attention masks."""


def intact(blocks: Sequence[Block]) -> Invariant:
    """I4: the engine counts no broken cache span in any timed block, and where it drafts trees, no broken mask."""
    for counter, broken in ((KV, "kv_integrity"), (MASKS, "mask_integrity")):
        if total := sum(block.counters.get(counter, 0) for block in blocks):
            message = f"{counter} = {total} over {len(blocks)} timed blocks"
            return Invariant("I4", Held.BROKEN, broken, message, {counter: total})
    counters = (KV, MASKS) if any(TREES in block.counters for block in blocks) else (KV,)
    if missing := [counter for counter in counters if total_of(counter, blocks) is None]:
        message = f"the engine does not count {' and '.join(missing)} in every block"
        return Invariant("I4", Held.UNSEEN, "not_counted", message, dict.fromkeys(set(counters) - set(missing), 0))
    message = f"{', '.join(f'{counter} = 0' for counter in counters)} over {len(blocks)} timed blocks"
    return Invariant("I4", Held.HELD, "counted_zero", message, dict.fromkeys(counters, 0))


def laid_out(result: CellResult, blocks: Sequence[Block]) -> Invariant:
    """I5: the tokens of every slot account for its steps. The measurement checks this identity; a cell that breaks it
    has failed.

    A server shows no steps. Seen from outside, each of its answers has a stream of its own, whose tokens are as many
    as its usage record and all chunks say, and those of all answers account for the server's counters.
    """
    if not blocks or result.status == "failed":
        return Invariant("I5", Held.BROKEN, "counter_identity", result.reason or "no block was measured")
    if all(streams_of_their_own(b) for b in blocks):
        answers = sum(len(b.tokens) for b in blocks)
        message = f"each of {answers} answers has its own stream, with as many tokens as its chunks and usage say"
        return Invariant("I5", Held.HELD, "per_answer", message, {"answers": answers})
    if any(b.served is not None for b in blocks):
        return Invariant("I5", Held.UNSEEN, "no_steps", "a server does not show the steps of its slots")
    slots = sum(len(b.tokens) for b in blocks)
    message = f"the tokens of {slots} slots in {len(blocks)} blocks account for their own steps"
    return Invariant("I5", Held.HELD, "per_slot", message, {"slots": slots})


def streams_of_their_own(block: Block) -> bool:
    """True if each slot is an answer of a server whose chunks hold just its tokens."""
    if block.served is None or len(block.served.requests) != len(block.tokens):
        return False
    return all(sum(r.chunk_tokens) == len(t) for r, t in zip(block.served.requests, block.tokens, strict=True))
