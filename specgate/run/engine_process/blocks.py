"""The calls that open an engine and decode blocks, and what contradicts a request in their answers.

open      load the pair
prefill   fill the caches
decode    one block
serve     one block of requests under load
trace     one block, watched
close     release everything and end (no answer)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from specgate import plugins
from specgate.contract import Budget, EngineFacts, Role, ServedRequest
from specgate.contract.load import EARLY_NS, OfferedLoad
from specgate.contract.protocols import (
    Activity,
    Decoded,
    Engine,
    FollowsText,
    OffersSampling,
    OpenRequest,
    ScriptedTrace,
    ServesLoad,
    Text,
)
from specgate.contract.types import Check, Count, fields_of
from specgate.errors import BackendError, UsageError
from specgate.run.engine_process.wire import Call, Wrong, counted, record, shown, unusable

Prompts = tuple[tuple[int, ...], ...]
Ids = Annotated[Sequence[int], Check(tuple)]
"""Numbers in whatever sequence the harness has; a tuple at the engine's side."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that has loaded its pair.

    `scripted`: whether it reports on its own decode loop (`protocols.ScriptedTrace`).
    `follows`: whether it can decode on from any text (`protocols.FollowsText`).
    """

    facts: EngineFacts
    scripted: bool
    follows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(OpenRequest, Call[Opened], kind="open"):
    """`Backend.open`, of the back end called `backend`. The other fields are those of `protocols.OpenRequest`."""

    backend: str

    @classmethod
    def of(cls, backend: str, request: OpenRequest) -> Open:
        """Return the call for `request`."""
        return cls(backend=backend, **fields_of(OpenRequest, request))

    @property
    def request(self) -> OpenRequest:
        """The request of the call."""
        return OpenRequest(**fields_of(OpenRequest, self))

    def engine(self) -> Engine:
        """Open the engine, in whose process this runs."""
        backend = plugins.backend_here(self.backend)
        if self.sampling is not None and not isinstance(backend, OffersSampling):
            raise UsageError(f"back end {self.backend!r} decodes greedily", hint="leave sampling out")
        return backend.open(self.request)

    def ask(self, engine: Engine) -> object:
        facts = engine.facts()
        record(facts, EngineFacts, "facts")
        return Opened(facts, isinstance(engine, ScriptedTrace), isinstance(engine, FollowsText))


@dataclass(frozen=True, slots=True)
class Close(Call[None], kind="close"):
    """`Engine.close`. No answer follows."""


@dataclass(frozen=True, slots=True)
class Prefill(Call[Count], kind="prefill", field="ns"):
    """`Engine.prefill`."""

    prompts: Prompts
    draft: bool

    def ask(self, engine: Engine) -> object:
        return engine.prefill(self.prompts, draft=self.draft)


@dataclass(frozen=True, slots=True)
class Decode(Call[Decoded], kind="decode", field="decoded"):
    """`Engine.decode`."""

    role: Role
    budget: Budget
    stop_token_ids: Ids

    def wrong(self, answer: Decoded, slots: int) -> Wrong:
        return wrong_in_block(answer, slots)


@dataclass(frozen=True, slots=True)
class Serve(Call[Decoded], kind="serve", field="decoded"):
    """`ServesLoad.serve`."""

    role: Role
    prompts: Prompts
    budget: Budget
    offered: OfferedLoad
    stop_token_ids: Ids

    def ask(self, engine: Engine) -> object:
        if not isinstance(engine, ServesLoad):
            text = "the engine takes no requests while others run: it has no `serve`"
            raise BackendError(text, hint="measure a server")
        return engine.serve(self.role, self.prompts, self.budget, self.offered, self.stop_token_ids)

    def wrong(self, answer: Decoded, slots: int) -> Wrong:
        return wrong_in_serving(answer, len(self.prompts), self.offered)


@dataclass(frozen=True, slots=True)
class Traced:
    """A watched block. `source`: who looked, the harness's profiler or the engine itself."""

    decoded: Decoded
    activity: Activity
    source: Literal["profiler", "engine"]


@dataclass(frozen=True, slots=True)
class Trace(Call[Traced], kind="trace"):
    """One untimed block, watched by the harness's profiler or by an engine with `protocols.ScriptedTrace`.

    An engine with scripted traces has no kernels that a profiler could see.
    """

    role: Role
    budget: Budget

    def ask(self, engine: Engine) -> object:
        if isinstance(engine, ScriptedTrace):
            traced: object = engine.trace(self.role, self.budget)
        else:
            from specgate.run import profiler  # an eighth of the start of a process, and few are asked to trace

            traced = profiler.trace(engine, self.role, self.budget)
        if not isinstance(traced, tuple) or len(traced) != 2:
            raise unusable(
                "trace",
                traced,
                "a pair of specgate.contract.protocols.Decoded and specgate.contract.protocols.Activity",
            )
        decoded, activity = traced
        for value, noun in ((decoded, Decoded), (activity, Activity)):
            record(value, noun, "trace")
        return Traced(decoded, activity, "engine" if isinstance(engine, ScriptedTrace) else "profiler")

    def wrong(self, answer: Traced, slots: int) -> Wrong:
        return wrong_in_block(answer.decoded, slots)


# ── what contradicts a request ───────────────────────────────────────────────────────────────────────────────────────

PROMPTS: Final = "prompts that were prefilled"


def wrong_in_text(text: Decoded | Text, slots: int) -> Wrong:
    """A text has a row per prompt."""
    yield from counted("tokens", text.tokens, slots, PROMPTS)
    yield from counted("finish", text.finish, slots, PROMPTS)


def wrong_in_block(decoded: Decoded, slots: int) -> Wrong:
    """A block has a row per prompt and a row per step wherever it must, and takes time if anything was decoded."""
    yield from wrong_in_text(decoded, slots)
    yield from counted("truncated", decoded.truncated, slots, PROMPTS)
    steps = len(decoded.step_ns)
    for field, table in (("accepted", decoded.accepted), ("drafted", decoded.drafted)):
        yield from counted(field, table, steps, "steps of step_ns")
        for step, row in enumerate(table):
            yield from counted(f"{field}[{step}]", row, slots, PROMPTS)
    if decoded.experts is not None:
        yield from counted("experts.touched", decoded.experts.touched, steps, "steps of step_ns")
    if decoded.served is not None:
        yield from counted("served.requests", decoded.served.requests, slots, PROMPTS)
    if decoded.began_ns is not None and decoded.prefill_ns is None:
        yield "began_ns", str(decoded.began_ns), "null without prefill_ns: it says when that prefill began"
    emitted = sum(len(row) - 1 for row in decoded.tokens)
    if decoded.elapsed_ns == 0 and (steps or emitted):
        yield "elapsed_ns", "0", f"it should be greater than 0: the block has {steps} steps and {emitted} tokens"


def wrong_in_serving(decoded: Decoded, requests: int, offered: OfferedLoad) -> Wrong:
    """Every request under load has a slot or was refused, none has both, it was sent as `offered` says, and what a
    block must have holds. `requests`: the prompts, which a load with an end may take again, or not all.
    """
    if (served := decoded.served) is None:
        yield "served", "null", "a block of requests under load has its requests"
        return
    sent = requests if offered.until_ns is None else len(served.requests) + len(served.refused)
    if len(served.requests) + len(served.refused) != sent:
        value = f"{len(served.requests)} requests and {len(served.refused)} refused"
        yield "served", value, f"one for each of the {requests} prompts"
    answered = served.prompts or tuple(range(len(served.requests)))
    if sorted((*answered, *(r.prompt for r in served.refused))) != sorted(i % requests for i in range(sent)):
        often = "once" if offered.until_ns is None else "equally often, in their order"
        yield "served.prompts", shown(list(answered)), f"each of the {requests} prompts {often}, with the refused ones"
    yield from wrong_in_block(decoded, len(served.requests))
    if offered.clients is None:
        yield from wrong_in_arrivals(served.requests, answered, offered.arrivals_ns)
        return
    for slot, request in enumerate(served.requests):
        if request.due_ns is not None:
            right = "null: in a closed loop nothing but the client sets the time"
            yield f"served.requests[{slot}].due_ns", str(request.due_ns), right


def wrong_in_arrivals(requests: Sequence[ServedRequest], answered: Sequence[int], arrivals_ns: Sequence[int]) -> Wrong:
    """The requests of an open loop were due when the harness says, and none was sent before that, or before its turn.

    `answered`: slot → the index of its request. That one was sent late is no error: it counts from when it was due.
    """
    turns = sorted(zip(answered, range(len(requests)), strict=True))
    latest = 0
    for index, slot in turns:
        request, due_ns = requests[slot], arrivals_ns[index]
        if request.due_ns != due_ns:
            yield f"served.requests[{slot}].due_ns", shown(request.due_ns), f"{due_ns}, as request {index} was offered"
        if request.sent_ns < due_ns - EARLY_NS:
            yield f"served.requests[{slot}].sent_ns", str(request.sent_ns), f"not before it was due, at {due_ns}"
        if request.sent_ns < latest - EARLY_NS:
            right = f"not before an earlier request, which was sent at {latest}"
            yield f"served.requests[{slot}].sent_ns", str(request.sent_ns), right
        latest = max(latest, request.sent_ns)
