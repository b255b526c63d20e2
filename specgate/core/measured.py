"""What an engine says of itself, and the raw samples of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from specgate.core.acceptance import AcceptanceRecord
from specgate.core.asked import AcceptanceSource, Cell, Point, Role
from specgate.core.stored_keys import stored_keys
from specgate.core.traffic import Traffic


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine is, for the fingerprint and the report. `details` holds printable extras in print order."""

    backend: str
    device: str
    dtype: str
    vocab: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    target_sha256: str
    draft_sha256: str | None
    capture_rule: str | None
    has_draft: bool
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    acceptance: AcceptanceSource | None = None
    """Set where it is not the pair's."""
    warnings: tuple[str, ...] = ()
    """What a reader of the result must know of this engine or checkpoint."""
    tape_sha256: str | None = None
    """Of the accept counts that are replayed, where acceptance is forced by a tape."""
    kernels: tuple[str, ...] | None = None
    """Names of the kernels that a decode step may launch, where the engine has kernels of its own."""
    tuned_sha256: str | None = None
    """Of the configurations that its matrix products run with, where these are tuned."""
    draft_error: str | None = None
    """Why the draft could not be used, where the engine decodes spec roles plainly instead. It then has no draft."""
    traffic: Traffic | None = None
    """What its passes must move through memory, where it says so."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request to a server as its client saw it, in nanoseconds since the block began: when it was sent, and when
    each chunk that carried tokens arrived. A chunk may hold several tokens.
    """

    sent_ns: int
    chunk_ns: tuple[int, ...]

    @property
    def ttft_ns(self) -> int:
        return self.chunk_ns[0] - self.sent_ns

    @property
    def e2e_ns(self) -> int:
        return self.chunk_ns[-1] - self.sent_ns


@dataclass(frozen=True, slots=True)
class Served:
    """What a block has in place of steps where an engine runs behind a server: its requests, slot by slot, and the
    acceptance that the server counted over them (None in a baseline block).
    """

    requests: tuple[ServedRequest, ...]
    acceptance: AcceptanceRecord | None = None


class Finish(StrEnum):
    """Why a slot stopped emitting within a block."""

    STEPS = "steps"
    LENGTH = "length"
    EOS = "eos"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Block:
    """One timed stretch of one role: raw samples, never summaries.

    `tokens[slot]` starts with the prefill token; `accepted[step][slot]` and `drafted[step][slot]` count draft tokens
    (-1 where the slot was already finished; `drafted` 0 in a baseline block). `step_ns[step]` is host time of a
    step, `elapsed_ns` the whole decode stretch, `prefill_ns` the prefill that belongs to this block (full runs:
    always its own; micro runs: the prefill that the prompt set shares). `position_in_round` is the block's place in the
    running order of its round. `worker_generation` counts engine processes, so that a resumed run never pairs blocks of
    two processes. `truncated[slot]` counts accepted-and-verified tokens cut at EOS, a stop token or the limit.
    `counters` holds the `disabled_*` reasons, `rewound_tokens` and `rewind_steps`; `disabled_draft_error` counts
    request-steps that had no draft because it could not be used. `phase_ns` splits `elapsed_ns`. `span_ns` is when the
    harness asked for the block and when it had it, on the host's monotonic clock; None in runs stored before it was
    kept.

    Where `served` is set, the engine is a server: `accepted`, `drafted` and `step_ns` are (), not observable;
    `prefill_ns` lasts from the first request sent to the first token of any, `elapsed_ns` from there to the last token
    of all, and the counter `undrafted_steps` holds the request-steps that `served.acceptance` leaves out for want of a
    draft.
    """

    __pydantic_config__: ClassVar = stored_keys(position_in_round="slot", worker_generation="session")

    point: Point
    role: Role
    prompt_set: int
    round: int
    position_in_round: int
    warmup: bool
    worker_generation: int
    prefill_ns: int
    elapsed_ns: int
    step_ns: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...]
    drafted: tuple[tuple[int, ...], ...]
    truncated: tuple[int, ...]
    finish: tuple[Finish, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    span_ns: tuple[int, int] | None = None
    served: Served | None = None

    @property
    def cell(self) -> Cell:
        return Cell(self.point, self.role)

    @property
    def emitted(self) -> int:
        """Tokens emitted by decode steps: the prefill token of each slot is not among them."""
        return sum(len(t) - 1 for t in self.tokens)

    @property
    def decoding_ns(self) -> int:
        """Time spent decoding, summed over the requests: of a server's each by its own clock, else all in step."""
        if self.served is not None:
            return sum(r.e2e_ns - r.ttft_ns for r in self.served.requests)
        return self.elapsed_ns * len(self.tokens)
