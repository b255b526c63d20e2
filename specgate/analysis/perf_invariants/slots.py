"""I4 and I5: no integrity failure was counted, and the tokens of every slot account for its steps."""

from __future__ import annotations

from collections.abc import Sequence

from specgate.analysis.perf_invariants.evidence import total_of
from specgate.core import Block, CellResult, Held, Invariant


def counted_zero(id_: str, counter: str, blocks: Sequence[Block], broken: str) -> Invariant:
    """I4: a counter of the engine that must be 0 in every timed block. `broken`: the reason code of a broken one."""
    found = total_of(counter, blocks)
    if found is None:
        return Invariant(id_, Held.UNSEEN, "not_counted", f"the engine does not count {counter} in every block")
    held = Held.BROKEN if found else Held.HELD
    message = f"{counter} = {found} over {len(blocks)} timed blocks"
    return Invariant(id_, held, broken if found else "counted_zero", message, {counter: found})


def laid_out(result: CellResult, blocks: Sequence[Block], *, outside: bool = False) -> Invariant:
    """I5: the tokens of every slot account for its steps. The measurement checks this identity; a cell that breaks it
    has failed.

    A server shows no steps. Seen from `outside`, each of its answers has a stream of its own, whose tokens are as many
    as its usage record and all chunks say, and those of all answers account for the server's counters.
    """
    if not blocks or result.status == "failed":
        return Invariant("I5", Held.BROKEN, "counter_identity", result.reason or "no block was measured")
    if outside and all(streams_of_their_own(b) for b in blocks):
        answers = sum(len(b.tokens) for b in blocks)
        message = f"each of {answers} answers has its own stream, with as many tokens as its chunks and usage say"
        return Invariant("I5", Held.HELD, "per_answer", message, {"answers": answers})
    if any(b.served is not None for b in blocks):
        return Invariant("I5", Held.UNSEEN, "no_steps", "a server does not show the steps of its slots")
    slots = sum(len(b.tokens) for b in blocks)
    message = f"the tokens of {slots} slots in {len(blocks)} blocks account for their own steps"
    return Invariant("I5", Held.HELD, "per_slot", message, {"slots": slots})


def streams_of_their_own(block: Block) -> bool:
    """Whether each slot is an answer of a server whose chunks hold just its tokens."""
    if block.served is None or len(block.served.requests) != len(block.tokens):
        return False
    return all(sum(r.chunk_tokens) == len(t) for r, t in zip(block.served.requests, block.tokens, strict=True))
