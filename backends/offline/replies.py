"""A driver's answers, checked: it runs code of an engine, and anything may come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, TypeVar

from specgate.backends.offline.spec_info import spec_counts
from specgate.backends.servers.exchange import SpecCounts
from specgate.contract import TopTokens
from specgate.contract.protocols import masked
from specgate.errors import BackendError

T = TypeVar("T")
MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Emitted:
    """Output of one step for one request: its new tokens, and the reason if the request ended; None if it goes on."""

    slot: int
    tokens: tuple[int, ...]
    finish: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine's loop, `ns` nanoseconds after the requests were sent.

    `spec`: the counts of all requests of the step that had a draft, with how many accepted how much. `cached`: prompt
    tokens that came from a cache.
    """

    ns: int
    emitted: tuple[Emitted, ...]
    spec: SpecCounts
    cached: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A block as vLLM's driver reports it.

    `heard`, `counted`: drafts, draft tokens and accepted tokens, summed over what the engine core returned, and by the
    counters of `LLM.get_metrics`.
    """

    steps: tuple[Step, ...]
    heard: tuple[int, ...]
    counted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a request. `spec`: (draft tokens, accepted tokens) of its step; None where it had no draft."""

    ns: int
    tokens: tuple[int, ...]
    spec: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Request:
    """A request as LMDeploy's driver reports it. `status`: of its last output.

    `totals`: the counts of its `spec_info` where that is summed over the request, by name; None where it is not.
    """

    sent_ns: int
    outputs: tuple[Output, ...]
    status: str
    cached: int
    totals: Mapping[str, int] | None = None


def began_of(reply: object, where: str) -> int:
    """Return the start of the times in an answer to `decode`, by `time.monotonic_ns` of this host. Raises BackendError
    if it is malformed.
    """
    return checked(reply, lambda raw: count(fields(raw)["began"]), where)


def loop_of(reply: object, slots: int, where: str) -> Loop:
    """Read an answer to `decode` with steps. Raises BackendError where it is malformed."""

    def read(raw: Mapping[str, object]) -> Loop:
        return Loop(
            tuple(step_of(step, slots) for step in items(raw["steps"])), three(raw["heard"]), three(raw["counted"])
        )

    return checked(reply, read, where)


def step_of(raw: object, slots: int) -> Step:
    step = fields(raw)
    emitted = []
    for entry in items(step["out"]):
        slot, tokens, finish = items(entry)
        if (number := count(slot)) >= slots:
            raise ValueError(f"slot {number} of {slots}")
        emitted.append(Emitted(number, counts(tokens), None if finish is None else str(finish)))
    drafts, drafted, accepted, by_position = items(step["spec"])
    spec = SpecCounts.of_survivals(count(drafts), count(drafted), count(accepted), counts(by_position))
    if spec.steps and (min(spec.hist, default=-1) < 0 or weighted(spec.hist) != spec.accepted):
        raise ValueError(f"{spec.accepted} accepted tokens, but by position {by_position} of {spec.steps} drafts")
    return Step(count(step["ns"]), tuple(emitted), spec, count(step["cached"]))


def weighted(hist: Sequence[int]) -> int:
    return sum(i * n for i, n in enumerate(hist))


def requests_of(reply: object, slots: int, where: str) -> tuple[Request, ...]:
    """Read an answer to `decode` with requests. Raises BackendError where it is malformed."""

    def read(raw: Mapping[str, object]) -> tuple[Request, ...]:
        requests = tuple(map(request_of, items(raw["requests"])))
        if len(requests) != slots:
            raise ValueError(f"{len(requests)} requests in place of {slots}")
        return requests

    return checked(reply, read, where)


def request_of(raw: object) -> Request:
    request = fields(raw)
    outputs = tuple(output_of(chunk) for chunk in items(request["chunks"]))
    totals = request["totals"]
    summed = None if totals is None else {name: count(value, f"{name} = ") for name, value in fields(totals).items()}
    if summed is not None:
        spec_counts(summed)
    return Request(count(request["sent"]), outputs, str(request["status"]), count(request["cached"]), summed)


def output_of(raw: object) -> Output:
    ns, tokens, spec = items(raw)
    if spec is None:
        return Output(count(ns), counts(tokens), None)
    drafted, accepted = items(spec)
    return Output(count(ns), counts(tokens), (count(drafted), count(accepted)))


def ranking_of(
    reply: object, count: int, decoded: int, vocab: int, where: str
) -> tuple[tuple[int, ...], TopTokens | None]:
    """Read an answer to `ranked`: the `decoded` tokens, and the most likely ones at the last of them, None where fewer
    than two are named. Raises BackendError where malformed.
    """

    def read(raw: object) -> tuple[tuple[int, ...], TopTokens | None]:
        answer, values, tokens = fields(raw), list[float](), list[int]()
        for entry in items(answer["top"]):
            value, token = items(entry)
            values.append(number(value))
            tokens.append(token_of(token, vocab))
        if len(values) > count or len(set(tokens)) < len(tokens) or values != sorted(values, reverse=True):
            raise ValueError(f"{count} different tokens, the most likely first, were asked for: {raw}")
        top = TopTokens(tuple(values), tuple(tokens)) if len(values) > 1 else None
        return tokens_of(answer["tokens"], decoded, vocab, where), top

    return checked(reply, read, where)


def tokens_of(reply: object, count_: int, vocab: int, where: str) -> tuple[int, ...]:
    """Read an answer to `follow`. Raises BackendError where it is malformed."""

    def read(raw: object) -> tuple[int, ...]:
        tokens = tuple(token_of(token, vocab) for token in items(raw))
        if len(tokens) != count_:
            raise ValueError(f"{len(tokens)} tokens in place of {count_}")
        return tokens

    return checked(reply, read, where)


def checked(reply: object, read: Callable[..., T], where: str) -> T:
    """`read(reply)`. Raises BackendError where the reply is not what it is read as."""
    try:
        return read(reply)
    except (LookupError, TypeError, ValueError) as error:
        raise BackendError(
            f"{where}: malformed answer: {type(error).__name__} {masked(str(error))[:160]}",
            hint="does docs/engines.md name this version of the library?",
        ) from error


def fields(raw: object) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise TypeError(f"{str(raw)[:80]} is no object")
    return raw


def items(raw: object) -> list[object]:
    if not isinstance(raw, list):
        raise TypeError(f"{str(raw)[:80]} is no list")
    return raw


def count(raw: object, name: str = "") -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not 0 <= raw < MOST:
        raise ValueError(f"{name}{str(raw)[:80]} is no count")
    return raw


def number(raw: object) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool) or not isfinite(raw):
        raise ValueError(f"{str(raw)[:80]} is no finite number")
    return float(raw)


def token_of(raw: object, vocab: int) -> int:
    if (token := count(raw)) >= vocab:
        raise ValueError(f"token id {token}, but the vocabulary has {vocab}")
    return token


def counts(raw: object) -> tuple[int, ...]:
    return tuple(map(count, items(raw)))


def three(raw: object) -> tuple[int, ...]:
    if len(numbers := counts(raw)) != 3:
        raise ValueError(f"{numbers} in place of three counts")
    return numbers
