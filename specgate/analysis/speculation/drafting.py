"""Count what one short run drafted and accepted, and judge if that is multi-token speculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from specgate.analysis.prompt_acceptance import by_prompt, pooled
from specgate.analysis.speculation.draft_counts import check_draft_counts
from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.contract import Block
from specgate.contract.acceptance import AcceptanceRecord

NEXT_TO_NOTHING: Final = 1.1
"""An acceptance length below this is what a draft gets that does not fit its target, or has no weights."""

Active = Literal["active", "single-token", "nothing accepted", "no drafts"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """Figures of one spec block.

    `num_drafts`: request-steps with a draft. `undrafted`: those without one, None where the engine does not tell.
    `drafted`, `accepted`: draft tokens. `emitted`: tokens after the first one of each request.
    `acceptance_length`: 1 + accepted / num_drafts, in tokens; None without a draft.
    `drafted_per_step`: draft tokens per request-step with a draft.
    `steps_with_1`, `steps_with_2`: share of these steps that accepted at least 1 or 2; None where not counted.
    `accepted_at_pos[i]`: share that accepted draft token i + 1; () where not counted by position.
    `tok_s`: tokens after the first per second of decoding. One cold request: not a measurement.
    `repeated`: share of the text's 8-grams that occurred before.
    """

    k: int
    num_drafts: int
    undrafted: int | None
    drafted: int
    accepted: int
    emitted: int
    acceptance_length: float | None
    drafted_per_step: float | None
    steps_with_1: float | None
    steps_with_2: float | None
    accepted_at_pos: tuple[float, ...]
    tok_s: float | None
    repeated: float

    @property
    def state(self) -> Active:
        """`active` where several tokens are drafted per step (one, for spec-1) and more than next to nothing of them
        is accepted.
        """
        if not self.num_drafts:
            return "no drafts"
        if self.k > 1 and self.drafted <= self.num_drafts:
            return "single-token"
        return "active" if (self.acceptance_length or 1.0) >= NEXT_TO_NOTHING else "nothing accepted"


def drafting_of(block: Block) -> Drafting:
    """The figures of a spec block. Raises InvalidResult where its counts contradict each other."""
    check_draft_counts([block])
    record: AcceptanceRecord = pooled(by_prompt([block]))
    steps = record.steps
    seconds = block.decoding_ns / len(block.tokens) / 1e9
    return Drafting(
        k=block.role.k,
        num_drafts=steps,
        undrafted=undrafted_of(block),
        drafted=record.drafted,
        accepted=record.accepted,
        emitted=block.emitted,
        acceptance_length=record.acceptance_length,
        drafted_per_step=record.drafted / steps if steps else None,
        steps_with_1=sum(record.hist[1:]) / steps if steps and record.hist else None,
        steps_with_2=record.multi_token_share,
        accepted_at_pos=tuple(n / steps for n in record.accepted_at_pos) if steps else (),
        tok_s=block.emitted / seconds if seconds > 0 else None,
        repeated=max(repeated_ngram_share(tokens) for tokens in block.tokens),
    )


def undrafted_of(block: Block) -> int | None:
    """Request-steps without a draft; None where a server does not tell."""
    if block.served is not None:
        return block.counters.get("undrafted_steps")
    return sum(drafted == 0 for step in block.drafted for drafted in step)
