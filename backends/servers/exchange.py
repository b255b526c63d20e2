"""Requests, answers and counters, in terms that all engines share; and prompts as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.contract import Sampling
from specgate.contract.protocols import cleaned
from specgate.errors import BackendError, UsageError

Json = Mapping[str, object]


def one_line(text: str, longest: int) -> str:
    """What a server says, for a message: on one line, masked, without control characters."""
    return cleaned(" ".join(text.split()))[:longest]


class OtherForm(BackendError):
    """An answer, or the counters, are not in the form of a release that is known, or lack a part of it."""


class MissingFields(ValueError):
    """An event lacks fields that every release which is known has under one of its names. The text says which."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion request, decoded greedily where `sampling` is None.

    `top` asks for the log-probabilities of that many most likely tokens at each position. `reuse`: whether the server
    may take the prompt's keys and values from its prefix cache, where a request says that. `salt`: a name under which
    the server is to cache this request, so that only requests of that name share their caches. `seed`: of the random
    numbers, where requests of this engine take one. `whole`: the answer may come in one piece, where its stream leaves
    out ids (`Adapter.names_all`). `chat`: the fields of a chat request (`messages`, …); None for a completion. `named`:
    the log-probability of each token is asked for, which names it.
    """

    model: str
    prompt: tuple[int, ...] | str
    new_tokens: int
    ignore_eos: bool
    stop: tuple[int, ...] = ()
    top: int = 0
    reuse: bool = False
    salt: str | None = None
    sampling: Sampling | None = None
    seed: int | None = None
    whole: bool = False
    chat: Json | None = None
    named: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's own token counts. `cached` are prompt tokens that came from a cache; None where it does not say."""

    prompt: int
    completion: int
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class KvCache:
    """`tokens`: how many the KV cache has room for, over all requests. `bytes`: its memory. None: not told.

    `of_free`: the engine sizes it by the memory that is free when it starts, not by that of the whole GPU.
    """

    tokens: int | None = None
    bytes: int | None = None
    of_free: bool = False


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """Request-steps with a draft, and their drafted and accepted tokens.

    `hist[i]` is the number of steps that accepted i draft tokens, `lengths[i]` of those that proposed i; () where the
    engine does not count that.
    """

    steps: int
    drafted: int
    accepted: int
    hist: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    @classmethod
    def of_survivals(cls, steps: int, drafted: int, accepted: int, at_pos: tuple[int, ...]) -> SpecCounts:
        """Counts from `at_pos`, where at_pos[i] is the number of steps whose draft token i + 1 was accepted.

        The histogram is made of their differences.
        """
        reached = (steps, *at_pos)
        hist = (*(a - b for a, b in zip(reached, at_pos, strict=False)), at_pos[-1]) if at_pos else ()
        return cls(steps, drafted, accepted, hist)

    def __add__(self, other: SpecCounts) -> SpecCounts:
        hist = tuple(a + b for a, b in zip(*padded(self.hist, other.hist), strict=True)) if self.counts(other) else ()
        return SpecCounts(self.steps + other.steps, self.drafted + other.drafted, self.accepted + other.accepted, hist)

    def __sub__(self, other: SpecCounts) -> SpecCounts:
        return self + SpecCounts(-other.steps, -other.drafted, -other.accepted, tuple(-n for n in other.hist))

    def counts(self, other: SpecCounts) -> bool:
        """True if the histogram of a sum is known: each side has one or has no steps."""
        return all(counts.hist or not counts.steps for counts in (self, other))


def padded(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    width = max(len(a), len(b))
    return a + (0,) * (width - len(a)), b + (0,) * (width - len(b))


NOTHING: Final = SpecCounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a streamed answer. A field is set where the engine says something about it.

    `top` are the log-probabilities of the most likely tokens at the last of `tokens`, highest first; `top_tokens` are
    these tokens, () where the engine does not name them. `forbidden`: tokens that were given no chance, whatever their
    log-probabilities. `names`, `top_names`: the bytes of `tokens` and of `top_tokens`, where they are told and ids are
    not. `prompt`: the ids of the prompt, where the server repeats them.
    """

    tokens: tuple[int, ...] = ()
    finish: str | None = None
    usage: Usage | None = None
    spec: SpecCounts | None = None
    top: tuple[float, ...] = ()
    top_tokens: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    names: tuple[bytes, ...] = ()
    top_names: tuple[bytes, ...] = ()
    prompt: tuple[int, ...] = ()

    @classmethod
    def ranking(cls, candidates: Iterable[tuple[float, int]]) -> Chunk:
        """A chunk with nothing but log-probabilities and the tokens that have them."""
        ordered = sorted(candidates, reverse=True)
        return cls(top=tuple(p for p, _ in ordered), top_tokens=tuple(token for _, token in ordered))


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's counters since its start. The difference of two readings is what happened in between.

    `requests`: answered requests. `generated`: completion tokens. `busy`: requests that run or wait now. `cached`:
    prompt tokens that came from a cache. `speculative`: whether the server has counters of speculation at all.
    `decode_s`: seconds between first and last token by the engine's own clock, summed over the answered requests. None
    where the engine does not count or tell it.
    """

    requests: int | None = None
    generated: int | None = None
    busy: int | None = None
    cached: int | None = None
    spec: SpecCounts = NOTHING
    speculative: bool | None = None
    decode_s: float | None = None


class PromptTexts:
    """Turns prompts into text with the target's tokenizer. Refuses a text that would give other tokens."""

    def __init__(self, file: Path) -> None:
        """`file`: the target's tokenizer. Raises UsageError where there is none."""
        from specgate.checkpoints.tokenizer_file import read_tokenizer

        if not file.is_file():
            raise UsageError(
                f"option prompts = text: {file} does not exist",
                hint="--tokenizer FILE|DIR names one; or leave the option out: token ids are sent then",
            )
        self.tokenizer = read_tokenizer(file)

    def of(self, prompt: tuple[int, ...]) -> str:
        """The text of `prompt`. Raises BackendError where tokenising it again gives other tokens."""
        text: str = self.tokenizer.decode(list(prompt), skip_special_tokens=False)
        again = self.tokenizer.encode(text, add_special_tokens=False).ids
        if tuple(again) != prompt:
            raise BackendError(
                f"a prompt of {len(prompt)} tokens, as text, has {len(again)}, or other ones",
                hint="leave out -o prompts=text",
            )
        return text
