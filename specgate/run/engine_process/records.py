"""The form of what an engine says of itself and of a block, and how it becomes the record that the harness uses.

The forms are strict. A number is one in JSON: no text, no boolean in the place of an integer, neither NaN nor infinity.
Every integer fits into 64 bits. Keys that are not listed here are refused. The docstrings of `contract.EngineFacts`,
`protocols.Decoded`, `contract.Served` and `contract.Traffic` say what the fields mean.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from specgate.contract import (
    AcceptanceRecord,
    AcceptanceSource,
    EngineFacts,
    EngineIdentity,
    Finding,
    Finish,
    LoopFigures,
    RefusedRequest,
    Score,
    Served,
    ServedModel,
    ServedRequest,
    TopTokens,
)
from specgate.contract.acceptance import Totals
from specgate.contract.draws import TokenLaw
from specgate.contract.memory import EngineMemory
from specgate.contract.protocols import Activity, Decoded, Text
from specgate.contract.routing import ExpertCounts, PassCounts
from specgate.contract.traffic import AttentionTraffic, DraftTraffic, ExpertTraffic, LinkTraffic, PassTraffic, Traffic
from specgate.contract.two_builds import Origin

LARGEST: Final = (1 << 63) - 1
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Integer = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Tally = Annotated[int, Field(ge=-1, le=LARGEST)]
"""A count of draft tokens, or -1 where the slot had already finished."""
Counts = Annotated[tuple[Count, ...], FailFast()]
Tokens = Annotated[tuple[Annotated[tuple[Count, ...], Field(min_length=1), FailFast()], ...], FailFast()]
"""Token ids of every slot, beginning with the prefill token."""
Finishes = Annotated[tuple[Finish, ...], FailFast()]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Tallies = Annotated[tuple[Tally, ...], FailFast()]


class Form(BaseModel):
    """A form with the class of the record that is made of it. The two have the same fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    record: ClassVar[type]

    def made(self) -> Any:
        """The record."""
        return self.record(**{name: made_of(getattr(self, name)) for name in type(self).model_fields})


def made_of(value: object) -> object:
    """`value`, with records in the place of forms."""
    if isinstance(value, Form):
        return value.made()
    if isinstance(value, tuple) and value and isinstance(value[0], Form):
        return tuple(map(made_of, value))
    if isinstance(value, dict):
        return {key: made_of(part) for key, part in value.items()}
    return value


# ── an engine ────────────────────────────────────────────────────────────────────────────────────────────────────────


class AttentionForm(Form):
    record = AttentionTraffic
    layers: Count
    position_bytes: Count
    window: Size | None


class ExpertForm(Form):
    record = ExpertTraffic
    layers: Size
    count: Size
    active: Size
    expert_bytes: Size

    @model_validator(mode="after")
    def _a_token_goes_to_no_more_than_there_are(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active = {self.active}, but count = {self.count}: at most as many are needed")
        return self


class PassForm(Form):
    record = PassTraffic
    weight_bytes: Count
    token_bytes: Count
    attention: tuple[AttentionForm, ...]
    experts: ExpertForm | None


class DraftForm(Form):
    record = DraftTraffic
    extension: PassForm
    step: PassForm


class LinkForm(Form):
    record = LinkTraffic
    gpus: Annotated[int, Field(ge=2, le=LARGEST)]
    row_bytes: Count
    draft_row_bytes: Count = 0


class TrafficForm(Form):
    record = Traffic
    target: PassForm
    draft: DraftForm | None
    link: LinkForm | None = None


class ServedModelForm(Form):
    record = ServedModel
    name: str
    path: str | None
    max_positions: Size | None
    architecture: str | None
    vocab: Size | None


class IdentityForm(Form):
    record = EngineIdentity
    engine: str
    version: str | None
    build: str | None
    told_by: Literal["version", "option"] | None
    settings: dict[str, str]
    differing: dict[str, dict[str, str]]
    served: dict[str, ServedModelForm]


class FactsForm(Form):
    record = EngineFacts
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
    details: dict[str, str | bool | Integer | Finite]
    acceptance: AcceptanceSource | None
    warnings: tuple[str, ...]
    tape_sha256: str | None
    kernels: tuple[str, ...] | None
    tuned_sha256: str | None
    draft_error: str | None
    traffic: TrafficForm | None
    least_weight_bytes: None  # the harness counts them, an engine has no say
    engine_version: str | None
    identity: IdentityForm | None
    follows: None = None  # the harness's own code beside the engine sees it


# ── a block ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ServedRequestForm(Form):
    record = ServedRequest
    sent_ns: Count
    chunk_ns: Annotated[tuple[Count, ...], Field(min_length=1), FailFast()]
    chunk_tokens: Counts
    due_ns: Count | None


class RefusedForm(Form):
    record = RefusedRequest
    prompt: Count
    status: Count
    at_ns: Count


class TotalsForm(Form):
    record = Totals
    steps: Count
    drafted: Count
    accepted: Count


class AcceptanceForm(Form):
    record = AcceptanceRecord
    k: Size
    hist: Counts
    drafted_at_pos: Counts
    emitted: Count
    truncated: Count
    totals: TotalsForm | None


class ServedForm(Form):
    record = Served
    requests: tuple[ServedRequestForm, ...]
    acceptance: AcceptanceForm | None
    refused: tuple[RefusedForm, ...]
    prompts: Counts


class TopTokensForm(Form):
    record = TopTokens
    values: tuple[Finite, ...]
    tokens: Counts


class MemoryForm(Form):
    record = EngineMemory
    process: Size | None
    kv_tokens: Size | None
    kv_bytes: Size | None
    kv_beside: bool = False


class PassCountsForm(Form):
    record = PassCounts
    rows: Size
    layers: tuple[Counts, ...]


class ExpertCountsForm(Form):
    record = ExpertCounts
    touched: Counts
    passes: tuple[PassCountsForm, ...]
    fresh: Counts


class DecodedForm(Form):
    record = Decoded
    elapsed_ns: Count
    step_ns: Counts
    tokens: Tokens
    accepted: Annotated[tuple[Tallies, ...], FailFast()]
    drafted: Annotated[tuple[Tallies, ...], FailFast()]
    truncated: Counts
    finish: Finishes
    counters: dict[str, Count]
    phase_ns: dict[str, Count]
    prefill_ns: Count | None
    served: ServedForm | None
    memory: MemoryForm | None = None  # builds of an engine before this was told leave it out
    experts: ExpertCountsForm | None = None  # likewise
    began_ns: Count | None = None  # likewise


class LoopForm(Form):
    record = LoopFigures
    window_ns: Count
    busy_ns: Count
    gaps: Count
    gap_p50_ns: Count
    gap_p99_ns: Count
    longest_gap_ns: Count
    bytes_to_host: Count | None
    waits_elsewhere: Count | None


class FindingForm(Form):
    record = Finding
    invariant: Literal["I1", "I2", "I3", "I4", "I6"]
    reason_code: str
    breaks: bool
    count: Size
    where: str
    text: str
    meaning: str


class ActivityForm(Form):
    record = Activity
    kernels: dict[str, Count]
    copies: dict[str, Count]
    calls: dict[str, Count]
    unseen: str | None
    server_profiler: bool
    steps: Count | None
    loop: LoopForm | None
    findings: tuple[FindingForm, ...]
    allowed: tuple[str, ...] | None
    notes: tuple[str, ...]


# ── what tokens are checked by ───────────────────────────────────────────────────────────────────────────────────────


class TextForm(Form):
    record = Text
    tokens: Tokens
    finish: Finishes


class LawForm(Form):
    record = TokenLaw
    given: Counts
    tokens: Counts
    probabilities: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    @model_validator(mode="after")
    def _a_probability_of_every_token(self) -> Self:
        if len(self.tokens) != len(self.probabilities):
            raise ValueError(f"{len(self.tokens)} tokens, but {len(self.probabilities)} probabilities")
        if sum(self.probabilities) > 1 + 1e-6:
            raise ValueError(f"the probabilities sum to {sum(self.probabilities):.6g}, more than 1")
        return self


class ScoreForm(Form):
    record = Score
    best: Count
    best_logit: Finite
    logit: Finite


# ── where its code comes from ────────────────────────────────────────────────────────────────────────────────────────


class OriginForm(Form):
    record = Origin
    backend_file: str
    specgate_file: str
    specgate_version: str
    python: str
