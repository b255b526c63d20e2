"""The stub server's decoding, counters, streams and faults."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.backends.servers.stub import web

if TYPE_CHECKING:  # a hundred stubs are started, and few draw: the others need no numpy
    from tests.backends.servers.stub.sampling import Chain

VOCAB = 256
"""At most that of the pairs that tests name."""
ACCEPT = (3, 1, 2, 0, 3, 2)
"""Drafts accepted by step, repeated; cut to k."""
WRITTEN: Final = 0x400
"""The character of token 0."""
TOKENS: Final = range(10, 34)
"""The tokens that the chain of a stub that draws knows."""
END: Final = 33
"""The one that ends a text. Where ends are ignored, llama.cpp gives it no chance."""
DECODED: Final = 2.0**-10
"""How far a log-probability lies below that of a prefill where it comes from a decode step."""
HALF: Final = 12
"""One whose text ends in the middle of a character: llama.cpp streams it without an event."""


@dataclass
class Step:
    """Tokens that one step emits, and its drafts and accepted ones before the limit cut it."""

    tokens: list[int]
    drafted: int
    accepted: int


@dataclass
class Counts:
    """Counters of the server since its start."""

    requests: int = 0
    running: int = 0
    generated: int = 0
    steps: int = 0
    drafted: int = 0
    at_pos: list[int] = field(default_factory=list)
    iterations: list[dict[str, object]] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return sum(self.at_pos)

    def step(self, step: Step) -> None:
        if step.drafted:
            self.steps += 1
            self.drafted += step.drafted
            self.at_pos += [0] * (step.drafted - len(self.at_pos))
            for i in range(step.accepted):
                self.at_pos[i] += 1


def token(prompt: Sequence[int], index: int) -> int:
    return 2 + (sum(prompt) * 31 + len(prompt) * 17 + index * index * 7 + index * 13) % (VOCAB - 2)


def steps(prompt: Sequence[int], limit: int, k: int, script: Sequence[tuple[int, ...]] = ()) -> Iterator[Step]:
    """The prefill token, then cycles until `limit` tokens are out. `script`: (drafted, accepted) of each, repeated."""
    yield Step([token(prompt, 0)], 0, 0)
    made, cycle = 1, 0
    while made < limit:
        drafted, accepted = script[cycle % len(script)] if k and script else (k, ACCEPT[cycle % len(ACCEPT)])
        accepted = min(k, accepted)
        tokens = [token(prompt, made + i) for i in range(min(accepted + 1, limit - made))]
        yield Step(tokens, min(k, drafted), accepted)
        made, cycle = made + len(tokens), cycle + 1


def written(tokens: Sequence[int]) -> str:
    """The text of tokens: another character for each."""
    return "".join(chr(WRITTEN + token) for token in tokens)


def ids_of(prompt: str | Sequence[int]) -> list[int]:
    """The tokens of a prompt. The stub's tokenizer has one for each character of a text."""
    if not isinstance(prompt, str):
        return [*prompt]
    return [ord(c) - WRITTEN if WRITTEN <= ord(c) < WRITTEN + VOCAB else 2 + ord(c) % (VOCAB - 2) for c in prompt]


BLOCK = 16
"""Tokens of a block of the prefix cache. Where it drafts, the last block that matches is computed again, as in vLLM."""


@dataclass
class PrefixCache:
    """What has been computed, by the name that requests are kept apart under; None of a server whose cache is off."""

    texts: dict[str, list[list[int]]] = field(default_factory=dict)
    hits: int = 0

    def reuse(self, prompt: Sequence[int], name: str, k: int) -> int:
        """Count the tokens of `prompt` that come from the cache."""
        known = max((common(prompt, text) for text in self.texts.get(name, [])), default=0)
        whole = min(known, len(prompt) - 1) // BLOCK - bool(k)
        reused = BLOCK * max(0, whole)
        self.hits += reused
        return reused


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the prefix that both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


Writer = Callable[[int, int, Step], list[dict[str, Any]]]
"""(number of the event, how many there are, its tokens) → what a dialect makes of it."""


class Stub:
    """State and faults of one running stub. `rate`: steps per second of a stream."""

    def __init__(self, dialect: str, k: int, rate: float, model: str, faults: dict[str, str]) -> None:
        self.dialect, self.k, self.rate, self.model, self.faults = dialect, k, rate, model, faults
        self.source: str | None = None
        """The folder or repository that it says it has loaded."""
        self.counts = Counts()
        self.cache: PrefixCache | None = None
        self.chain: Chain | None = None
        """What it draws from where it is asked for a temperature; None where it decodes by the script in any case."""
        self.script: Sequence[tuple[int, ...]] = ()
        """Drafted and accepted tokens of its steps, repeated; empty where all draft K."""
        self.sent_at: list[list[float]] = []
        self.traces: Path | None = None
        """Where it writes the traces of its profiler."""
        self.decode_s = 0.0
        """From first to last events, summed over its requests."""
        self.streamed: list[int] = []
        """How many steps each request had that has ended since the last profile began."""

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def reused(self, prompt: Sequence[int], name: str | None, *, may: bool = True) -> int:
        """Tokens of `prompt` that come from the cache; those of an answer are as scripted. `name`: what the request is
        cached under. `may`: whether it allows that.
        """
        if self.cache is None or not may or (self.k and self.has("forgets")):
            return int(self.faults.get("cached", 0))
        return self.cache.reuse(prompt, name or "", self.k)

    def remember(self, prompt: Sequence[int], name: str | None, planned: Sequence[Step]) -> None:
        """The last token of an answer has no keys and values yet."""
        if self.cache is not None:
            tokens = [token for step in planned for token in step.tokens]
            self.cache.texts.setdefault(name or "", []).append([*prompt, *tokens[:-1]])

    def plan(
        self,
        prompt: Sequence[int],
        limit: int,
        cached: int = 0,
        data: Mapping[str, Any] | None = None,
        forbidden: Collection[int] = (),
    ) -> list[Step]:
        """`data`: the settings of its sampling. `forbidden`: tokens that must not be drawn."""
        k = 0 if self.has("no_drafts") else self.k
        if self.chain is not None and data and data["temperature"]:
            return list(self.chain.steps(prompt, limit, k, data, forbidden))
        planned = list(steps(prompt, limit, k, self.script))
        if self.has("other_weights") or (self.k and cached and self.has("corrupts")):
            for step in planned:
                step.tokens = [2 + (token - 1) % (VOCAB - 2) for token in step.tokens]
        if self.has("strange_ids"):
            planned[-1].tokens[-1] = 10**6
        return planned[:3] if self.has("short") else planned

    def count(self, planned: Sequence[Step]) -> None:
        """As real engines do: when a request has ended, and its last event may have been sent already."""
        own = Counts()
        for step in self.claimed(planned):
            own.step(step)
            self.counts.step(step)
        self.streamed.append(len(planned))
        self.counts.drafted += int(self.faults.get("padding", 0))
        made = sum(len(step.tokens) for step in planned)
        self.counts.requests += 2 if self.has("foreign") else 1
        self.counts.generated += made + (5 if self.has("foreign") else 0)
        stats = {
            "numRequestsWithDraftTokens": own.steps,
            "numDraftTokens": own.drafted + int(self.faults.get("padding", 0)),
            "numAcceptedTokens": own.accepted,
        }
        idle = {"numActiveRequests": 0, "numQueuedRequests": 0}
        self.counts.iterations.append(
            {"iter": self.counts.requests, **idle, "specDecodingStats": stats if own.steps else None}
        )
        if self.has("reset"):
            self.counts = Counts()

    def claimed(self, planned: Sequence[Step]) -> Sequence[Step]:
        """The steps that it counts; with `claims=LENGTH` fewer, of which each emitted about so many tokens."""
        if not self.k or not self.has("claims"):
            return planned
        emitted = sum(step.accepted + 1 for step in planned if step.drafted)
        number = round(emitted / float(self.faults["claims"]))
        accepted = [(emitted - number + i) // number for i in range(number)]
        return [Step([], self.k, count) for count in accepted]

    def streamed_as(self, planned: Sequence[Step]) -> list[tuple[int, Step]]:
        """(number of the step at whose end it is sent, its tokens) of each event.

        `interval=N`: those of N steps together, as vLLM's --stream-interval has it. `holds=N`: none before step N, and
        with `at_once` what came until then as one. `per_token`: one event per token, as llama.cpp.
        """
        interval, last_held = int(self.faults.get("interval", 1)), int(self.faults.get("holds", 0))
        last_held = min(last_held, len(planned) - 1)
        if self.has("at_once"):
            joined = Step([t for step in planned[: last_held + 1] for t in step.tokens], self.k, 0)
            return [
                (last_held, joined),
                *((last_held + 1 + i, step) for i, step in enumerate(planned[last_held + 1 :])),
            ]
        if self.has("per_token"):
            return [(i, replace(step, tokens=[t])) for i, step in enumerate(planned) for t in step.tokens]
        groups = [(0, planned[:1]), *((i, planned[i : i + interval]) for i in range(1, len(planned), interval))]
        return [
            (max(i + len(steps) - 1, last_held), Step([t for s in steps for t in s.tokens], self.k, 0))
            for i, steps in groups
        ]

    def think(self, events: Sequence[dict[str, Any]]) -> None:
        """Stream a step as thinking, where that is asked for: `thinks` names the channel, its ids may be dropped."""
        if (channel := self.faults.get("thinks")) is None:
            return
        for event in events:
            choice = event["choices"][0] if event.get("choices") else event
            place = choice.get("delta", choice)
            key = next(key for key in ("text", "content") if key in place)
            place[channel], place[key] = place[key], ""
            if self.has("thinks_without_ids"):
                for ids in ("token_ids", "tokens"):
                    choice.pop(ids, None)

    def die_in_time(self) -> None:
        """End the process once so many requests have been answered."""
        if self.counts.requests >= int(self.faults.get("die_after", 1 << 30)):
            os._exit(9)

    async def stream(self, request: web.Request, planned: Sequence[Step], write: Writer) -> web.StreamResponse:
        """Send one event per step at the scripted rate; faults strike after the second one."""
        if self.has("status"):
            message = f"refused: {request.headers.get('Authorization', '')}"
            return web.json_response({"error": {"message": message}}, status=int(self.faults["status"]))
        if self.counts.running >= int(self.faults.get("refuse_beyond", 1 << 30)):
            return web.json_response({"error": {"message": "too many requests at a time"}}, status=429)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.die_in_time()
        self.counts.running += 1
        stamps: list[float] = []
        self.sent_at.append(stamps)
        whole = self.has("one_piece") or len(self.sent_at) <= int(self.faults.get("one_piece_first", 0))
        began = time.perf_counter()
        buffered = b""
        began += float(self.faults.get("prefill_s", 0))
        events = self.streamed_as(planned)
        for number, (step_number, step) in enumerate(events):
            await asyncio.sleep(max(0.0, began + step_number / self.rate - time.perf_counter()))
            if number == 2:
                await self.strike(request, response)
            result = write(number, len(events), step)
            if number < 2 * len(events) // 3:
                self.think(result)
            data = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in result)
            if whole:
                buffered += data
            else:
                await response.write(data)
            stamps.append(time.perf_counter())
        self.decode_s += stamps[-1] - stamps[0]
        self.counts.running -= 1
        if self.has("late_counters"):
            asyncio.get_running_loop().call_later(0.2, self.count, planned)
        else:
            self.count(planned)
        await response.write(buffered + (b"" if self.dialect == "llamacpp" else b"data: [DONE]\n\n"))
        return response

    async def strike(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.has("die"):
            os._exit(9)
        if self.has("hang"):
            await asyncio.Event().wait()
        if self.has("malformed_json"):
            await response.write(b'data: {"choices": [{"text": \n\n')
        if self.has("malformed_sse"):
            await response.write(b"<html>gateway</html>\n\n")
        if self.has("cut"):
            await response.write(b'data: {"choi')
            assert request.transport is not None
            request.transport.abort()
        if self.has("error_event"):
            print(self.faults["error_event"], file=sys.stderr, flush=True)
            await response.write(b'data: {"error": {"message": "the engine has gone"}}\n\n')
