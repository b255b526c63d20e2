"""Requests with their times, and counts of drafts → a block like that of a server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Final

from specgate.backends.offline.replies import Loop, Request
from specgate.backends.offline.steps import refuse_miscounted
from specgate.backends.servers.blocks import record_of
from specgate.backends.servers.answers import Answer, refuse_strange_ids
from specgate.backends.servers.blocks import request_block
from specgate.backends.servers.exchange import NOTHING, SpecCounts, Usage
from specgate.contract import Budget, Finish, Role, ServedRequest
from specgate.contract.protocols import Decoded
from specgate.errors import BackendError

DONE: Final = ("FINISH", "SUCCESS")
"""States of a request whose last output came."""


def of_loop(
    role: Role, budget: Budget, loop: Loop, prompts: Sequence[int], eos: Sequence[int], vocab: int, where: str
) -> Decoded:
    """The block of a loop whose requests do not share their steps. `prompts`: their lengths."""
    refuse_miscounted(loop, where)
    answers = []
    for slot, length in enumerate(prompts):
        mine = [(step.ns, e) for step in loop.steps for e in step.emitted if e.slot == slot and e.tokens]
        ends = [e.finish for step in loop.steps for e in step.emitted if e.slot == slot and e.finish is not None]
        if not mine or len(ends) != 1 or ends[0] not in ("length", "stop"):
            raise BackendError(f"{where}, slot {slot}: {len(mine)} steps gave tokens, and it ended with {ends}")
        tokens = tuple(token for _, e in mine for token in e.tokens)
        times = ServedRequest(0, tuple(ns for ns, _ in mine), tuple(len(e.tokens) for _, e in mine))
        answers.append(answer_of(tokens, times, length, budget, ends[0] == "stop", eos, f"{where}, slot {slot}"))
    spec = reduce(add, (step.spec for step in loop.steps if step.spec.steps), NOTHING)
    return block_of(role, answers, spec, sum(step.cached for step in loop.steps), vocab, where)


def of_requests(
    role: Role,
    budget: Budget,
    answered: Sequence[Request],
    prompts: Sequence[int],
    eos: Sequence[int],
    vocab: int,
    where: str,
) -> Decoded:
    """The block of requests that were answered one by one. `prompts`: their lengths."""
    answers, spec = [], NOTHING
    for slot, (request, length) in enumerate(zip(answered, prompts, strict=True)):
        here = f"{where}, slot {slot}"
        outputs = [output for output in request.outputs if output.tokens]
        if request.status not in DONE or not outputs:
            raise BackendError(f"{here}: ended with {request.status} after {len(outputs)} outputs with tokens")
        tokens = tuple(token for output in outputs for token in output.tokens)
        times = ServedRequest(request.sent_ns, tuple(o.ns for o in outputs), tuple(len(o.tokens) for o in outputs))
        stopped = tokens[-1] in eos and not budget.ignore_eos
        answers.append(answer_of(tokens, times, length, budget, stopped, eos, here))
        spec += counts_of(request, role.k, here)
    return block_of(role, answers, spec, sum(request.cached for request in answered), vocab, where)


def counts_of(request: Request, k: int, where: str) -> SpecCounts:
    """The drafts of a request. Raises BackendError where an output has the tokens of several steps, so that the counts
    of all but one of them are lost.
    """
    spec_infos = [output.spec for output in request.outputs if output.spec is not None]
    if not spec_infos:
        return NOTHING
    if (total := spec_infos[-1])[0] is not None:  # summed over the request so far
        return SpecCounts(total[0], total[1], total[2])
    counts = NOTHING
    for output in request.outputs:
        if output.spec is None or not output.tokens:
            continue
        _, drafted, accepted = output.spec
        if len(output.tokens) > accepted + 1 or not 0 <= accepted <= k:
            raise BackendError(
                f"{where}: an output of {len(output.tokens)} tokens says that {accepted} drafts were accepted",
                hint="outputs of several steps came as one: the machine is too busy to read them in time",
            )
        hist = tuple(int(i == accepted) for i in range(k + 1))
        counts += SpecCounts(1, drafted, accepted, hist)
    return counts


def answer_of(
    tokens: tuple[int, ...],
    times: ServedRequest,
    prompt: int,
    budget: Budget,
    stopped: bool,
    eos: Sequence[int],
    where: str,
) -> Answer:
    """One finished request. Raises BackendError where it has another number of tokens than the budget asks for."""
    limit = limit_of(budget)
    if len(tokens) != limit and (budget.ignore_eos or not stopped or len(tokens) > limit):
        raise BackendError(f"{where}: {len(tokens)} tokens in place of {limit}")
    end = Finish.EOS if tokens[-1] in eos else Finish.STOP
    finish = end if stopped and not budget.ignore_eos else Finish.LENGTH
    return Answer(tokens, Usage(prompt, len(tokens)), finish, times, None, ())


def limit_of(budget: Budget) -> int:
    """The tokens of a request: a budget of steps is so many tokens after the first one, in every role."""
    return budget.new_tokens if budget.new_tokens is not None else budget.longest(0) + 1


def block_of(role: Role, answers: Sequence[Answer], spec: SpecCounts, cached: int, vocab: int, where: str) -> Decoded:
    """The block that the answers amount to. Raises BackendError where its counts contradict the role or the tokens."""
    refuse_strange_ids(answers, vocab, where)
    if spec.steps and not role.speculative:
        raise BackendError(f"{where}: it drafts, and is to be the baseline")
    acceptance, undrafted = record_of(role.k, spec, answers, where) if role.speculative else (None, None)
    steps_without = {} if undrafted is None else {"undrafted_steps": undrafted}
    return request_block(answers, {**steps_without, "cache_hit_tokens": cached}, acceptance)
