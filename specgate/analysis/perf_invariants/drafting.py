"""I3: a request stops drafting only when it ends. Counted from steps, or bounded by what a server counts.

It is asked of engines that promise a draft in every step. Of others that have one, chains may be shorter than K, but
not all of one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Final

from specgate.analysis.checks.drafting import left_multi_token_mode
from specgate.analysis.perf_invariants.evidence import Evidence, total_of
from specgate.analysis.speculation.drafting import (
    SINGLE_TOKEN,
    SINGLE_TOKEN_MODE,
    promises_k,
    short_of,
    shortness_in_words,
    single_token,
)
from specgate.contract import OWN_LENGTHS, Block, Budget, CellResult, EngineFacts, Held, Invariant
from specgate.contract.samples.counters import JOINED_OUTPUTS

UNDRAFTED: Final = 0.02

"""The largest share of steps that may be in doubt for drafting to be seen from outside: the last steps of requests."""


def always_drafting(
    result: CellResult, blocks: Sequence[Block], budget: Budget, facts: EngineFacts | None
) -> Invariant:
    """I3: no request-step had fewer drafts than K without a reason, counted by the harness from the steps.

    A server shows no steps. That it had steps without drafts, or chains shorter than K, follows from its totals. That
    it had no step without is seen only where few of its steps can have been (`undrafted_at_most`).
    """
    if not result.cell.role.speculative:
        return Invariant("I3", Held.HELD, "nothing_to_leave", "a baseline block drafts nothing")
    if facts is not None and facts.sets_lengths:
        message = f"not asked: its method sets the lengths of its drafts ({facts.details[OWN_LENGTHS]})"
        return Invariant("I3", Held.HELD, "no_promise", message)
    if not blocks:
        return Invariant("I3", Held.UNSEEN, "not_counted", "no block was measured")
    name, count = "disabled_multitoken_other", left_multi_token_mode(blocks, budget)
    if count is None:
        name, count = "undrafted_steps", total_of("undrafted_steps", blocks) or 0
        if not count:
            if (short := short_chains(blocks, facts)) is not None:
                return short
            most = undrafted_at_most(blocks)
            return not_counted() if most is None else drafting_bound(most, blocks)
    message = f"{name} = {count} over {len(blocks)} timed blocks"
    if count:
        return Invariant("I3", Held.BROKEN, "left_multi_token_mode", message, {name: count})
    return Invariant("I3", Held.HELD, "counted_zero", message, {name: count})


def short_chains(blocks: Sequence[Block], facts: EngineFacts | None) -> Invariant | None:
    """I3 of a server whose steps with a draft had fewer than K tokens; None where they had K, or may have fewer."""
    records = [b.served.acceptance for b in blocks if b.served is not None and b.served.acceptance is not None]
    if not records:
        return None
    record, requests = reduce(add, records), sum(len(b.tokens) for b in blocks)
    single, whole = single_token(record, requests), record.k * record.steps
    if not single and (not promises_k(facts) or short_of(record, requests) <= UNDRAFTED * whole):
        return None
    message = shortness_in_words(record, facts.backend if facts else "")
    evidence: Evidence = {"drafted_tokens": record.drafted, "k_times_steps": whole}
    if single:
        return Invariant("I3", Held.BROKEN, SINGLE_TOKEN, f"{SINGLE_TOKEN_MODE}: {message}", evidence)
    return Invariant("I3", Held.BROKEN, "short_drafts", message, evidence)


def not_counted() -> Invariant:
    return Invariant("I3", Held.UNSEEN, "not_counted", "a server does not show which of its steps had drafts")


def undrafted_at_most(blocks: Sequence[Block]) -> int | None:
    """Most request-steps of a server's `blocks` that can have had no draft; None if it does not count its steps, or
    lost some.

    With S steps that drafted, A accepted drafts, E tokens emitted behind the first, t tokens cut off at the ends of
    requests and u steps without a draft, S + A + u − t = E. At most K tokens of a request are cut off. So u is at most
    E − S − A + K requests. Where every chunk behind the first is a step, and there are S, u is 0.
    """
    most = 0
    for block in blocks:
        record = block.served.acceptance if block.served else None
        if record is None or block.served is None or block.counters.get(JOINED_OUTPUTS):
            return None
        chunks = sum(len(r.chunk_ns) - 1 for r in block.served.requests)
        if chunks != record.steps:
            most += max(0, record.k * len(block.tokens) - record.truncated)
    return most


def drafting_bound(most: int, blocks: Sequence[Block]) -> Invariant:
    """I3 of a server that has counted no step without a draft, of which `most` can have been without."""
    steps = sum(b.served.acceptance.steps for b in blocks if b.served and b.served.acceptance)
    evidence: Evidence = {
        "undrafted_at_most": most,
        "drafted_steps": steps,
        "source": "the server's counters and its stream",
    }
    if most > UNDRAFTED * steps:
        message = f"{most} of {steps + most} steps can have been without a draft: too many to tell"
        return Invariant("I3", Held.UNSEEN, "not_counted", message, evidence)
    message = f"all {steps} steps drafted, by the server's counters" + (
        f"; at the requests' ends at most {most} more can have been without a draft" if most else " and its stream"
    )
    return Invariant("I3", Held.HELD, "drafting_seen", message, evidence)
