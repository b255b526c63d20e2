"""Ask a server for prompts with shared prefixes, to see what its prefix cache does.

The requests of a group share a prefix. One comes first and fills the cache. The others follow one by one, so that what
can be reused does not depend on timing. Each of these is at once gone on with, as the next turn of a chat: its prompt,
its answer and a few tokens more. A server that keeps no more than its last request still has the answer then. The
answer's keys and values were computed while decoding, by speculation in one role, and must not be those of drafts that
were refused.

Roles take turns from request to request, the one that begins changing each time. The cache is on first: next turns are
made of the baseline's answers of that pass, and are the same in both roles and both passes. Where a text with the cache
on leaves that without it, the server without it is asked for its logits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Protocol

from specgate import plugins
from specgate.analysis.prefix_cache import (
    BASELINE_NAME,
    CANDIDATES,
    CacheDivergence,
    Check,
    Limits,
    Reply,
    Sample,
    Turn,
    judge,
    overall,
)
from specgate.analysis.tokens.comparison import first_difference
from specgate.analysis.tokens.last_place import gap_between, unit_of
from specgate.contract import BASELINE, Budget, EngineFacts, PairRef, Role, State, TopTokens
from specgate.contract.protocols import Decoded, SwitchesPrefixCache
from specgate.contract.samples.counters import ASKED_AGAIN
from specgate.errors import BackendError, ExitCode, UsageError
from specgate.pairs.resolve import target_limits
from specgate.planning.ad_hoc import Question
from specgate.planning.plan import build_plan
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.run.beginning import fitting_prompts
from specgate.run.runner import open_request
from specgate.run.worker import EngineWorker

FLOAT32: Final = 0.001
"""A gap below it is a near tie of an engine in float32, in logits."""
COARSER: Final = 4.0
"""A gap of so many units in the last place is one in shorter formats."""
TAIL: Final = 16
"""Tokens that a next turn adds to the answer before it."""
TIMEOUT_S: Final = 600.0
"""Of one call of the engine."""
OPTION: Final = "prefix_cache"
ENDS: Final = {State.PASS: ExitCode.PASS, State.FAIL: ExitCode.FAIL, State.INCONCLUSIVE: ExitCode.INCONCLUSIVE}

Switch = Literal["on", "off"]


@dataclass(frozen=True, slots=True)
class Wish:
    """Settings of a check of the prefix cache. `question`: one context, `batch` prompts per group, one draft length,
    `prompt_sets` groups, and the length of the shared prefix. `new_tokens`: of every answer.
    """

    request: Request
    question: Question
    new_tokens: int
    max_lost_tokens: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Result of a pair of passes. `prefix`: tokens that prompts of a group share."""

    backend: str
    role: Role
    facts: EngineFacts
    limits: Limits
    prefix: int
    samples: tuple[Sample, ...]
    divergences: tuple[CacheDivergence, ...]
    checks: tuple[Check, ...]

    @property
    def state(self) -> State:
        return overall(self.checks)

    @property
    def exit_code(self) -> ExitCode:
        return ENDS.get(self.state, ExitCode.INVALID)


class Asking(Protocol):
    """The calls of an engine that are made here."""

    def facts(self) -> EngineFacts: ...

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int: ...

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded: ...

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None: ...


@dataclass(slots=True)
class Asked:
    """One request and what came back. `before`: the index of the request whose answer a next turn goes on from.
    `reusable`, `answered`: as in `Sample`.
    """

    group: int
    turn: Turn
    reusable: int
    prompt: tuple[int, ...] | None
    before: int | None = None
    answered: int = 0
    replies: dict[tuple[Switch, str], Reply] = field(default_factory=dict)


def ask_both(wish: Wish, logs: Path, say: Callable[[str], None] = lambda line: None) -> Pair:
    """Carry out both passes and judge them; what the engine prints goes to the folder `logs`.

    Raises UsageError for a wish that makes no sense and for a back end without a prefix cache that can be switched,
    EnvironmentRefused where the back end cannot run here, and BackendError where the engine fails.
    """
    config = resolve(replace(wish.request, question=wish.question))
    refuse_without_switch(config.backend)
    if OPTION in config.options:
        raise UsageError(f"option {OPTION}: both are asked", hint="leave it out")
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    (point,) = plan.points
    prompts = fitting_prompts(plan, config)[point.key]
    (scenario,) = config.scenarios.values()
    role, prefix = Role(max(r.k for r in scenario.roles)), scenario.workload.shared_prefix
    warmup = prompts.warmup[0].token_ids[0]
    requests = requests_of([chosen.token_ids for chosen in prompts.measured], warmup)
    longest = max(len(a.prompt) for a in requests if a.prompt is not None) + 2 * wish.new_tokens + TAIL
    positions = longest + role.k + 2
    refuse_too_long(positions, config.pair, scenario.rope_keys)
    opening = open_request(plan, plan.points, config, logs, [prompts])
    base = replace(opening, max_batch=1, max_positions=positions, perf_mode=False)
    apart = config.options.get("servers") == "apart"

    @contextmanager
    def opened(switch: Switch) -> Iterator[EngineWorker]:
        say(f"{config.backend}: prefix cache {switch}: {len(requests)} requests per role")
        request = replace(base, options={**config.options, OPTION: switch})
        log = logs / f"cache-{switch}.log"
        with closing(EngineWorker(config.backend, request, TIMEOUT_S, log)) as engine:
            yield engine

    budget = Budget(new_tokens=wish.new_tokens, ignore_eos=True)
    facts, divergences = both_passes(opened, requests, role, budget, warmup, apart=apart)
    margin, units = (FLOAT32, 0.0) if scenario.dtype == "float32" else (0.0, COARSER)
    limits = Limits(wish.max_lost_tokens, margin, units)
    samples = samples_of(requests)
    checks = judge(samples, divergences, role.name, limits)
    return Pair(config.backend, role, facts, limits, prefix, samples, divergences, checks)


def both_passes(
    opened: Callable[[Switch], AbstractContextManager[Asking]],
    requests: Sequence[Asked],
    role: Role,
    budget: Budget,
    warmup: tuple[int, ...],
    *,
    apart: bool = False,
) -> tuple[EngineFacts, tuple[CacheDivergence, ...]]:
    """Ask everything with the cache on, then with it off; `requests` gets the replies. `opened`: the engine for a pass.
    `warmup`: a prompt that comes before all others and does not count. `apart`: see `ask_all`.

    Returns the facts of the second engine, and where texts part, by its logits.
    """
    with opened("on") as engine:
        ask_all(engine, requests, role, budget, "on", warmup, apart=apart)
    with opened("off") as engine:
        ask_all(engine, requests, role, budget, "off", warmup, apart=apart)
        return engine.facts(), tuple(divergences_of(engine, requests, (BASELINE, role)))


def refuse_without_switch(backend: str) -> None:
    """Raise UsageError for a back end whose prefix cache cannot be switched."""
    engine: object = plugins.backend(backend)
    if not isinstance(engine, SwitchesPrefixCache) or not engine.switches_prefix_cache:
        raise UsageError(
            f"back end {backend!r} has no prefix cache that is switched here",
            hint="--backend vllm, sglang, llamacpp, vllm-offline or lmdeploy-pipeline",
        )


def refuse_too_long(positions: int, pair: PairRef, rope: Mapping[str, float | str] | None) -> None:
    """Raise UsageError where a next turn needs more positions than the target has."""
    limit, _ = target_limits(pair, rope, any_architecture=True)
    if limit is not None and positions > limit:
        raise UsageError(
            f"prompt, answer and next turn need {positions} positions, and the target of {pair.name} has {limit}",
            hint="a shorter --context, or fewer --new-tokens",
        )


def requests_of(groups: Sequence[Sequence[tuple[int, ...]]], warmup: tuple[int, ...] = ()) -> list[Asked]:
    """The requests in the order in which they are asked, after `warmup`. What a next turn asks is known once the
    baseline answers.
    """
    requests: list[Asked] = []
    sent = [warmup]
    for number, group in enumerate(groups):
        for at, prompt in enumerate(map(tuple, group)):
            known = max(shared(prompt, earlier) for earlier in sent)
            sent.append(prompt)
            requests.append(Asked(number, "shared prefix" if at else "first", min(known, len(prompt) - 1), prompt))
            if at:
                requests.append(Asked(number, "next turn", 0, None, before=len(requests) - 1))
    return requests


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    at = first_difference(a, b)
    return min(len(a), len(b)) if at is None else at


def ask_all(
    engine: Asking,
    requests: Sequence[Asked],
    role: Role,
    budget: Budget,
    switch: Switch,
    warmup: tuple[int, ...],
    *,
    apart: bool,
) -> None:
    """Ask every request in both roles. `apart`: one server runs at a time, so that all of a role come together."""
    for each in (BASELINE, role):
        reply_to(engine, each, warmup, budget)
        if apart:
            for request in requests:
                answer(engine, requests, request, each, budget, switch)
    if not apart:
        for turn, request in enumerate(requests):
            for each in (BASELINE, role) if turn % 2 == 0 else (role, BASELINE):
                answer(engine, requests, request, each, budget, switch)


def answer(
    engine: Asking, requests: Sequence[Asked], request: Asked, role: Role, budget: Budget, switch: Switch
) -> None:
    """Ask one request in one role."""
    if request.prompt is None:
        assert request.before is not None
        earlier = requests[request.before]
        earlier_answer = earlier.replies["on", BASELINE_NAME].tokens
        assert earlier.prompt is not None
        # The last token of an answer was never fed to the model, so that nothing of it can be cached.
        request.answered = len(earlier_answer) - 1
        request.reusable = len(earlier.prompt) + request.answered
        request.prompt = (*earlier.prompt, *earlier_answer, *earlier.prompt[:TAIL])
    request.replies[switch, role.name] = reply_to(engine, role, request.prompt, budget)


def reply_to(engine: Asking, role: Role, prompt: tuple[int, ...], budget: Budget) -> Reply:
    """Ask for one answer. Raises BackendError where the engine does not show requests, and where it was asked twice."""
    engine.prefill([prompt], draft=role.speculative)
    decoded = engine.decode(role, budget, ())
    if decoded.served is None:
        raise BackendError(
            f"{role}: its answer shows no request", hint="ask a server, or a library with -o show=requests"
        )
    if decoded.counters.get(ASKED_AGAIN):
        raise BackendError(
            f"{role}: its answer was seen in one piece, and the next one may have come from the cache",
            hint="ask for more tokens with --new-tokens, or on a machine that does not stand still",
        )
    return Reply(decoded.counters.get("cache_hit_tokens"), decoded.served.requests[0].ttft_ns, decoded.tokens[0])


def divergences_of(engine: Asking, requests: Sequence[Asked], roles: Sequence[Role]) -> Iterator[CacheDivergence]:
    """Yield where texts with the cache on leave those without it, with the gap there by the logits of `engine`."""
    for index, request in enumerate(requests):
        for role in roles:
            on, off = (request.replies[switch, role.name].tokens for switch in ("on", "off"))
            at, shorter = first_difference(on, off), min(len(on), len(off))
            if at is None and len(on) != len(off):
                yield CacheDivergence(role.name, index, shorter, None, None)
            if at is None:
                continue
            assert request.prompt is not None
            engine.prefill([request.prompt], draft=False)
            top = engine.ranked(0, off[:at], CANDIDATES)
            gap = None if top is None else gap_between((on[at], off[at]), top.values, top.tokens)
            yield CacheDivergence(role.name, index, at, gap, None if top is None else unit_of(top.values))


def samples_of(requests: Sequence[Asked]) -> tuple[Sample, ...]:
    """The requests as they are judged."""
    return tuple(sample_of(requests, request) for request in requests)


def sample_of(requests: Sequence[Asked], request: Asked) -> Sample:
    assert request.prompt is not None
    replies: dict[Switch, dict[str, Reply]] = {"on": {}, "off": {}}
    for (switch, role), reply in request.replies.items():
        replies[switch][role] = reply
    same = True
    if request.before is not None:
        earlier = requests[request.before].replies
        same = len({reply.tokens for (switch, _), reply in earlier.items() if switch == "on"}) == 1
    return Sample(
        group=request.group,
        turn=request.turn,
        prompt_tokens=len(request.prompt),
        reusable=request.reusable,
        on=replies["on"],
        off=replies["off"],
        same_text=same,
        answered=request.answered,
    )
