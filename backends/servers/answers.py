"""Interpret a recording: tokens, times and counts, checked as far as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from specgate.backends.servers.events import THINKING, channel_of, events, whole_answer
from specgate.backends.servers.exchange import Ask, Chunk, Json, SpecCounts, Usage
from specgate.contract import Finish, ServedRequest
from specgate.contract.protocols import masked
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Recording

Read = Callable[[Json, int], Chunk]
"""(event, number of tokens received before it) → chunk. The adapter provides it."""
FINISHES = {"length": Finish.LENGTH, "limit": Finish.LENGTH, "eos": Finish.EOS, "word": Finish.STOP}


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request. `spec` is what the engine reports about this request alone, where it does.

    `began_ns`: as in `Recording`; `times` count from there.
    """

    tokens: tuple[int, ...]
    usage: Usage
    finish: Finish
    times: ServedRequest
    spec: SpecCounts | None
    top: tuple[float, ...]
    top_tokens: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    began_ns: int | None = None


class LostIds(BackendError):
    """A stream left out the ids of tokens that the server counts. `slots`: the requests that this happened to."""

    slots: tuple[int, ...] = ()


def understand(recording: Recording, ask: Ask, read: Read, where: str, prompt_tokens: int) -> Answer:
    """Read a recording into an answer.

    Tokens are counted by their ids, whatever channel their text came in: what a model thinks is decoded like anything
    else, and the first token of any channel is the first token.

    Raises BackendError where it is malformed, unfinished, or contradicts its own usage record. `where` names the
    server.
    """
    tokens: list[int] = []
    times: list[int] = []
    counts: list[int] = []
    unnamed: Counter[str] = Counter()
    said = Chunk()
    for arrived, event in (whole_answer if ask.whole else events)(recording.pieces, where):
        try:
            chunk = read(event, len(tokens))
            refuse_not_finite(chunk.top)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise BackendError(
                f"{where}: malformed event: {type(error).__name__} {masked(str(error))[:160]}: "
                f"{masked(str(event))[:160]}"
            ) from error
        if chunk.tokens:
            tokens += chunk.tokens
            times.append(arrived)
            counts.append(len(chunk.tokens))
        elif channel := channel_of(event):
            unnamed[channel] += 1
        said = Chunk(
            finish=chunk.finish or said.finish,
            usage=chunk.usage or said.usage,
            spec=chunk.spec or said.spec,
            top=said.top or chunk.top,
            top_tokens=said.top_tokens if said.top else chunk.top_tokens,
            forbidden=said.forbidden or chunk.forbidden,
        )
    if said.finish is None or said.usage is None:
        missing = "no finish reason" if said.finish is None else "no usage record"
        raise BackendError(f"{where}: the answer ended after {len(tokens)} tokens with {missing}")
    answer = Answer(
        tokens=tuple(tokens),
        usage=said.usage,
        finish=finish_of(said.finish, ask, where),
        times=ServedRequest(recording.sent_ns, tuple(times), tuple(counts), recording.due_ns, said.usage.cached),
        spec=said.spec,
        top=said.top,
        top_tokens=said.top_tokens,
        forbidden=said.forbidden,
        began_ns=recording.began_ns,
    )
    refuse_unnamed_thinking(unnamed, where)
    check(answer, ask, where, prompt_tokens, unnamed)
    return answer


def refuse_unnamed_thinking(unnamed: Mapping[str, int], where: str) -> None:
    """Raise BackendError where what the model thinks came without token ids, so that it would count as waiting for the
    first token. `unnamed`: channel → events with text and without ids.
    """
    for channel in THINKING:
        if unnamed.get(channel):
            raise BackendError(
                f"{where}: {unnamed[channel]} events have text in {channel!r} and no token ids",
                hint="what the model thinks is decoded too: leave out what parses it (a reasoning parser, a gateway), "
                "or have it keep the ids",
            )


def without_ids(unnamed: Mapping[str, int]) -> str:
    """Which text came without ids, as the end of a message; empty where none did."""
    found = [f"{count} events with text in {channel!r}" for channel, count in unnamed.items()]
    return f" ({', '.join(found)} came without token ids)" if found else ""


def refuse_not_finite(logarithms: tuple[float, ...]) -> None:
    if not all(map(isfinite, logarithms)):
        raise ValueError(f"log-probabilities {logarithms[:4]}")


def refuse_strange_ids(answers: Sequence[Answer], vocab: int, where: str) -> None:
    """Raise BackendError for a token id that is not below `vocab`, the size of the target's vocabulary."""
    for slot, answer in enumerate(answers):
        for position, token in enumerate(answer.tokens):
            if not 0 <= token < vocab:
                raise BackendError(
                    f"{where}, slot {slot}: token {position} has id {str(token)[:40]}, and the target has {vocab} ids",
                    hint="is it the pair's target?",
                )


def finish_of(said: str, ask: Ask, where: str) -> Finish:
    """The finish reason. Most engines say `stop` both for the model's end token and for stop tokens."""
    if said == "stop":
        return Finish.STOP if ask.stop else Finish.EOS
    if said not in FINISHES:
        raise BackendError(f"{where}: finish reason {masked(said)[:80]!r}: the request was not finished")
    return FINISHES[said]


def check(answer: Answer, ask: Ask, where: str, prompt_tokens: int, unnamed: Mapping[str, int]) -> None:
    """Check the usage record against what was sent, asked for and received. Raises BackendError.

    `unnamed`: see `refuse_unnamed_thinking`.
    """
    usage, received = answer.usage, len(answer.tokens)
    if usage.prompt != prompt_tokens:
        raise BackendError(
            f"{where}: the server counted {usage.prompt} prompt tokens, {prompt_tokens} were meant",
            hint="another tokenizer, or tokens added to the prompt: is it the pair's target?",
        )
    if not received and usage.completion:
        raise BackendError(
            f"{where}: it counts {usage.completion} tokens, and its answer has no token ids",
            hint="without them tokens can neither be compared nor counted: is it older than docs/engines.md says, or "
            "does a proxy in between drop them?",
        )
    # Some engines count the token that ended the answer but do not return it.
    if usage.completion - received not in ((0,) if answer.finish is Finish.LENGTH else (0, 1)):
        raise LostIds(
            f"{where}: {received} tokens received, but the usage record says {usage.completion}{without_ids(unnamed)}"
        )
    if not received:
        raise BackendError(f"{where}: no token received")
    if ask.ignore_eos and usage.completion != ask.new_tokens:
        raise BackendError(
            f"{where}: {usage.completion} tokens in place of {ask.new_tokens}",
            hint="the server does not keep to ignore_eos, or its context is too short",
        )
