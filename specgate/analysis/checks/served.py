"""Checks and figures for blocks of an engine behind a server, which shows requests and totals but no steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Final

from specgate.analysis.requests.arrivals import of_answers
from specgate.contract import ENGINE_DECODE_NS, Block, Budget, Finish, Served, ServedRequest, Value
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.load import EARLY_NS
from specgate.contract.samples.counters import JOINED_OUTPUTS, UNCOUNTED_TOKENS
from specgate.errors import InvalidResult

REQUEST_NS: Final = 1_000_000
"""How far the times of a block may be from those of its requests."""


def check_served(block: Block, served: Served, budget: Budget, where: str, *, own_lengths: bool = False) -> None:
    """Check a server's block. Raises InvalidResult. `own_lengths`: its method sets the lengths of its drafts.

    It needs one request per slot with its chunks in order of time and no more tokens from a prefix cache than its
    prompt has, block times that are those of its requests, ends
    that the budget allows, and an acceptance record that accounts for every token that steps with drafts emitted.
    """
    if {len(served.requests), len(block.truncated), len(block.finish)} != {len(block.tokens)}:
        raise InvalidResult(f"{where}: {len(block.tokens)} slots, but {len(served.requests)} requests")
    if block.accepted or block.drafted or block.step_ns:
        raise InvalidResult(f"{where}: a server shows no steps, but {len(block.step_ns)} are recorded")
    for slot, request in enumerate(served.requests):
        times = (request.sent_ns, *request.chunk_ns)
        if not request.chunk_ns or any(later < earlier for earlier, later in pairwise(times)):
            raise InvalidResult(f"{where} slot {slot}: sent and received at {times}: not in order")
        check_due(request, f"{where} slot {slot}")
        check_chunks(request, len(block.tokens[slot]), f"{where} slot {slot}")
        if (request.prefix_hit_tokens or 0) > block.prompt_lengths[slot]:
            raise InvalidResult(
                f"{where} slot {slot}: prefix_hit_tokens = {request.prefix_hit_tokens}, but its prompt has "
                f"{block.prompt_lengths[slot]} tokens, and no others can come from a prefix cache"
            )
    first, last = min(r.chunk_ns[0] for r in served.requests), max(r.chunk_ns[-1] for r in served.requests)
    if max(abs(block.prefill_ns - first), abs(block.elapsed_ns - (last - first))) > REQUEST_NS:
        raise InvalidResult(
            f"{where}: its first token came after {block.prefill_ns} ns and its last {block.elapsed_ns} ns later, but "
            f"the chunks of its requests came from {first} ns to {last} ns"
        )
    check_request_ends(block, budget, where)
    record, undrafted_ = served.acceptance, block.steps_without_draft or 0
    if (record is not None) != block.role.speculative:
        raise InvalidResult(f"{where}: acceptance of a {block.role} block: {record}")
    if record is not None and record.k != block.role.k and not (own_lengths and record.k < block.role.k):
        raise InvalidResult(f"{where}: a record of drafts of {record.k} tokens in a {block.role} block")
    if record is not None and record.skipped is not None and not own_lengths:
        raise InvalidResult(f"{where}: {record.skipped} steps need no draft, but its engine drafts in every step")
    lost = block.counters.get(UNCOUNTED_TOKENS, 0)
    if lost and not block.counters.get(JOINED_OUTPUTS):
        raise InvalidResult(f"{where}: {UNCOUNTED_TOKENS} = {lost}, but no output is said to hold several steps")
    if record is not None:
        check_requests(block, served, record, where)
    if record is not None and (record.emitted + undrafted_ + lost != block.emitted):
        raise InvalidResult(
            f"{where}: emitted {block.emitted}, but steps with drafts emitted {record.emitted} and others {undrafted_}"
            + (f", and {lost} are not counted" if lost else "")
        )


def check_requests(block: Block, served: Served, record: AcceptanceRecord, where: str) -> None:
    """The answers' own counts of drafts add up to the block's record. Raises InvalidResult."""
    own = of_answers(served.requests, record, block.tokens)
    if own is not None and (total := reduce(add, own)) != record:
        raise InvalidResult(f"{where}: the answers' own counts add up to {total}, not to {record}")


def check_due(request: ServedRequest, where: str) -> None:
    """A request of an open loop was neither sent nor answered before it was due. Raises InvalidResult."""
    due = request.due_ns
    if due is not None and (request.sent_ns < due - EARLY_NS or request.chunk_ns[0] < due):
        raise InvalidResult(
            f"{where}: due after {due} ns, but sent after {request.sent_ns} ns and answered from "
            f"{request.chunk_ns[0]} ns on: nothing comes before it is due"
        )


def check_chunks(request: ServedRequest, tokens: int, where: str) -> None:
    """The chunks of a request hold its tokens, one or more each. Raises InvalidResult."""
    sizes = request.chunk_tokens
    if len(sizes) != len(request.chunk_ns) or min(sizes) < 1 or sum(sizes) != tokens:
        raise InvalidResult(
            f"{where}: {len(request.chunk_ns)} chunks came and {tokens} tokens, but the chunks are said to hold {sizes}"
        )


def check_request_ends(block: Block, budget: Budget, where: str) -> None:
    """A request has the tokens that were asked for, unless it may stop before. Raises InvalidResult.

    A budget of steps is so many tokens after the first one. Servers say `stop` for EOS too, and some keep the end token
    back, so the last token is not looked at.
    """
    of_all = budget.new_tokens if budget.new_tokens is not None else budget.longest(0) + 1
    requests = requests_of(block)
    for slot, (tokens, finish) in enumerate(zip(block.tokens, block.finish, strict=True)):
        limit = requests[slot].new_tokens or of_all
        ending = f"{where} slot {slot}: its finish is {finish} after {len(tokens)} tokens"
        if finish is Finish.STEPS:
            raise InvalidResult(f"{ending}, but a server ends no request for its steps")
        if len(tokens) > limit or (finish is Finish.LENGTH and len(tokens) != limit):
            raise InvalidResult(f"{ending}, but the budget is {limit}")
        if budget.ignore_eos and len(tokens) < limit - 1:
            raise InvalidResult(f"{ending}, but the budget is {limit} and EOS is ignored")


def prefill_tok_s(block: Block) -> float:
    """Prompt tokens per second until every prompt of the block was prefilled.

    A server may answer the first request while the last one still waits.
    """
    filled_ns = max(r.chunk_ns[0] for r in requests_of(block))
    return sum(block.prompt_lengths) / (filled_ns / 1e9) if filled_ns else 0.0


def requests_of(block: Block) -> Sequence[ServedRequest]:
    """The requests of a block that must be a server's."""
    assert block.served is not None
    return block.served.requests


def served_steps(blocks: Sequence[Block]) -> Iterator[Value]:
    """Tokens emitted per step of one slot, where a server counted the steps that had drafts, all of them."""
    if any(block.counters.get(JOINED_OUTPUTS) for block in blocks):
        return
    records = [(b.served.acceptance, b) for b in blocks if b.served and b.served.acceptance]
    steps = sum(r.steps + (b.steps_without_draft or 0) for r, b in records)
    if steps:
        yield Value("emitted_per_step", sum(b.emitted for _, b in records) / steps, "tok_weighted", steps)


def clock_values(blocks: Sequence[Block]) -> Iterator[Value]:
    """Decode time of the requests at the client over what the engine's own clock counts, where it counts that.

    Both last from a request's first token to its last one, summed over requests. What is above 1 is the way from the
    engine to the client: the server's front end, the connection, and this program.
    """
    timed = [
        (requests_of(b), b.counters[ENGINE_DECODE_NS]) for b in blocks if b.served and ENGINE_DECODE_NS in b.counters
    ]
    if engine_ns := sum(ns for _, ns in timed):
        client_ns = sum(r.chunk_ns[-1] - r.chunk_ns[0] for requests, _ in timed for r in requests)
        yield Value("client_clock_ratio", client_ns / engine_ns, "time_weighted", len(timed))
