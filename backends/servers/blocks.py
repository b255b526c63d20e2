"""Join the answers to a block's requests: its tokens, times and counts, each checked against the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate.backends.servers.accounting import own_counts, record_of
from specgate.backends.servers.answers import Answer
from specgate.backends.servers.client import TurnedAway
from specgate.backends.servers.evidence.tracing import joined_outputs
from specgate.backends.servers.exchange import NOTHING, Reading
from specgate.contract import ENGINE_DECODE_NS, AcceptanceRecord, RefusedRequest, Role, Served
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.samples.counters import JOINED_OUTPUTS, NO_DRAFT_COUNTERS, UNCOUNTED_TOKENS
from specgate.errors import BackendError

AT_ONCE: Final = 32
"""More tokens than this are never sent in one piece, nor read in one piece by a client that is late."""


def decoded(
    role: Role, answers: Sequence[Answer], counted: Reading, where: str, *, counts_outputs: bool = False
) -> Decoded:
    """The block that the answers amount to. Raises BackendError where its counts or times contradict the role.

    `counts_outputs`: the server's counters count one step per output (`Adapter.counts_outputs`). Where outputs hold the
    tokens of several steps, what its counters do not explain is lost steps, and never steps without a draft.
    """
    spec, own = counted.spec, own_counts(answers)
    if own is not None and spec != NOTHING and (own.steps, own.accepted) != (spec.steps, spec.accepted):
        raise BackendError(f"{where}: the answers report {own}, the server's counters {spec}", hint="other traffic?")
    if not role.speculative and (spec.steps or (own and own.steps)):
        raise BackendError(
            f"{where}: it drafts, and is to be the baseline", hint="-o url.baseline=URL of a server that does not"
        )
    acceptance, undrafted = record_of(role.k, own or spec, answers, where) if role.speculative else (None, None)
    joined = joined_outputs(role.k, own or spec, answers) if counts_outputs and role.speculative else 0
    refuse_unstreamed(answers, where)
    cached = cache_hits(answers, counted)
    uncounted = role.speculative and own is None and counted.speculative is False
    counters = {
        **({"undrafted_steps": undrafted} if undrafted is not None and not joined else {}),
        **({JOINED_OUTPUTS: joined, UNCOUNTED_TOKENS: undrafted} if undrafted is not None and joined else {}),
        **({"cache_hit_tokens": cached} if cached is not None else {}),
        **({NO_DRAFT_COUNTERS: 1} if uncounted else {}),
        **({ENGINE_DECODE_NS: round(counted.decode_s * 1e9)} if counted.decode_s else {}),
    }
    # The beginning is one for all of a block.
    return replace(request_block(answers, counters, acceptance), began_ns=answers[0].began_ns)


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


def with_refused(block: Decoded, outcomes: Sequence[Answer | TurnedAway]) -> Decoded:
    """Return `block` with the requests that its server turned away. `outcomes`: one for each prompt."""
    assert block.served is not None
    refused = tuple(RefusedRequest(i, r.status, r.at_ns) for i, r in enumerate(outcomes) if isinstance(r, TurnedAway))
    prompts = tuple(i for i, one in enumerate(outcomes) if isinstance(one, Answer))
    return replace(block, served=replace(block.served, refused=refused, prompts=prompts))


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
