"""What an engine says about itself, and the raw samples of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal

from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.asked import AcceptanceSource, Cell, Point, Role
from specgate.contract.conditions import CpuUse
from specgate.contract.memory import MemoryUse
from specgate.contract.routing import ExpertCounts
from specgate.contract.traffic import Traffic
from specgate.contract.types import (
    FAIL_FAST,
    HARNESS_ONLY,
    Count,
    Counts,
    Digest,
    Finite,
    Integer,
    Length,
    Size,
    Tallies,
    Tokens,
)

MAY_NOT_DRAFT: Final = "may draft nothing: "
"""How a warning of an engine begins that explains a cell without drafts, if there is one."""
FORCED_LENGTH: Final = "forced acceptance length"
"""The detail of an engine's facts that has the acceptance length which it was told to show."""
OWN_NUMBERS: Final = "random numbers"
"""The detail of an engine's facts that says that it draws tokens with random numbers of its own, so that what it draws
again need not be the same.
"""
LOSSY: Final = "tokens may differ"
"""The detail of an engine's facts that says that speculation may emit other tokens than the baseline, by design, and
why.
"""
FORBIDS_ENDS: Final = "tokens that end a text"
"""The detail of an engine's facts that says that these are given no chance, where ends are to be ignored."""
UNKNOWN: Final = "unknown"
"""Stands in a fingerprint for what an engine does not tell of itself."""
OF_ENGINE: Final = "engine:"
"""How the keys of a fingerprint begin that state an engine's identity."""
ENGINE_DECODE_NS: Final = "engine_decode_ns"
"""The counter of a block that holds what its requests' decoding took by the engine's own clock."""
SETTINGS: Final = ("attention", "moe", "cuda_graphs", "dtype", "quantization", "kv_cache_dtype")
"""What an engine may be set up with, or choose by itself, that changes its speed. `attention`, `moe`: the back end of
the attention and of the experts. `cuda_graphs`: what is captured, in the engine's own words.
"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a running server says that it serves. It is the server's word: nothing of it was seen on this machine.

    `name`: what requests call it. `path`: where the server loaded it from. `max_positions`: its longest context.
    `architecture`, `vocab`: of its config. None where the server does not tell.
    """

    name: str
    path: str | None = None
    max_positions: Size | None = None
    architecture: str | None = None
    vocab: Size | None = None


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Which build of somebody else's engine ran, and how it was set up.

    `build`: the commit, or the digest of a wheel or an image; None where nobody told.
    `told_by`: where the build is known from: the engine's version, or the user's option.
    `settings`: those of `SETTINGS` that the engine tells, in its own words.
    `differing`: role name → what the server of that role says otherwise.
    `served`: role name → what a server that was attached to says that it serves.
    """

    engine: str
    version: str | None = None
    build: str | None = None
    told_by: Literal["version", "option"] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    differing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    served: Mapping[str, ServedModel] = field(default_factory=dict)

    @property
    def untold(self) -> tuple[str, ...]:
        """What is not known of it."""
        return (*(() if self.build else ("build",)), *(name for name in SETTINGS if name not in self.settings))

    @property
    def fingerprint(self) -> dict[str, str | None]:
        """Key → value, for the fingerprint of a run: another build, setting or model is another engine."""
        found = {"build": self.build, **{name: self.settings.get(name) for name in SETTINGS}}
        others = {f"{role}.{name}": told for role, part in self.differing.items() for name, told in part.items()}
        models = {f"{role}.serves": model.path or model.name for role, model in self.served.items()}
        return {OF_ENGINE + key: value or UNKNOWN for key, value in {**found, **others, **models}.items()}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine is, for the fingerprint and the report.

    `target_sha256`: None where the weights are a server's, and not on this machine.
    `details`: further printable facts, in the order in which they are printed.
    """

    backend: str
    device: str
    dtype: str
    vocab: Size
    max_positions: Size
    eos_token_ids: Counts
    target_sha256: str | None
    draft_sha256: str | None
    capture_rule: str | None
    has_draft: bool
    details: Mapping[str, str | bool | Integer | Finite] = field(default_factory=dict)
    acceptance: AcceptanceSource | None = None
    """Where acceptance comes from, where that differs from the pair's `acceptance`."""
    warnings: tuple[str, ...] = ()
    """What a reader of the result must know about this engine or checkpoint."""
    tape_sha256: str | None = None
    """SHA-256 of the tape whose accept counts are replayed, where acceptance is forced by one."""
    kernels: tuple[str, ...] | None = None
    """Names of the kernels that a decode step may launch, where the engine has kernels of its own."""
    tuned_sha256: str | None = None
    """SHA-256 of the configurations that its matrix products run with, where these are tuned."""
    draft_error: str | None = None
    """Why the draft could not be used, where the engine decodes spec roles without drafting instead. `has_draft` is
    then false.
    """
    traffic: Traffic | None = None
    """What its passes must move through memory, where the engine states it."""
    least_weight_bytes: Annotated[int | None, HARNESS_ONLY] = None
    """The least bytes of target weights that a decode step reads. The harness counts them from the target's config."""
    engine_version: str | None = None
    """The engine's own version and build, where it is not part of specgate or of the plug-in: that of a server."""
    identity: EngineIdentity | None = None
    """Which build of somebody else's engine this is, and how it is set up; None for engines of specgate's own process,
    whose code and packages the fingerprint has.
    """
    follows: Annotated[bool, HARNESS_ONLY] = False
    """Whether it can decode on from any text (`protocols.FollowsText`). The harness's code beside the engine sees it.
    """

    @property
    def target(self) -> str | None:
        """What tells one target from another: the SHA-256 of its weights, or what a server says that it serves."""
        if self.target_sha256 is not None or self.identity is None:
            return self.target_sha256
        return "; ".join(f"served {m.path or m.name}" for m in self.identity.served.values()) or None


@dataclass(frozen=True, slots=True)
class LogCause:
    """A line of a program's log that has a known cause.

    `cause`: what the line means, and what would be right.
    `silent`: whether the program went on after it, but without its draft or with a wrong one.
    """

    cause: str
    line: str
    silent: bool


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request to a server as its client saw it. Times are nanoseconds since the block began.

    `sent_ns`: when the request was sent.
    `chunk_ns`: when each chunk that carried tokens arrived. A chunk may hold several tokens.
    `chunk_tokens`: how many tokens each of these chunks held.
    `due_ns`: when the request was to be sent in an open loop; None where nothing but the client set the time.
    `prefix_hit_tokens`: prompt tokens that came from a prefix cache, by the answer's own count; None where it has none.
    """

    sent_ns: Count
    chunk_ns: Annotated[Counts, Length(1)]
    chunk_tokens: Counts
    due_ns: Count | None = None
    prefix_hit_tokens: Count | None = None

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
    """What a block has in the place of steps where the engine runs behind a server.

    `requests`: one per slot.
    `acceptance`: what the server counted over these requests; None in a baseline block.
    `refused`: the requests that a server under load turned away. They have no slot.
    `prompts`: which prompt of the set each slot answers, where some have no slot; () where slot i answers prompt i.
    """

    requests: tuple[ServedRequest, ...]
    acceptance: AcceptanceRecord | None = None
    refused: tuple[RefusedRequest, ...] = ()
    prompts: Counts = ()


class Finish(StrEnum):
    """Why a slot stopped emitting within a block."""

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
    - The counter `undrafted_steps` has the request-steps without a draft, which `served.acceptance` leaves out.
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
        """Whether slot i is prompt i of the set, in every slot: false where a server under load refused requests."""
        return self.served is None or not self.served.refused

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


@dataclass(frozen=True, slots=True)
class BaselineText:
    """The baseline's text of one prompt set, decoded once more, untimed, as far as the longest speculative text goes.

    A speculative block emits more tokens than the baseline block beside it. This is what the rest is compared with.

    `tokens[slot]`: token ids, beginning with the prefill token.
    `span_ns`: as in `Block`.
    """

    point: Point
    prompt_set: int
    worker_generation: int
    tokens: Tokens
    finish: Finishes
    span_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LogitSample:
    """Digests of the logits that single tokens of a cell were chosen from, out of an untimed block.

    `positions`: indices into the tokens of every slot.
    `tokens[slot][i]`, `digests[slot][i]`: the token at `positions[i]`, and the SHA-256 of its row of target logits
        (float32, little-endian, one per vocabulary entry).
    """

    cell: str
    prompt_set: int
    worker_generation: int
    positions: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    digests: tuple[tuple[Digest, ...], ...]
    span_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Score:
    """What a target model says of one token of a text, all tokens before it given.

    `best`: the token with the largest logit.
    `best_logit`, `logit`: of `best` and of the token itself, in float32. Log-probabilities will do, since only their
        difference is used.
    """

    best: Count
    best_logit: Finite
    logit: Finite


@dataclass(frozen=True, slots=True)
class RescoredText:
    """A sample of the tokens that one block emitted in one slot, each with its score by the second engine.

    `positions`: indices into the slot's tokens.
    """

    cell: str
    prompt_set: int
    round: int
    slot: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class SecondLook:
    """What a second engine says in float32 of tokens that lay too far from its choice in the dtype of the scenario.

    `texts`: these tokens alone.
    `unscored`: why they were not scored in float32; None where they were.
    `span_ns`: as in `Block`. The first point that the engine in float32 scores carries the time to load it.
    """

    texts: tuple[RescoredText, ...]
    unscored: str | None
    span_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rescoring:
    """How the tokens of one point were scored by a second engine, after all timing.

    `engine`: the back end that scored. `device` and `dtype`: what it computed with; None where it did not load.
    `unscored`: why nothing was scored; None where something was.
    `span_ns`: as in `Block`. The first point that an engine scores carries the time to load it.
    `again`: what it says in float32 of the tokens in doubt; None where it was not asked.
    """

    point: str
    engine: str
    device: str | None
    dtype: str | None
    texts: tuple[RescoredText, ...]
    unscored: str | None
    span_ns: tuple[int, int]
    again: SecondLook | None = None
