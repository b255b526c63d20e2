"""A server's arrivals as steps: what a step took, and what each request of a batch accepted.

A server shows no steps, and counts the drafts of a block's requests together. If it sends the tokens of each step in a
chunk of their own, arrivals are steps, and a request's chunks tell what it accepted.

A server may put several steps into a chunk, or a step into several. Then the chunks are not as many as the steps that
it counts, or one has more than K + 1 tokens. A baseline step has one token, whatever its chunks hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from specgate.analysis.requests.joint_decoding import joint_decoding
from specgate.contract import Block, Finish, Served, ServedRequest
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.references import StepUnit
from specgate.contract.samples.counters import JOINED_OUTPUTS, NO_DRAFT_COUNTERS


def step_sizes(request: ServedRequest) -> list[int]:
    """The tokens of each arrival that a decode step had a part in. The first token of a request is the prefill's."""
    first, *others = request.chunk_tokens
    return [*([first - 1] if first > 1 else []), *others]


def hidden_steps(block: Block) -> int | None:
    """How many of the counted steps brought no arrival, since their only token ended the text and was kept back.

    None if the arrivals of a server's spec block are not its other steps.
    """
    assert block.served is not None
    record, k = block.served.acceptance, block.role.k
    if record is None or block.counters.get(JOINED_OUTPUTS) or block.counters.get(NO_DRAFT_COUNTERS):
        return None
    sizes = [step_sizes(request) for request in block.served.requests]
    hidden = record.steps + (block.steps_without_draft or 0) - sum(map(len, sizes))
    early = sum(finish is not Finish.LENGTH for finish in block.finish)
    return hidden if 0 <= hidden <= early and max(chain.from_iterable(sizes), default=0) <= k + 1 else None


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def step_unit(blocks: Sequence[Block]) -> StepUnit:
    """The unit in which the step times of all these blocks, of one role, can be counted.

    Of a batch whose requests were sent together, the time while all of them decode: no prefill is inside.
    """
    if all(block.served is None for block in blocks):
        return StepUnit.STEP if all(block.step_ns for block in blocks) else StepUnit.TOKEN
    if not all(block.served is not None for block in blocks):
        return StepUnit.TOKEN
    together = all(len(block.tokens) > 1 and sent_together(block) and joint_decoding(block) for block in blocks)
    if all(block.served is not None and arrivals_are_steps(block, block.served) for block in blocks):
        return StepUnit.JOINT_ARRIVAL if together else StepUnit.ARRIVAL
    return StepUnit.JOINT_TOKEN if together else StepUnit.TOKEN


def arrivals_are_steps(block: Block, served: Served) -> bool:
    """True if arrivals, of a baseline its tokens, are a block's steps, and at least one of them has a time."""
    if not block.role.speculative:
        return True
    return hidden_steps(block) is not None and any(len(request.chunk_ns) > 1 for request in served.requests)


def sent_together(block: Block) -> bool:
    """True if every request of a server's block was sent before the first answer came, as none under load is."""
    assert block.served is not None
    requests = block.served.requests
    return max(request.sent_ns for request in requests) <= min(request.chunk_ns[0] for request in requests)


def step_ns(block: Block, unit: StepUnit) -> float:
    """Nanoseconds per `unit` (`step_unit`) of a block that emitted something, as a mean."""
    if unit is StepUnit.STEP:
        return block.elapsed_ns / len(block.step_ns)
    joint = joint_decoding(block) if unit in (StepUnit.JOINT_ARRIVAL, StepUnit.JOINT_TOKEN) else None
    if unit.of_tokens or not block.role.speculative:
        return sum(joint.ns) / sum(joint.tokens) if joint else block.decoding_ns / block.emitted
    if joint is not None:
        return sum(joint.ns) / sum(joint.arrivals)
    assert block.served is not None
    return block.decoding_ns / sum(len(request.chunk_ns) - 1 for request in block.served.requests)


def step_ms(block: Block, unit: StepUnit) -> float:
    """Milliseconds per `unit`."""
    return step_ns(block, unit) / 1e6


# ── acceptance ───────────────────────────────────────────────────────────────────────────────────────────────────────


def request_records(block: Block) -> tuple[AcceptanceRecord, ...] | None:
    """The acceptance record of each request of a server's spec block. Together they are the block's.

    Answers that count their own drafts tell. Else, None for several requests if the arrivals are not steps, if steps
    without a draft are among them, or if drafts had fewer than K tokens.

    An arrival of n tokens is a step that accepted n − 1 drafts. The last step of a request may have been cut off. The
    steps that the server counted and no other arrival explains are these last ones, matched by size.
    """
    if block.served is None or (record := block.served.acceptance) is None:
        return None
    if (own := of_answers(block.served.requests, record, block.tokens)) is not None:
        return own
    if len(block.tokens) == 1:
        return (record,)
    hidden, requests = hidden_steps(block), [step_sizes(request) for request in block.served.requests]
    if hidden is None or block.steps_without_draft or not record.per_position or record.totals is not None:
        return None
    whole = Counter(size - 1 for sizes in requests for size in sizes[:-1])
    left = Counter(dict(enumerate(record.hist)))
    left.subtract(whole)
    if min(left.values()) < 0:
        return None
    whose = sorted((slot for slot, sizes in enumerate(requests) if sizes), key=lambda slot: requests[slot][-1])
    last = sorted(left.elements())
    accepted = [[size - 1 for size in sizes[:-1]] for sizes in requests]
    early = [slot for slot, finish in enumerate(block.finish) if finish is not Finish.LENGTH]
    for slot, drafts in zip([*early[:hidden], *whose], last, strict=True):
        accepted[slot].append(drafts)
    if any(accepted[slot][-1] + 1 < requests[slot][-1] for slot in whose):
        return None
    return tuple(record_of(record.k, a, len(t) - 1) for a, t in zip(accepted, block.tokens, strict=True))


def of_answers(
    requests: Sequence[ServedRequest], record: AcceptanceRecord, tokens: Sequence[Sequence[int]]
) -> tuple[AcceptanceRecord, ...] | None:
    """The records of requests whose answers count their own drafts. None if one of them does not.

    `record`: that of their block. `tokens`: their texts.
    """
    skips, counts = record.skipped is not None, [request.drafts for request in requests if request.drafts is not None]
    if len(counts) < len(requests):
        return None
    pieces = [[step_sizes(request)] if skips else None for request in requests]
    return tuple(c.record(record.k, len(t) - 1, p)[0] for c, t, p in zip(counts, tokens, pieces, strict=True))


def record_of(k: int, accepted: Sequence[int], emitted: int) -> AcceptanceRecord:
    """The record of a request whose steps all drafted `k` tokens. `accepted`: the drafts that each step accepted."""
    counts, steps = Counter(accepted), len(accepted)
    hist = tuple(counts[i] for i in range(k + 1))
    return AcceptanceRecord(k, hist, (steps,) * k, emitted, steps + sum(accepted) - emitted)
