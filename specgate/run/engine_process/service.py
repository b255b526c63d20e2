"""The engine's end of the messages: it opens the engine, and answers one request after the other."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import specgate
from specgate import plugins
from specgate.contract import EngineFacts, TopTokens
from specgate.contract.draws import TokenLaw
from specgate.contract.protocols import (
    Activity,
    Decoded,
    DrawsTexts,
    Engine,
    ExtendsText,
    FollowsText,
    OffersSampling,
    RanksTokens,
    ScoresTokens,
    ScriptedTrace,
    ServesLoad,
    ShowsDistribution,
    ShowsLogits,
    Text,
)
from specgate.errors import BackendError, UsageError
from specgate.run import profiler
from specgate.run.engine_process import failures
from specgate.run.engine_process.messages import (
    Close,
    Decode,
    Draw,
    Extend,
    Follow,
    Logits,
    Open,
    Prefill,
    Ranked,
    Request,
    ScoreText,
    Serve,
    ShowLaw,
    Top2,
    Trace,
    Where,
    described,
    encoded,
    open_request,
    request_of,
)


class Service:
    """Answers requests with an engine of its own."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def answer(self, body: bytes) -> bytes | None:
        """The answer to a request. None after a request to close, which has none."""
        message = request_of(body)
        if isinstance(message.request, Close):
            self.close()
            return None
        try:
            return encoded({"id": message.id, **self._carry_out(message.request)})
        except BaseException as error:
            return encoded({"id": message.id, **failures.as_data(error, message.request.kind)})

    def close(self) -> None:
        """Close the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _carry_out(self, request: Request) -> Mapping[str, object]:
        if isinstance(request, Open):
            backend = plugins.backend(request.backend)
            if request.sampling is not None and not isinstance(backend, OffersSampling):
                raise UsageError(f"back end {request.backend!r} decodes greedily", hint="leave sampling out")
            self._engine = backend.open(open_request(request))
            facts = record(self._engine.facts(), EngineFacts, "facts")
            able = {
                "scripted": isinstance(self._engine, ScriptedTrace),
                "follows": isinstance(self._engine, FollowsText),
            }
            return {"kind": "facts", "facts": facts, **able}
        if (engine := self._engine) is None:
            raise BackendError(f"{request.kind} asked for, but no engine is open")
        match request:
            case Prefill():
                return {"kind": "nanoseconds", "ns": engine.prefill(request.prompts, draft=request.draft)}
            case Decode():
                decoded = engine.decode(request.role, request.budget, request.stop_token_ids)
                return {"kind": "decoded", "decoded": record(decoded, Decoded, "decode")}
            case Serve():
                return served(engine, request)
            case Trace():
                return traced(engine, request)
            case Top2():
                return {"kind": "top2", "logits": engine.top2(request.slot, request.continuation)}
            case Ranked():
                return {"kind": "ranked", "top": ranked(engine, request)}
            case Follow():
                asked_ = request.slot, request.continuation, request.new_tokens
                return {
                    "kind": "followed",
                    "tokens": engine.follow(*asked_) if isinstance(engine, FollowsText) else None,
                }
            case Extend():
                text = engine.extend(request.steps) if isinstance(engine, ExtendsText) else None
                return {"kind": "text", "text": text if text is None else record(text, Text, "extend")}
            case Logits():
                shown = engine.logits(request.role, request.positions) if isinstance(engine, ShowsLogits) else None
                return {"kind": "logits", "logits": shown}
            case ScoreText():
                asked = request.prompt, request.continuation, request.positions
                return {"kind": "scores", "scores": engine.score(*asked) if isinstance(engine, ScoresTokens) else None}
            case Draw():
                wanted = request.role, request.prompt, request.tokens, request.first, request.count
                return {"kind": "drawn", "texts": engine.draw(*wanted) if isinstance(engine, DrawsTexts) else None}
            case ShowLaw():
                return {"kind": "law", "law": law_of(engine, request)}
            case Where():
                return {"kind": "origin", "origin": origin_of(engine)}
            case _:
                raise BackendError(f"{request.kind}: an engine's process has no such call")


def origin_of(engine: Engine) -> Mapping[str, str]:
    """Which files this process has imported `engine` and specgate from."""
    module = sys.modules[type(engine).__module__]
    return {
        "backend_file": str(module.__file__),
        "specgate_file": str(specgate.__file__),
        "specgate_version": specgate.__version__,
        "python": platform.python_version(),
    }


def served(engine: Engine, request: Serve) -> Mapping[str, object]:
    """The answer to `request`. Raises BackendError where the engine takes no requests while others run."""
    if not isinstance(engine, ServesLoad):
        raise BackendError("the engine takes no requests while others run: it has no `serve`", hint="measure a server")
    asked = request.role, request.prompts, request.budget, request.offered, request.stop_token_ids
    return {"kind": "decoded", "decoded": record(engine.serve(*asked), Decoded, "serve")}


def traced(engine: Engine, request: Trace) -> Mapping[str, object]:
    """The answer to `request`. The harness's profiler looks, except at an engine with scripted traces, which has no
    kernels that a profiler could see.
    """
    scripted = isinstance(engine, ScriptedTrace)
    look = engine.trace if isinstance(engine, ScriptedTrace) else lambda *block: profiler.trace(engine, *block)
    seen: Any = look(request.role, request.budget)
    if not isinstance(seen, tuple) or len(seen) != 2:
        raise wrong(
            "trace", seen, "a pair of specgate.contract.protocols.Decoded and specgate.contract.protocols.Activity"
        )
    return {
        "kind": "traced",
        "decoded": record(seen[0], Decoded, "trace"),
        "activity": record(seen[1], Activity, "trace"),
        "source": "engine" if scripted else "profiler",
    }


def ranked(engine: Engine, request: Ranked) -> Mapping[str, object] | None:
    """The most likely tokens; of an engine that shows no more, its two largest logits."""
    if isinstance(engine, RanksTokens):
        shown = engine.ranked(request.slot, request.continuation, request.count)
        return None if shown is None else record(shown, TopTokens, "ranked")
    top2 = engine.top2(request.slot, request.continuation)
    return None if top2 is None else {"values": top2, "tokens": ()}


def law_of(engine: Engine, request: ShowLaw) -> Mapping[str, object] | None:
    """The distribution that tokens come from; None where the engine shows none."""
    if not isinstance(engine, ShowsDistribution):
        return None
    law = engine.distribution(request.prompt, request.continuation, request.least)
    return record(law, TokenLaw, "distribution")


def record(value: Any, kind: type[Any], call: str) -> dict[str, object]:
    """The fields of a record. Raises BackendError if the engine returned anything else."""
    if not isinstance(value, kind):
        raise wrong(call, value, f"a specgate {kind.__name__}")
    return {field.name: getattr(value, field.name) for field in fields(kind)}


def wrong(call: str, value: object, needed: str) -> BackendError:
    return BackendError(f"the engine's {call} returned {described(value)}", hint=f"{needed} is needed")
