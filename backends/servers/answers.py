"""Interpret a recording: tokens, times and counts, checked as far as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from specgate.backends.servers.events import THINKING, channel_of, events, text_in, whole_answer
from specgate.backends.servers.exchange import Ask, Chunk, Json, MissingFields, OtherForm, SpecCounts, Usage
from specgate.backends.servers.texts import Made, Piece, TextTokens
from specgate.contract import Finish, ServedRequest
from specgate.contract.protocols import masked
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Recording

Read = Callable[[Json, int], Chunk]
"""(event, number of tokens received before it) → chunk. The adapter provides it."""
FINISHES = {
    "length": Finish.LENGTH, "limit": Finish.LENGTH, "eos": Finish.EOS, "word": Finish.STOP,
    "tool_calls": Finish.EOS, "function_call": Finish.EOS,
}  # fmt: skip
"""Finish reason → what ended the text. A call of a tool ends with the model's end token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request. `spec` is what the engine reports about this request alone, where it does.

    `began_ns`: as in `Recording`; `times` count from there. `made`: how its tokens were made of its text; None where
    they came as ids. `prompt`: the ids of the prompt as the server tells them, () where it does not. `text`: what was
    answered in the channel of answers, without what the model thought.
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
    made: str | None = None
    prompt: tuple[int, ...] = ()
    text: str = ""


class LostIds(BackendError):
    """A stream left out the ids of tokens that the server counts. `slots`: the requests that this happened to."""

    slots: tuple[int, ...] = ()


def understand(
    recording: Recording, ask: Ask, read: Read, where: str, prompt_tokens: int | None, texts: TextTokens | None = None
) -> Answer:
    """Read a recording into an answer.

    Tokens are counted by their ids, whatever channel their text came in: what a model thinks is decoded like anything
    else, and the first token of any channel is the first token. If no event has an id, `texts` makes tokens of the
    text; without it such an answer is refused. `prompt_tokens`: how many were sent; None where that is not known.

    Raises BackendError where it is malformed, unfinished, or contradicts its own usage record. `where` names the
    server.
    """
    tokens: list[int] = []
    times: list[int] = []
    counts: list[int] = []
    unnamed: Counter[str] = Counter()
    empty: list[Json] = []
    pieces: list[Piece] = []
    answered: list[str] = []
    merged = Chunk()
    for arrived, event in (whole_answer if ask.whole else events)(recording.pieces, where):
        try:
            chunk = read(event, len(tokens))
            refuse_not_finite(chunk.top)
        except MissingFields as error:
            raise OtherForm(f"{where}: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise OtherForm(
                f"{where}: malformed event: {type(error).__name__} {masked(str(error))[:160]}: "
                f"{masked(str(event))[:160]}"
            ) from error
        shows = chunk if chunk.top or chunk.tokens or chunk.names else merged  # a ranking is that of the last token
        if (text := text_in(event)) or chunk.names:
            pieces.append(Piece(arrived, text, chunk.names))
            answered += [text] if channel_of(event) not in THINKING else []
        if chunk.tokens:
            tokens += chunk.tokens
            times.append(arrived)
            counts.append(len(chunk.tokens))
        elif channel := channel_of(event):
            unnamed[channel] += 1
        elif chunk == Chunk():
            empty.append(event)
        merged = Chunk(
            finish=chunk.finish or merged.finish,
            usage=chunk.usage or merged.usage,
            spec=chunk.spec or merged.spec,
            top=shows.top,
            top_tokens=shows.top_tokens,
            top_names=shows.top_names,
            forbidden=merged.forbidden or chunk.forbidden,
            prompt=chunk.prompt or merged.prompt,
        )
    if merged.finish is None or merged.usage is None:
        missing = "no finish reason" if merged.finish is None else "no usage record"
        beside = f"; {len(empty)} events say nothing, as {masked(str(empty[0]))[:120]}" if empty else ""
        raise OtherForm(
            f"{where}: the answer ended after {len(tokens)} tokens with {missing}{beside}",
            hint="does a gateway in between leave it out?",
        )
    made = Made(tuple(tokens), tuple(times), tuple(counts), "")
    # A parser of a chat may hold back events, and their ids with them; their text comes later.
    partial = ask.chat is not None and len(tokens) < merged.usage.completion - 1
    if texts is not None and (not tokens or partial) and pieces and merged.usage.completion:
        made, unnamed = texts.made(pieces, merged.usage.completion), Counter()
    answer = Answer(
        tokens=made.tokens,
        usage=merged.usage,
        finish=finish_of(merged.finish, ask, where),
        times=ServedRequest(recording.sent_ns, made.times, made.counts, recording.due_ns, merged.usage.cached),
        spec=merged.spec,
        top=merged.top,
        top_tokens=merged.top_tokens or tuple(map(texts.id_of, merged.top_names) if texts else ()),
        forbidden=merged.forbidden,
        began_ns=recording.began_ns,
        made=made.how or None,
        prompt=merged.prompt,
        text="".join(answered),
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
    """End of a message that names the text without token ids; empty if all had them."""
    parts = [f"{count} events with text in {channel!r}" for channel, count in unnamed.items()]
    return f" ({', '.join(parts)} came without token ids)" if parts else ""


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


def finish_of(reason: str, ask: Ask, where: str) -> Finish:
    """The finish reason. Most engines say `stop` both for the model's end token and for stop tokens."""
    if reason == "stop":
        return Finish.STOP if ask.stop else Finish.EOS
    if reason not in FINISHES:
        raise BackendError(f"{where}: finish reason {masked(reason)[:80]!r}: the request was not finished")
    return FINISHES[reason]


def check(answer: Answer, ask: Ask, where: str, prompt_tokens: int | None, unnamed: Mapping[str, int]) -> None:
    """Check the usage record against what was sent, asked for and received. Raises BackendError.

    `unnamed`: see `refuse_unnamed_thinking`.
    """
    usage, received = answer.usage, len(answer.tokens)
    if prompt_tokens is not None and usage.prompt != prompt_tokens:
        raise BackendError(
            f"{where}: the server counted {usage.prompt} prompt tokens, {prompt_tokens} were meant",
            hint="another tokenizer, or tokens added to the prompt: is it the pair's target?",
        )
    if not received and usage.completion:
        raise OtherForm(
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
