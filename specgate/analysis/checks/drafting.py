"""Request-steps of spec blocks that drafted fewer than K tokens, and the acceptance lengths that these inflate.

An engine counts its own reasons, and its count is its word. Where steps are visible, the harness counts instead. Three
things explain a short draft: the draft could not be used (`disabled_draft_error`, which makes the cell INVALID by
itself), a token limit that leaves no room for more (a step with room for r tokens needs no more than r − 1 drafts), and
an engine that ends chains on purpose, as it was asked to, but never before the first draft (`chains_ended_early`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate.analysis.checks.identities import draft_errors, undrafted
from specgate.contract import Block, Budget, CellResult
from specgate.contract.samples.counters import ENDED_EARLY

MISSED_SHARE = 0.01
"""How far the acceptance length over the steps with drafts may exceed that over all steps, as a share of it. Engines
that draft in every step have 0; what servers count can be off by a step or two per block.
"""


def left_multi_token_mode(blocks: Sequence[Block], budget: Budget) -> int | None:
    """`disabled_multitoken_other`: request-steps with fewer drafts than K for which there is no reason.

    An engine's own count is taken where it is the larger one. None where a block does not show its steps, and its
    engine counts none.
    """
    counted = sum(block.counters.get("disabled_multitoken_other", 0) for block in blocks)
    if any(block.served is not None for block in blocks):
        return counted or None
    return max(counted, sum(short_steps(block, budget) for block in blocks))


def short_steps(block: Block, budget: Budget) -> int:
    """Request-steps of a spec block that drafted fewer tokens than they could have, without those whose draft could not
    be used, and those whose chain was ended on purpose.
    """
    drafts = list(drafts_of(block, budget))
    ended = min(block.counters.get(ENDED_EARLY, 0), sum(0 < drafted < possible for drafted, possible in drafts))
    return max(0, sum(drafted < possible for drafted, possible in drafts) - draft_errors(block) - ended)


def missed_steps(block: Block, budget: Budget) -> int:
    """Request-steps of a spec block that had no draft although they could have had one, whatever the reason."""
    if block.served is not None:
        return block.counters.get("undrafted_steps", 0)
    if not undrafted(block):
        return 0
    return sum(drafted == 0 < possible for drafted, possible in drafts_of(block, budget))


def drafts_of(block: Block, budget: Budget) -> Iterator[tuple[int, int]]:
    """(drafted tokens, most draft tokens that could be of use) of every active request-step of a spec block."""
    for slot in range(len(block.tokens)):
        emitted = 1
        for accepts, drafts in zip(block.accepted, block.drafted, strict=True):
            if accepts[slot] < 0:
                break
            room = budget.new_tokens - emitted if budget.new_tokens is not None else block.role.k + 1
            yield drafts[slot], min(block.role.k, room - 1)
            emitted += accepts[slot] + 1


def inflated_length(result: CellResult) -> tuple[float, float] | None:
    """(acceptance length, tokens per step over all steps) where the second does not explain the first; else None.

    With s request-steps that had a draft and u that had none, a accepted drafts, e emitted and t truncated tokens:
    e + t = (s + a) + u. The acceptance length is (s + a) / s; over all steps it is (e + t) / (s + u), which is smaller
    as soon as steps without drafts were left out. Both count truncated tokens, so that real ends do not part them.
    """
    record, missed = result.acceptance, result.values.get("undrafted_steps")
    if record is None or not record.steps or missed is None or not missed.value:
        return None
    length = 1 + record.accepted / record.steps
    over_all = (record.steps + record.accepted + missed.value) / (record.steps + missed.value)
    return (length, over_all) if length > over_all * (1 + MISSED_SHARE) else None
