"""What the harness asks of an engine's process, and how a message becomes JSON.

    open      load the pair                        → facts
    prefill   fill the caches                      → nanoseconds
    decode    one block                            → decoded
    serve     one block of requests under load     → decoded
    trace     one block, watched                   → traced
    top2      the two largest logits at a place    → top2
    ranked    the most likely tokens at a place    → ranked
    follow    plain decoding from a text on        → followed
    extend    more of the last block's text        → text
    logits    hashes of the logits at places       → logits
    score     what it thinks of another text       → scores
    draw      independent texts after a prompt     → drawn
    distribution  which one tokens come from       → law
    origin    which files its code comes from      → origin
    close     release everything and end           (no answer)

An answer has the number of its request. The answer to any request may also be an error. `answers.py` has their forms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from specgate.contract import AcceptanceSource, Budget, PairRef, Role, Sampling
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import OpenRequest

SHOWN: Final = 80
"""Characters of a value that an error shows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A `contract.PairRef`. Its RoPE keys keep their types: an integer stays one."""

    name: str
    target: str
    draft: str | None
    acceptance: AcceptanceSource
    rope: Mapping[str, int | float | str] | None
    weights: Literal["here", "server"] = "here"


@dataclass(frozen=True, slots=True)
class Open:
    """`Backend.open`. Its fields are those of `protocols.OpenRequest`."""

    backend: str
    pair: Pair
    dtype: str
    max_batch: int
    max_positions: int
    max_k: int
    perf_mode: bool
    options: Mapping[str, str]
    logs: str | None
    baseline: bool = True
    sampling: Sampling | None = None
    kind: Literal["open"] = "open"


@dataclass(frozen=True, slots=True)
class Prefill:
    """`Engine.prefill`."""

    prompts: tuple[tuple[int, ...], ...]
    draft: bool
    kind: Literal["prefill"] = "prefill"


@dataclass(frozen=True, slots=True)
class Decode:
    """`Engine.decode`."""

    role: Role
    budget: Budget
    stop_token_ids: tuple[int, ...]
    kind: Literal["decode"] = "decode"


@dataclass(frozen=True, slots=True)
class Serve:
    """`ServesLoad.serve`."""

    role: Role
    prompts: tuple[tuple[int, ...], ...]
    budget: Budget
    offered: OfferedLoad
    stop_token_ids: tuple[int, ...]
    kind: Literal["serve"] = "serve"


@dataclass(frozen=True, slots=True)
class Trace:
    """One untimed block, watched by the harness's profiler or by an engine with `protocols.ScriptedTrace`."""

    role: Role
    budget: Budget
    kind: Literal["trace"] = "trace"


@dataclass(frozen=True, slots=True)
class Top2:
    """`Engine.top2`."""

    slot: int
    continuation: tuple[int, ...]
    kind: Literal["top2"] = "top2"


@dataclass(frozen=True, slots=True)
class Ranked:
    """`RanksTokens.ranked`."""

    slot: int
    continuation: tuple[int, ...]
    count: int
    kind: Literal["ranked"] = "ranked"


@dataclass(frozen=True, slots=True)
class Follow:
    """`FollowsText.follow`."""

    slot: int
    continuation: tuple[int, ...]
    new_tokens: int
    kind: Literal["follow"] = "follow"


@dataclass(frozen=True, slots=True)
class Extend:
    """`ExtendsText.extend`."""

    steps: int
    kind: Literal["extend"] = "extend"


@dataclass(frozen=True, slots=True)
class Logits:
    """`ShowsLogits.logits`."""

    role: Role
    positions: tuple[int, ...]
    kind: Literal["logits"] = "logits"


@dataclass(frozen=True, slots=True)
class ScoreText:
    """`ScoresTokens.score`."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    positions: tuple[int, ...]
    kind: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Draw:
    """`DrawsTexts.draw`."""

    role: Role
    prompt: tuple[int, ...]
    tokens: int
    first: int
    count: int
    kind: Literal["draw"] = "draw"


@dataclass(frozen=True, slots=True)
class ShowLaw:
    """`ShowsDistribution.distribution`."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    least: float
    kind: Literal["distribution"] = "distribution"


@dataclass(frozen=True, slots=True)
class Where:
    """Which files the process has imported the engine and specgate from."""

    kind: Literal["origin"] = "origin"


@dataclass(frozen=True, slots=True)
class Close:
    """`Engine.close`. No answer follows."""

    kind: Literal["close"] = "close"


Asked = Top2 | Ranked | Follow | Extend | Logits | ScoreText | Draw | ShowLaw
Request = Open | Prefill | Decode | Serve | Trace | Asked | Where | Close


@dataclass(frozen=True, slots=True)
class Numbered:
    """A request with its number, which its answer repeats."""

    id: int
    request: Annotated[Request, Field(discriminator="kind")]


def open_of(backend: str, request: OpenRequest) -> Open:
    """The message for `request`."""
    pair = request.pair
    return Open(
        backend=backend,
        pair=Pair(
            name=pair.name,
            target=str(pair.target),
            draft=str(pair.draft) if pair.draft else None,
            acceptance=pair.acceptance,
            rope=pair.rope,
            weights=pair.weights,
        ),
        dtype=request.dtype,
        max_batch=request.max_batch,
        max_positions=request.max_positions,
        max_k=request.max_k,
        perf_mode=request.perf_mode,
        options=request.options,
        logs=str(request.logs) if request.logs else None,
        baseline=request.baseline,
        sampling=request.sampling,
    )


def open_request(message: Open) -> OpenRequest:
    """The inverse of `open_of`."""
    pair = message.pair
    return OpenRequest(
        pair=PairRef(
            name=pair.name,
            target=Path(pair.target),
            draft=Path(pair.draft) if pair.draft is not None else None,
            acceptance=pair.acceptance,
            rope=pair.rope,
            weights=pair.weights,
        ),
        dtype=message.dtype,
        max_batch=message.max_batch,
        max_positions=message.max_positions,
        max_k=message.max_k,
        perf_mode=message.perf_mode,
        options=message.options,
        logs=Path(message.logs) if message.logs is not None else None,
        baseline=message.baseline,
        sampling=message.sampling,
    )


@cache
def _requests() -> TypeAdapter[Numbered]:
    return TypeAdapter(Numbered)


def request_of(body: bytes) -> Numbered:
    """The request in a message. Raises pydantic's ValidationError if it has another form."""
    return _requests().validate_json(body, strict=True)


def encoded(message: object) -> bytes:
    """`message` as JSON: data classes as objects, tuples as arrays.

    What JSON does not have, such as a number of numpy's, is written as an object that says so. The reader, which
    expects something else there, can then name it. Raises ValueError for an integer of thousands of digits and for data
    that contain themselves.
    """
    return json.dumps(message, default=_plain, separators=(",", ":")).encode()


NO_JSON: Final = "no JSON"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    return {NO_JSON: described(value)}


def described(value: object) -> str:
    """A value and its type, in at most SHOWN characters or so."""
    try:
        kind, said = type(value), repr(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    except Exception:
        return "something that cannot be shown"
    return f"{name}: {shortened(said)}"


def shortened(text: str, most: int = SHOWN) -> str:
    """`text`, with an ellipsis in the place of what is longer than `most` characters."""
    return text if len(text) <= most else text[:most] + "…"
