"""Protocol of a back end: it says if it can run here, loads a pair, prefills prompts and decodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from specgate.contract import Budget, DecodeRun, EngineFacts, PairRef, Role, Sampling
from specgate.contract.samples.block import Finishes
from specgate.contract.samples.memory import EngineMemory
from specgate.contract.traces import Observed
from specgate.contract.types import Count, Digest, Size, Tokens

BLOCK_MARK = "specgate.block"
"""The name of the profiler range that `block_marker` opens."""


@contextmanager
def block_marker() -> Iterator[None]:
    """Mark the steps of a block, so that a profiler can tell them from what comes before and after.

    An engine runs the steps within this context. The mark costs a microsecond where nobody profiles, and nothing where
    torch has not been imported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.profiler.record_function(BLOCK_MARK):
        yield


@dataclass(frozen=True, slots=True)
class Availability:
    """Ability of a back end to run on this machine.

    `reason`: why it can or cannot, in one sentence.
    `rank`: of several usable back ends, the one with the highest rank is the default. A negative rank is never the
        default.
    """

    usable: bool
    reason: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt that is a chat. `sha256`: of its token ids, which the target's chat template made of it
    (`contract.tape.sha256_of_ids`). `request`: JSON of the fields of a chat request: `messages`, and what else the
    prompt has (`tools`, `chat_template_kwargs`, `response_format`, …).
    """

    sha256: Digest
    request: str


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Request to load an engine, with all that it must be able to do. The engine checks it when it loads, and refuses
    with numbers what it cannot.

    `dtype`: `float32`, `bfloat16` or `float16`.
    `max_batch`: slots at a time.
    `max_positions`: cached positions per slot.
    `max_k`: the longest draft, in tokens.
    `perf_mode`: whether the PERF_MODE invariants will be checked.
    `steps`: engine steps of a micro block; None for whole requests, or if blocks differ.
    `options`: the `-o NAME=VALUE` options of the command line.
    """

    pair: PairRef
    dtype: str
    max_batch: int
    max_positions: int
    max_k: int
    perf_mode: bool
    options: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None
    """A folder for the output of programs that the engine starts; None for a temporary one.

    It is not in the run folder, which an engine has no way to. Plain files directly in it are copied to `logs/` of the
    run folder when a call fails and when the engine is closed, each up to 16 MiB. In errors and in what the engine
    prints, their paths become those of the copies.
    """
    baseline: bool = True
    """Whether baseline blocks may be asked for."""
    sampling: Sampling | None = None
    """How tokens are drawn; None for greedy decoding, and always where the back end is no `OffersSampling`."""
    steps: Size | None = None
    chats: tuple[ChatPrompt, ...] = ()
    """The chats among the prompts that will be measured, for an engine that sends messages in place of token ids."""


@dataclass(frozen=True, slots=True)
class Decoded(DecodeRun):
    """Result of one decode run. The runner makes a `contract.Block` of it; `contract.DecodeRun` explains most fields.

    An engine that prefills and decodes in one go, as a server does, sets `prefill_ns`. What its `prefill` returned is
    then ignored. It may set `began_ns` too: the clocks of the GPU in prefill are compared from then on, and what else
    the call does, such as reading counters, may take as long. Only a back end that comes with specgate is believed:
    nothing bounds what else a server's call does.
    """

    prefill_ns: Count | None = None
    memory: EngineMemory | None = None
    """What it tells of the memory that it decoded in; None where that is its own process's, and it tells no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity(Observed):
    """Observations of a block. They become fields of `contract.BlockTrace`.

    All but the counts is for an engine behind a server, whose own profiler looked.

    `server_profiler`: whether a profiler that the server has built in was started by the engine's code, which then read
        its file. Believed of a back end that comes with specgate; any other's trace is its own word.
    `steps`: how many decode steps were counted; None for as many as the block has.
    """

    server_profiler: bool = False
    steps: Count | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Emitted text without times: `tokens[slot]` and `finish[slot]`, as in `Decoded`."""

    tokens: Tokens
    finish: Finishes


class Engine(Protocol):
    """A loaded pair. It lives in a worker process.

    All calls come from one thread: `prefill`, then any number of `decode`, then any number of `top2`.
    """

    def facts(self) -> EngineFacts:
        """Facts of what was loaded, and on which device."""

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Fill the KV caches from `prompts`, token ids of one prompt per slot. Their lengths may differ. Returns
        nanoseconds.

        Whatever was cached before is forgotten. With `draft` the draft's cache is filled too; without it, only baseline
        blocks may follow.
        """

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Rewind every slot to the end of its prompt, then decode greedily under `role` until `budget` is spent.

        A request ends at a token of `stop_token_ids`, unless the budget ignores them.
        """

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        """The two largest target logits (float32) for the token that follows prompt[slot] + continuation.

        Log-probabilities will do, since only their difference is used. None where the engine cannot tell.
        """

    def close(self) -> None:
        """Release what the engine holds; no call follows."""


@runtime_checkable
class Backend(Protocol):
    """A way to measure. Loading one and calling `available` must be cheap and must not import an engine library."""

    name: str
    description: str

    def available(self) -> Availability:
        """Say if it can run on this machine, and why or why not."""

    def open(self, request: OpenRequest) -> Engine:
        """Load the pair. Raises BackendError (CheckpointError) with file, tensor or key, and what would be right."""
