"""Join the answers to a block's requests, and turn a server's counters into the acceptance record of the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Final, TypeVar

from specgate.analysis.requests.arrivals import step_sizes
from specgate.backends.servers.answers import Answer
from specgate.backends.servers.client import TurnedAway
from specgate.backends.servers.evidence.tracing import joined_outputs
from specgate.backends.servers.exchange import NOTHING, OtherForm, Reading, SpecCounts
from specgate.backends.servers.texts import ENCODED, SLICED
from specgate.contract import ENGINE_DECODE_NS, RefusedRequest, Role, Served
from specgate.contract.acceptance import AcceptanceRecord, DraftCounts, Totals
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.samples.counters import (
    AS_TEXTS,
    JOINED_OUTPUTS,
    NO_DRAFT_COUNTERS,
    TREE_TOKENS,
    UNCOUNTED_TOKENS,
)
from specgate.errors import BackendError, InvalidResult

N = TypeVar("N", int, float)


def between(before: Reading, after: Reading, where: str) -> Reading:
    """Return what was counted between two readings. Raises BackendError where a counter fell."""
    refuse_fallen(before, after, where)
    return Reading(
        requests=difference(before.requests, after.requests),
        generated=difference(before.generated, after.generated),
        busy=after.busy,
        cached=difference(before.cached, after.cached),
        spec=after.spec - before.spec,
        speculative=after.speculative,
        decode_s=difference(before.decode_s, after.decode_s),
    )


def refuse_fallen(before: Reading, after: Reading, where: str) -> None:
    """Raise BackendError, with both values, where a counter is lower than it was: each only grows while a server runs,
    also between blocks.
    """
    was, is_ = counters(before), counters(after)
    if fell := [f"{name} from {was[name]} to {is_[name]}" for name in was if name in is_ and is_[name] < was[name]]:
        raise BackendError(f"{where}: counters fell: {', '.join(fell)}", hint="was the server restarted?")
    if gone := [name for name in was if name not in is_ and was[name]]:
        raise BackendError(f"{where}: counters are gone: {', '.join(gone)}", hint="was the server restarted?")


def counters(reading: Reading) -> dict[str, int | float]:
    """The counters of a reading that only grow, by name. What the server does not count is left out."""
    spec = reading.spec
    values = {
        "requests": reading.requests,
        "generated tokens": reading.generated,
        "cached tokens": reading.cached,
        "seconds of decoding": reading.decode_s,
        "steps": spec.steps,
        "drafted": spec.drafted,
        "accepted": spec.accepted,
        # steps that accepted at least i drafts, as servers count them: of exactly i there may be fewer for a moment
        **{f"accepted at position {i}": sum(spec.hist[i:]) for i in range(1, len(spec.hist))},
    }
    return {name: value for name, value in values.items() if value is not None}


def difference(before: N | None, after: N | None) -> N | None:
    return None if before is None or after is None else after - before


def accounted_for(counted: Reading, answers: Sequence[Answer]) -> bool:
    """True if the counters have caught up with the answers. A server may count later than the client receives."""
    generated = sum(a.usage.completion for a in answers)
    return (counted.requests is None or counted.requests >= len(answers)) and (
        counted.generated is None or counted.generated >= generated
    )


def refuse_other_traffic(counted: Reading, answers: Sequence[Answer], where: str) -> None:
    """Raise BackendError where the server counted more or less than our requests: its counters are shared by all
    clients.
    """
    generated = sum(a.usage.completion for a in answers)
    for what, ours, theirs in (
        ("requests", len(answers), counted.requests),
        ("generated tokens", generated, counted.generated),
    ):
        if theirs is not None and theirs != ours:
            raise BackendError(
                f"{where}: the server counted {theirs} {what} during a block of {ours}",
                hint="other traffic, or lost counts: a measurement needs the server alone" if theirs > ours else None,
            )


def own_counts(answers: Sequence[Answer]) -> SpecCounts | None:
    """The sum of what the engine reports per request. None where it reports nothing per request."""
    reports = [answer.spec for answer in answers if answer.spec is not None]
    return reduce(add, reports, NOTHING) if reports else None


def record_of(
    k: int, counts: SpecCounts, answers: Sequence[Answer], where: str, *, tree: bool = False, skips: bool = False
) -> tuple[AcceptanceRecord, int]:
    """(the acceptance record, the request-steps that should have had a draft and had none) of a block.

    `counts`: of all answers; where each answer has its own, the record is the sum of theirs. `DraftCounts.record` tells
    steps without a draft from tokens that were cut off. At most `k` tokens per request can be cut off, beside the end
    token that some engines do not return.

    Of a `tree` only one path can be accepted: the record counts K draft tokens a step at most, and no positions.
    `skips`: its method need not draft in every step.

    Raises BackendError, with the numbers, where an identity of the record does not hold. More draft tokens of a chain
    than K × steps are left in the record: they contradict it, and the cell is INVALID.
    """
    own = [answer.spec for answer in answers if answer.spec is not None]
    if len(own) < len(answers):
        own, groups = [counts], [answers]
    else:
        groups = [[answer] for answer in answers]
    records, undrafted = list[AcceptanceRecord](), 0
    for part, group in zip(own, groups, strict=True):
        emitted = sum(len(a.tokens) - 1 for a in group)
        arrivals = [step_sizes(a.times) for a in group] if skips else None
        record, without = draft_counts(part, tree=tree).record(k, emitted, arrivals)
        refuse_cut(
            record, part, emitted, k * len(group) + sum(a.usage.completion - len(a.tokens) for a in group), where
        )
        records.append(record)
        undrafted += without
    record = reduce(add, records)
    if counts.steps:
        check(within_k(record), counts, where)
    return record, undrafted


def refuse_cut(record: AcceptanceRecord, counts: SpecCounts, emitted: int, most: int, where: str) -> None:
    """Raise BackendError where more than `most` tokens were counted that did not come."""
    if record.truncated > most:
        raise BackendError(
            f"{where}: the engine counted {counts.steps} steps with {counts.accepted} accepted drafts, "
            f"{record.truncated} more than the {emitted} tokens that came; at most {most} can have been cut",
            hint="other traffic, another draft length, or accepted drafts that have each step's own token among them",
        )


def shape_of(most: int, counts: SpecCounts, where: str) -> tuple[int, bool]:
    """(the longest draft that the counts show, in tokens on its accepted path; whether it may be a tree's) of a method
    that sets the lengths of its drafts. The length is 1 at least, and `most` at most.

    Raises BackendError where a step had more than `most`.
    """
    longest = max((i for part in (counts.hist, counts.lengths) for i, n in enumerate(part) if n), default=0)
    if longest > most:
        raise BackendError(
            f"{where}: a step had {longest} draft tokens, and {most} are the most here",
            hint=f"--spec {max(longest, len(counts.hist) - 1)}",
        )
    drafted = -(-counts.drafted // counts.steps) if counts.steps else 0
    k, known = max(1, min(most, max(len(counts.hist) - 1, longest, drafted))), max(len(counts.hist) - 1, longest)
    return k, drafted > k or known < k < most


def draft_counts(counts: SpecCounts, *, tree: bool) -> DraftCounts:
    """The counts as stored with a request."""
    hist, lengths = (tuple((i, n) for i, n in enumerate(part) if n) for part in (counts.hist, counts.lengths))
    return DraftCounts(Totals(counts.steps, counts.drafted, counts.accepted), hist, lengths, tree)


def within_k(record: AcceptanceRecord) -> AcceptanceRecord:
    """The record with at most K × steps draft tokens, for what else it has to satisfy."""
    totals, most = record.totals, record.k * record.steps
    if totals is None or totals.drafted <= most:
        return record
    return replace(record, totals=replace(totals, drafted=most))


def check(record: AcceptanceRecord, counts: SpecCounts, where: str) -> None:
    """Raise BackendError where the record contradicts itself or the server's total of accepted draft tokens."""
    try:
        record.check()
    except InvalidResult as error:
        raise BackendError(f"{where}: {error}", hint="is its draft length that of the role?") from error
    if record.accepted != counts.accepted:
        raise BackendError(
            f"{where}: {counts.accepted} accepted drafts, but by position {record.accepted}", hint="other traffic?"
        )


AT_ONCE: Final = 32
"""More tokens than this are never sent in one piece, nor read in one piece by a client that is late."""


def decoded(
    role: Role,
    answers: Sequence[Answer],
    counted: Reading,
    where: str,
    *,
    counts_outputs: bool = False,
    tree: bool = False,
    own_lengths: bool = False,
) -> Decoded:
    """The block that the answers amount to. Raises BackendError where its counts or times contradict the role.

    `counts_outputs`: the server's counters count one step per output (`Adapter.counts_outputs`). Where outputs hold the
    tokens of several steps, what its counters do not explain is lost steps, and never steps without a draft. `tree`:
    it drafts trees. `own_lengths`: its method sets the lengths of its drafts.
    """
    if counted.speculative is False and all(a.spec is None or not a.spec.accepted for a in answers):
        answers = [replace(a, spec=None) for a in answers]  # events of one token each show no drafts
    spec, own = counted.spec, own_counts(answers)
    if own is not None and spec != NOTHING and (own.steps, own.accepted) != (spec.steps, spec.accepted):
        raise BackendError(f"{where}: the answers report {own}, the server's counters {spec}", hint="other traffic?")
    if not role.speculative and (spec.steps or (own and own.steps)):
        raise BackendError(
            f"{where}: it drafts, and is to be the baseline", hint="-o url.baseline=URL of a server that does not"
        )
    joined = joined_outputs(role.k, own or spec, answers) if counts_outputs and role.speculative else 0
    acceptance, undrafted = None, None
    if role.speculative:
        own_lengths &= not joined
        k, unclear = shape_of(role.k, own or spec, where) if own_lengths else (role.k, False)
        acceptance, undrafted = record_of(k, own or spec, answers, where, tree=tree or unclear, skips=own_lengths)
        answers = with_drafts(answers, tree=tree or unclear)
        tree |= own_lengths and (own or spec).drafted > acceptance.drafted
    refuse_unstreamed(answers, where)
    cached = cache_hits(answers, counted)
    uncounted = role.speculative and own is None and counted.speculative is False
    counters = {
        **({"undrafted_steps": undrafted} if undrafted is not None and not joined and not own_lengths else {}),
        **({JOINED_OUTPUTS: joined, UNCOUNTED_TOKENS: undrafted} if undrafted is not None and joined else {}),
        **({"cache_hit_tokens": cached} if cached is not None else {}),
        **({AS_TEXTS: made} if (made := sum(a.made is not None for a in answers)) else {}),
        **({NO_DRAFT_COUNTERS: 1} if uncounted else {}),
        **({TREE_TOKENS: (own or spec).drafted} if tree and role.speculative else {}),
        **({ENGINE_DECODE_NS: round(counted.decode_s * 1e9)} if counted.decode_s else {}),
    }
    # The beginning is one for all of a block.
    return replace(request_block(answers, counters, acceptance), began_ns=answers[0].began_ns)


def counted_by_events(answer: Answer, role: Role, where: str) -> Answer:
    """The answer with counts of its own, if nothing else counts than the events of its stream: one step each, with a
    draft of K tokens. Raises BackendError where events cannot be steps.
    """
    sizes = step_sizes(answer.times)
    if not role.speculative:
        if sum(sizes) >= SEVERAL * len(sizes) > 0:
            raise BackendError(
                f"{where}: {len(sizes)} events hold {sum(sizes)} tokens of a server that is to be the baseline",
                hint="does it speculate? If not, it sends several steps together, and nothing else counts its steps",
            )
        return answer
    if answer.made in (SLICED, ENCODED):  # how many tokens an event holds is a guess, and their sum is not
        return replace(answer, spec=SpecCounts(len(sizes), role.k * len(sizes), sum(sizes) - len(sizes)))
    if max(sizes, default=0) > role.k + 1:
        raise BackendError(
            f"{where}: an event holds {max(sizes)} tokens, more than a step with a draft of {role.k} gives",
            hint=f"--spec K, its drafts' length, {max(sizes) - 1} at least; else a proxy sends several steps together",
        )
    hist = tuple(sizes.count(accepted + 1) for accepted in range(role.k + 1))
    return replace(answer, spec=SpecCounts(len(sizes), role.k * len(sizes), sum(sizes) - len(sizes), hist))


def with_drafts(answers: Sequence[Answer], *, tree: bool) -> Sequence[Answer]:
    """The answers with their own counts of drafts beside their times, if each has its own."""
    counts = [draft_counts(answer.spec, tree=tree) for answer in answers if answer.spec is not None]
    if len(counts) < len(answers):
        return answers
    return [replace(a, times=replace(a.times, drafts=c)) for a, c in zip(answers, counts, strict=True)]


SEVERAL: Final = 1.5
"""Tokens per event, the first one aside, from which on a stream looks like one of a server that drafts."""


def refuse_silent(role: Role, answers: Sequence[Answer], counted: Reading, where: str, counter: str) -> None:
    """Raise BackendError where the server of a spec role has no counts of drafts at all, and its events hold several
    tokens, as if it drafted. `counter`: the name of one that the engine has.
    """
    if not role.speculative or counted.speculative is not False or own_counts(answers) is not None:
        return
    tokens, events = (
        sum(sum(a.times.chunk_tokens[1:]) for a in answers),
        sum(len(a.times.chunk_ns) - 1 for a in answers),
    )
    if events and tokens / events >= SEVERAL:
        raise OtherForm(
            f"{where}: {counter} is missing, and no other count of drafts is there, but {events} events hold {tokens} "
            "tokens: it may draft",
            hint="a gateway that leaves the counts out? or a server without drafts that sends several steps' tokens "
            "together (--stream-interval)",
        )


def request_block(
    answers: Sequence[Answer], counters: Mapping[str, int], acceptance: AcceptanceRecord | None
) -> Decoded:
    """Return the block of whole requests with these answers. It has no steps; its prefill ends with the first token."""
    first = min(a.times.chunk_ns[0] for a in answers)
    return Decoded(
        elapsed_ns=max(a.times.chunk_ns[-1] for a in answers) - first,
        step_ns=(),
        tokens=tuple(a.tokens for a in answers),
        accepted=(),
        drafted=(),
        truncated=(0,) * len(answers),
        finish=tuple(a.finish for a in answers),
        counters=dict(counters),
        prefill_ns=first,
        served=Served(tuple(a.times for a in answers), acceptance),
    )


def check_prompts(prompts: Sequence[Sequence[int]], request: OpenRequest) -> None:
    """Raise BackendError for prompts that an engine was not opened for."""
    longest = max(map(len, prompts), default=0)
    if not 0 < len(prompts) <= request.max_batch or not 0 < longest < request.max_positions:
        raise BackendError(
            f"{len(prompts)} prompts of up to {longest} tokens, but the engine was opened for "
            f"{request.max_batch} requests of {request.max_positions} positions"
        )


def with_lengths(block: Decoded, new_tokens: Sequence[int]) -> Decoded:
    """Return `block` with the number of tokens that was asked for in every slot."""
    assert block.served is not None
    pairs = zip(block.served.requests, new_tokens, strict=True)
    requests = tuple(replace(request, new_tokens=count) for request, count in pairs)
    return replace(block, served=replace(block.served, requests=requests))


def with_prompts(block: Decoded, outcomes: Sequence[Answer | TurnedAway], prompts: int) -> Decoded:
    """Return `block` with the requests that its server turned away, and the prompt of every slot. `outcomes`: one for
    each request; they take the list of `prompts` prompts again where they are more.
    """
    assert block.served is not None
    numbered = [(i % prompts, one) for i, one in enumerate(outcomes)]
    refused = tuple(RefusedRequest(i, r.status, r.at_ns) for i, r in numbered if isinstance(r, TurnedAway))
    answered = tuple(i for i, one in numbered if isinstance(one, Answer))
    return replace(block, served=replace(block.served, refused=refused, prompts=answered))


def cache_hits(answers: Sequence[Answer], counted: Reading) -> int | None:
    """Prompt tokens that came from a cache: the larger of what answers and counters say, None where neither does."""
    per_answer = [a.usage.cached for a in answers if a.usage.cached is not None]
    known = [*([sum(per_answer)] if per_answer else []), *([counted.cached] if counted.cached is not None else [])]
    return max(known, default=None)


def refuse_unstreamed(answers: Sequence[Answer], where: str) -> None:
    """Raise BackendError where an answer came in one piece, as through a proxy, so that nothing can be timed."""
    if (answer := in_one_piece(answers)) is not None:
        raise BackendError(
            f"{where}: {len(answer.tokens)} tokens came at once: the answer is not streamed",
            hint="a proxy that buffers? On a machine too busy to see so few tokens come, ask for more per request",
        )


def in_one_piece(answers: Sequence[Answer]) -> Answer | None:
    """An answer whose tokens came all at once; None if there is none.

    A short one may, on a busy machine. It is accepted if not everything came at the same time.
    """
    arrived = {ns for a in answers for ns in a.times.chunk_ns}
    for answer in answers:
        at_once = answer.times.chunk_ns[0] == answer.times.chunk_ns[-1]
        if at_once and len(answer.tokens) > 1 and (len(answer.tokens) > AT_ONCE or len(arrived) == 1):
            return answer
    return None
