"""The raw samples of one timed block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from specgate.contract.acceptance import AcceptanceRecord, DraftCounts
from specgate.contract.conditions import CpuUse
from specgate.contract.routing import ExpertCounts
from specgate.contract.samples.memory import MemoryUse
from specgate.contract.scenarios.plan import Cell, Point
from specgate.contract.scenarios.roles import Role
from specgate.contract.types import FAIL_FAST, Count, Counts, LeavesOut, Length, Tallies, Tokens

ENGINE_DECODE_NS: Final = "engine_decode_ns"
"""The counter of a block that holds what its requests' decoding took by the engine's own clock."""


@dataclass(frozen=True, slots=True)
class ServedRequest(LeavesOut):
    """One request to a server as its client saw it. Times are nanoseconds since the block began.

    `sent_ns`: when the request was sent.
    `chunk_ns`: when each chunk that carried tokens arrived. A chunk may hold several tokens.
    `chunk_tokens`: how many tokens each of these chunks held.
    `due_ns`: when the request was to be sent in an open loop; None where nothing but the client set the time.
    `prefix_hit_tokens`: prompt tokens that came from a prefix cache, by the answer's own count; None where it has none.
    `new_tokens`: tokens that were asked for; None where the block's budget says how many.
    `drafts`: its drafts, by the answer's own count; None where it has none.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"drafts", "new_tokens"})

    sent_ns: Count
    chunk_ns: Annotated[Counts, Length(1)]
    chunk_tokens: Counts
    due_ns: Count | None = None
    prefix_hit_tokens: Count | None = None
    new_tokens: Count | None = None
    drafts: DraftCounts | None = None

    @property
    def began_ns(self) -> int:
        """From when on the request counts: when it was due, so that a client which is late hides nothing, else when it
        was sent.
        """
        return self.sent_ns if self.due_ns is None else self.due_ns

    @property
    def ttft_ns(self) -> int:
        """Time to first token: from the request's beginning to its first chunk."""
        return self.chunk_ns[0] - self.began_ns

    @property
    def e2e_ns(self) -> int:
        """From the request's beginning to its last chunk."""
        return self.chunk_ns[-1] - self.began_ns


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that a server under load turned away.

    `prompt`: its index in the prompt set. `status`: HTTP 429 or 503. `at_ns`: when the refusal came, since the block
    began.
    """

    prompt: Count
    status: Count
    at_ns: Count


@dataclass(frozen=True, slots=True)
class Served:
    """Records of a block in the place of steps, if the engine runs behind a server.

    `requests`: one per slot.
    `acceptance`: what the server counted over these requests; None in a baseline block.
    `refused`: the requests that a server under load turned away. They have no slot.
    `prompts`: which prompt of the set each slot answers, where some have no slot or more than one; () where slot i
        answers prompt i.
    """

    requests: tuple[ServedRequest, ...]
    acceptance: AcceptanceRecord | None = None
    refused: tuple[RefusedRequest, ...] = ()
    prompts: Counts = ()


class Finish(StrEnum):
    """Reason that a slot stopped emitting within a block."""

    STEPS = "steps"
    LENGTH = "length"
    EOS = "eos"
    STOP = "stop"


Finishes = Annotated[tuple[Finish, ...], FAIL_FAST]
"""Why every slot stopped emitting."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """The raw samples of one decode run, never summaries, as the engine states them and as they are stored.

    A slot is the place of one request in the batch.

    `elapsed_ns`: the whole decode run.
    `step_ns[step]`: one step, by the engine's clock: the host's, or the GPU's where events time the steps there.
    `tokens[slot]`: token ids, beginning with the prefill token.
    `accepted[step][slot]`, `drafted[step][slot]`: counts of draft tokens; -1 where the slot had already finished.
        `drafted` is 0 in a baseline block.
    `truncated[slot]`: accepted and verified tokens that were cut off at EOS, a stop token or the limit.
    `counters`: the `disabled_*` reasons, `rewound_tokens` and `rewind_steps`. `disabled_draft_error` counts
        request-steps that had no draft because it could not be used.
    `phase_ns`: phase → its part of `elapsed_ns`.
    `experts`: the experts that the target's passes touched; None where it has none, or the engine does not count them.
    `began_ns`: the start of the engine's own timing (`time.monotonic_ns()`): the start of prefill, after the wait until
        the first request is sent. Only an engine that prefills and decodes in one go states it, as a server does.

    Where `served` is set, the engine is a server:

    - `accepted`, `drafted` and `step_ns` are (): not observable.
    - `prefill_ns` lasts from the first request sent to the first token of any request.
    - `elapsed_ns` lasts from there to the last token of all requests.
    - The counter `undrafted_steps` has the request-steps without a draft, which `served.acceptance` leaves out. Those
      of a method that need not draft are its `skipped` instead.
    """

    elapsed_ns: Count
    step_ns: Counts
    tokens: Tokens
    accepted: Tallies
    drafted: Tallies
    truncated: Counts
    finish: Finishes
    counters: Mapping[str, Count] = field(default_factory=dict)
    phase_ns: Mapping[str, Count] = field(default_factory=dict)
    served: Served | None = None
    experts: ExpertCounts | None = None
    began_ns: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(DecodeRun):
    """One timed decode run of one role.

    `position_in_round`: the block's place in the running order of its round.
    `worker_generation`: counts engine processes, so that a resumed run never pairs blocks of two processes.
    `prefill_ns`: the prefill that belongs to this block. In a full run it is the block's own, in a micro run the one
        that all blocks of the prompt set share.
    `span_ns`: when the harness asked for the block and when it had the result, on the host's monotonic clock; None
        where the harness did not time it.
    `own_prefill`: the block prefilled anew within its span, in a micro run too. A server's always does.
    `began_ns`: None too where the back end does not come with specgate.
    """

    point: Point
    role: Role
    prompt_set: int
    round: int
    position_in_round: int
    warmup: bool
    worker_generation: int
    prefill_ns: Count
    span_ns: tuple[int, int] | None = None
    cpu: CpuUse | None = None
    """What the CPUs did meanwhile; None where the harness did not count it."""
    own_prefill: bool = False
    one_step_ns: Count | None = None
    """How long the harness waited for a single step after the same prompts, untimed, prefill included; None but of a
    plug-in's engine that prefills and decodes in one go, so that its word alone divides the two.
    """
    prompt_tokens: tuple[int, ...] = ()
    """Slot → length of its prompt in tokens; () where each has as many as the point's context says."""
    memory: MemoryUse | None = None
    """What was in use when it had been answered; None of an engine that only pretends to decode."""

    @property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Slot → length of its prompt in tokens."""
        return self.prompt_tokens or (self.point.context,) * len(self.tokens)

    @property
    def cell(self) -> Cell:
        """The cell that the block belongs to."""
        return Cell(self.point, self.role)

    @property
    def answered_all(self) -> bool:
        """True if slot i is prompt i of the set, which may be gone through several times; False if a server under load
        refused requests.
        """
        return self.served is None or not self.served.refused

    @property
    def steps_without_draft(self) -> int | None:
        """Request-steps of a spec block without a draft, whether they were to have one or not; None where a server does
        not tell.
        """
        if self.served is None:
            return sum(drafted == 0 for step in self.drafted for drafted in step)
        record, undrafted = self.served.acceptance, self.counters.get("undrafted_steps")
        return record.skipped if record is not None and record.skipped is not None else undrafted

    @property
    def emitted(self) -> int:
        """Tokens emitted by decode steps, so without the prefill token of each slot."""
        return sum(len(t) - 1 for t in self.tokens)

    @property
    def decoding_ns(self) -> int:
        """Time spent decoding, summed over the requests.

        A server's requests each have their own clock. All other requests decode for the whole of `elapsed_ns`.
        """
        if self.served is not None:
            return sum(r.e2e_ns - r.ttft_ns for r in self.served.requests)
        return self.elapsed_ns * len(self.tokens)
