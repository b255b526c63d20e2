"""Steps of an engine's loop, or requests with their times, made into a block.

vLLM says of a step which tokens each request got, and, summed over its requests, how many had a draft, how many draft
tokens there were, and how many requests accepted at least i of them. A request that goes on got its accepted tokens and
one more. Of a request that ended, some accepted tokens may have been cut off: what it accepted is what the step's
counts leave over for it. Where several requests end in one step, the larger counts go to those that got more tokens; no
sum depends on that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Final

from specgate.backends.offline.replies import Emitted, Loop, Request, Step
from specgate.backends.offline.spec_info import counters_of, spec_counts
from specgate.backends.servers.answers import Answer, refuse_strange_ids
from specgate.backends.servers.blocks import record_of, request_block
from specgate.backends.servers.exchange import NOTHING, SpecCounts, Usage
from specgate.contract import Budget, Finish, Role, ServedRequest
from specgate.contract.protocols import Decoded
from specgate.contract.samples.counters import TREE_TOKENS
from specgate.errors import BackendError

OVER = -1
"""In the rows of a block: the slot had ended before."""


def block_of_steps(
    role: Role, budget: Budget, loop: Loop, eos: Sequence[int], slots: int, where: str, *, tree: bool = False
) -> Decoded:
    """The block that the steps amount to. The first step has the prefill's token of every request. Of a `tree`, drafts
    are counted along one path.

    Raises BackendError where requests did not share every step, or counts contradict the tokens.
    """
    refuse_miscounted(loop, where)
    if not loop.steps:
        raise BackendError(f"{where}: no token came")
    first, *rest = loop.steps
    refuse_mixed(first, slots, where)
    tokens = [list(e.tokens) for e in sorted(first.emitted, key=lambda e: e.slot)]
    finish = {e.slot: e.finish for e in first.emitted if e.finish is not None}
    truncated, accepted, drafted, step_ns = [0] * slots, list[tuple[int, ...]](), list[tuple[int, ...]](), list[int]()
    before = first.ns
    for number, step in enumerate(rest, 1):
        here = f"{where}, step {number}"
        if {e.slot for e in step.emitted} != set(range(slots)) - set(finish):
            raise BackendError(
                f"{here}: slots {sorted(e.slot for e in step.emitted)} got tokens, and all but {sorted(finish)} run",
                hint="a request was pre-empted or waited: more memory for the cache, or -o show=requests",
            )
        spec = along_a_path(step.spec, role.k) if tree else step.spec
        accepts, drafts = shares(step.emitted, spec, role.k, here)
        for e in step.emitted:
            tokens[e.slot] += e.tokens
            truncated[e.slot] += accepts[e.slot] + 1 - len(e.tokens)
            if e.finish is not None:
                finish[e.slot] = e.finish
        accepted.append(tuple(accepts.get(slot, OVER) for slot in range(slots)))
        drafted.append(tuple(drafts.get(slot, OVER) for slot in range(slots)))
        step_ns.append(step.ns - before)
        before = step.ns
    if min(step_ns, default=0) < 0:
        raise BackendError(f"{where}: the engine's clock went back by {-min(step_ns)} ns")
    lasted = [sum(row[slot] != OVER for row in accepted) for slot in range(slots)]
    return Decoded(
        elapsed_ns=before - first.ns,
        step_ns=tuple(step_ns),
        tokens=tuple(map(tuple, tokens)),
        accepted=tuple(accepted),
        drafted=tuple(drafted),
        truncated=tuple(truncated),
        finish=tuple(
            end_of(finish.get(slot), budget, lasted[slot], tokens[slot], eos, f"{where}, slot {slot}")
            for slot in range(slots)
        ),
        counters={
            "cache_hit_tokens": sum(step.cached for step in loop.steps),
            **({TREE_TOKENS: sum(step.spec.drafted for step in loop.steps)} if tree and role.k else {}),
        },
        prefill_ns=first.ns,
    )


def along_a_path(spec: SpecCounts, k: int) -> SpecCounts:
    """Counts of one path of `k` draft tokens a step at most, from those of trees."""
    return replace(spec, drafted=min(spec.drafted, k * spec.steps))


def refuse_miscounted(loop: Loop, where: str) -> None:
    """Raise BackendError where the engine's counters are not what its steps add up to."""
    if loop.heard != loop.counted:
        raise BackendError(
            f"{where}: its steps had {said(loop.heard)}, but the counters of get_metrics grew by {said(loop.counted)}"
        )


def said(counts: Sequence[int]) -> str:
    return "{} drafts of {} tokens with {} accepted".format(*counts)


def refuse_mixed(first: Step, slots: int, where: str) -> None:
    """Raise BackendError unless one step has the first token of every request, and nothing else."""
    if sorted(e.slot for e in first.emitted) != list(range(slots)) or any(len(e.tokens) != 1 for e in first.emitted):
        raise BackendError(
            f"{where}: the first step that gave tokens gave {[len(e.tokens) for e in first.emitted]}, and {slots} "
            "prompts should have got one each",
            hint="prompts were prefilled in several steps: -o llm.max_num_batched_tokens=N, or -o show=requests",
        )


def shares(emitted: Sequence[Emitted], spec: SpecCounts, k: int, where: str) -> tuple[dict[int, int], dict[int, int]]:
    """(accepted, drafted) draft tokens by slot, for the slots that a step gave tokens.

    Raises BackendError where the step's counts do not explain its tokens.
    """
    if spec.steps > len(emitted) or (spec.steps and not k) or min((len(e.tokens) for e in emitted), default=1) < 1:
        raise BackendError(
            f"{where}: {spec.steps} drafts, {len(emitted)} requests, draft length {k}",
            hint=None if k else "it drafts, and is to be the baseline",
        )
    left = Counter({i: n for i, n in enumerate(spec.hist) if n})
    left[0] += len(emitted) - spec.steps  # without a draft, nothing is accepted
    going = {e.slot: len(e.tokens) - 1 for e in emitted if e.finish is None}
    left.subtract(going.values())
    ended = sorted((len(e.tokens) - 1, e.slot) for e in emitted if e.finish is not None)
    rest = sorted(left.elements())
    unexplained = min(left.values()) < 0 or any(got > has for (got, _), has in zip(ended, rest, strict=True))
    if unexplained or max(spec.hist and rest, default=0) > k:
        raise BackendError(
            f"{where}: requests got {sorted(len(e.tokens) for e in emitted)} tokens, but {spec.steps} drafts accepted "
            f"0 to {max(len(spec.hist) - 1, 0)} tokens {list(spec.hist)} times"
        )
    accepted = going | {slot: has for (_, slot), has in zip(ended, rest, strict=True)}
    return accepted, drafts_of(accepted, spec, k, where)


def drafts_of(accepted: Mapping[int, int], spec: SpecCounts, k: int, where: str) -> dict[int, int]:
    """Drafted tokens by slot: at least what it accepted, at most k, and in all what the step drafted."""
    with_draft = sorted(accepted, key=lambda slot: -accepted[slot])[: spec.steps]
    drafted = {slot: max(1, accepted[slot]) if slot in with_draft else 0 for slot in accepted}
    spare = spec.drafted - sum(drafted.values())
    for slot in with_draft:
        more = min(k - drafted[slot], max(spare, 0))
        drafted[slot] += more
        spare -= more
    if spare:
        raise BackendError(
            f"{where}: {spec.drafted} tokens in {spec.steps} drafts of at most {k} with {spec.accepted} accepted"
        )
    return drafted


def end_of(
    finish: str | None, budget: Budget, steps: int, tokens: Sequence[int], eos: Sequence[int], where: str
) -> Finish:
    """Return the reason why a slot stopped. A request that has used up its steps is aborted, or its token limit ends it
    in that step.
    """
    if finish in (None, "abort", "length") and steps == budget.steps:
        return Finish.STEPS
    if finish == "length" and len(tokens) == budget.new_tokens:
        return Finish.LENGTH
    if finish == "stop" and not budget.ignore_eos:
        return Finish.EOS if tokens[-1] in eos else Finish.STOP
    raise BackendError(f"{where}: ended with {finish!r} after {len(tokens)} tokens and {steps} steps")


DONE: Final = ("FINISH", "SUCCESS")
"""States of a request whose last output came."""


def of_loop(
    role: Role,
    budget: Budget,
    loop: Loop,
    prompts: Sequence[int],
    eos: Sequence[int],
    vocab: int,
    where: str,
    *,
    tree: bool = False,
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
    return block_of_requests(role, answers, spec, sum(step.cached for step in loop.steps), vocab, where, tree)


def of_requests(
    role: Role,
    budget: Budget,
    answered: Sequence[Request],
    prompts: Sequence[int],
    eos: Sequence[int],
    vocab: int,
    where: str,
    *,
    tree: bool = False,
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
    cached = sum(request.cached for request in answered)
    block = block_of_requests(role, answers, spec, cached, vocab, where, tree)
    return replace(
        block, counters={**block.counters, **counters_of(r.totals for r in answered if r.totals is not None)}
    )


def counts_of(request: Request, k: int, where: str) -> SpecCounts:
    """The drafts of a request. Raises BackendError where an output has the tokens of several steps, so that the counts
    of all but one of them are lost.
    """
    if request.totals is not None:
        return spec_counts(request.totals)
    counts = NOTHING
    for output in request.outputs:
        if output.spec is None or not output.tokens:
            continue
        drafted, accepted = output.spec
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


def block_of_requests(
    role: Role, answers: Sequence[Answer], spec: SpecCounts, cached: int, vocab: int, where: str, tree: bool
) -> Decoded:
    """The block that the answers amount to. Raises BackendError where its counts contradict the role or the tokens."""
    refuse_strange_ids(answers, vocab, where)
    if spec.steps and not role.speculative:
        raise BackendError(f"{where}: it drafts, and is to be the baseline")
    counters = {"cache_hit_tokens": cached}
    if not role.speculative:
        return request_block(answers, counters, None)
    acceptance, undrafted = record_of(role.k, spec, answers, where, tree=tree)
    counters |= {"undrafted_steps": undrafted, **({TREE_TOKENS: spec.drafted} if tree else {})}
    return request_block(answers, counters, acceptance)
