"""The nouns of specgate, frozen, in the order in which a run meets them.

    Scenario ─► Point, Role, Cell ─► Plan ─► Block (raw samples) ─► CellResult, Comparison ─► Verdict ─► Run

Nothing here computes more than an identity of its own fields; nothing here imports an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from specgate.core.acceptance import AcceptanceRecord
from specgate.core.conditions import Conditions
from specgate.core.cycle_budget import Bandwidth, CycleBudget
from specgate.core.distributions import DepthBin, Distribution
from specgate.core.traces import BlockTrace, Held, Invariant
from specgate.core.traffic import Traffic

__all__ = [
    "AcceptanceRecord",
    "AcceptanceSource",
    "Bandwidth",
    "Block",
    "BlockTrace",
    "Budget",
    "Cell",
    "CellResult",
    "Comparison",
    "CycleBudget",
    "DepthBin",
    "Distribution",
    "Divergence",
    "EngineFacts",
    "Finish",
    "Grid",
    "Held",
    "Invariant",
    "LastGreen",
    "Margin",
    "Order",
    "PairRef",
    "Plan",
    "Point",
    "Policy",
    "Role",
    "Round",
    "Rule",
    "Run",
    "Scenario",
    "Schedule",
    "Served",
    "ServedRequest",
    "State",
    "TokenCheck",
    "Traffic",
    "Value",
    "Verdict",
    "Workload",
]


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """How a block decodes: `k = 0` is `baseline` (no draft), `k > 0` is `spec-k` (a chain of k drafted tokens)."""

    k: int

    @property
    def name(self) -> str:
        return f"spec-{self.k}" if self.k else "baseline"

    @property
    def speculative(self) -> bool:
        return self.k > 0

    @classmethod
    def parse(cls, text: str) -> Role:
        """`"baseline"` or `"spec-N"`. Raises ValueError."""
        if text == "baseline":
            return cls(0)
        prefix, _, digits = text.partition("-")
        if prefix == "spec" and digits.isdigit() and int(digits) > 0:
            return cls(int(digits))
        raise ValueError(f"{text!r} is not a role; a role is 'baseline' or 'spec-N' with N > 0")

    def __str__(self) -> str:
        return self.name


BASELINE = Role(0)


AcceptanceSource = Literal["real", "planted", "stand-in", "forced", "scripted"]
"""Where acceptance comes from, printed beside every figure: a trained pair, analytic weights, a drafter in the
place of the pair's (its drafts are verified, so its tokens are right), an engine's simulation knob (they are
wrong), or an engine that decodes nothing at all.
"""


@dataclass(frozen=True, slots=True)
class PairRef:
    """A target checkpoint and a draft checkpoint.

    `acceptance` holds for an engine that decodes with the pair as it is; one that does not says so itself. `rope`
    overrides the target's RoPE scaling (Hugging Face keys, e.g. ``{"rope_type": "yarn", "factor": 4.0}``); `None` obeys
    the checkpoint.
    """

    name: str
    target: Path
    draft: Path | None
    acceptance: AcceptanceSource = "real"
    rope: Mapping[str, float | str] | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a scenario. `context` is the exact prompt length in tokens; `spec` lists draft lengths K ≥ 1."""

    context: tuple[int, ...]
    batch: tuple[int, ...]
    spec: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Which prompts. `prompt_sets` sets of `batch` prompts each are measured; warm-up prompts come from another
    pool.
    """

    source: str
    seed: int
    prompt_sets: int
    warmup_sets: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How long one block decodes: `steps` engine steps (micro) or `new_tokens` per request (full); exactly one is set.

    `ignore_eos` keeps a request going past EOS and stop tokens, so that every block does the same amount of work.
    """

    steps: int | None = None
    new_tokens: int | None = None
    ignore_eos: bool = True

    def longest(self, k: int) -> int:
        """Upper bound of tokens a slot can gain in one block at draft length `k` (for KV room and context checks)."""
        if self.new_tokens is not None:
            return self.new_tokens
        assert self.steps is not None
        return self.steps * (k + 1)


PASS_ROUNDS = 2
"""Rounds that a pass gives every prompt set before the next pass begins: one in each order, A B · B A."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """At most `rounds` rounds per prompt set, each one block of every role; the order of roles is reversed every round.

    A point ends before its last pass where a look finds every rule that rests on samples decided.
    """

    rounds: int
    warmup_rounds: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, fully resolved. `kind` is the command that runs it; `needs` the least machine it makes sense on."""

    name: str
    question: str
    kind: Literal["micro", "full"]
    family: str
    needs: Literal["cpu", "gpu"]
    pair: str
    dtype: Literal["float32", "bfloat16", "float16"]
    grid: Grid
    workload: Workload
    budget: Budget
    schedule: Schedule
    perf_mode: bool
    timeout_s: float
    rope: Mapping[str, float | str] | None = None
    default: bool = True
    """Whether a command that names no scenario runs this one."""
    source_file: Path | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        return (BASELINE, *(Role(k) for k in self.grid.spec))


@dataclass(frozen=True, slots=True)
class Point:
    """Scenario × backend × batch × context: the blocks of one point share prompts, prefill and engine."""

    scenario: str
    backend: str
    context: int
    batch: int

    @property
    def key(self) -> str:
        return f"{self.scenario}/{self.backend}/c{self.context}/b{self.batch}"


@dataclass(frozen=True, slots=True)
class Cell:
    """Scenario × backend × batch × context × role."""

    point: Point
    role: Role

    @property
    def key(self) -> str:
        return f"{self.point.key}/{self.role}"


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every role on one prompt set, in running order. `warmup` rounds are journaled but never judged."""

    point: Point
    prompt_set: int
    index: int
    order: tuple[Role, ...]
    warmup: bool

    @property
    def key(self) -> str:
        kind = "w" if self.warmup else "r"
        return f"{self.point.key}/s{self.prompt_set}/{kind}{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run will do, in order, before it does any of it."""

    scenarios: Mapping[str, Scenario]
    rounds: tuple[Round, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(dict.fromkeys(r.point for r in self.rounds))

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(Cell(p, role) for p in self.points for role in self.scenarios[p.scenario].roles)

    def rounds_of(self, point: Point) -> Iterator[Round]:
        return (r for r in self.rounds if r.point == point)


# ── what an engine says ──────────────────────────────────────────────────────────────────────────────────────────────


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
    always its own; micro runs: the prefill that the prompt set shares). `session` counts worker processes, so that
    a resumed run never pairs blocks of two processes. `truncated[slot]` counts accepted-and-verified tokens cut at
    EOS, a stop token or the limit. `counters` holds `disabled_*` reasons, `rewound_tokens` and `rewind_steps`, of
    the reasons `disabled_draft_error`: request-steps that had no draft because it could not be used. `phase_ns`
    splits the decode stretch. `span_ns` is when the harness asked for the block and when it had it, on the host's
    monotonic clock; None in runs stored before it was kept.

    Where `served` is set, the engine is a server: `accepted`, `drafted` and `step_ns` are (), not observable;
    `prefill_ns` lasts from the first request sent to the first token of any, `elapsed_ns` from there to the last token
    of all, and the counter `undrafted_steps` holds the request-steps that `served.acceptance` leaves out for want of a
    draft.
    """

    point: Point
    role: Role
    prompt_set: int
    round: int
    slot: int
    warmup: bool
    session: int
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


# ── what was found ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Value:
    """One figure. `reason_code` says why there is no value, or no interval around it. Units: `metrics.METRICS`."""

    metric: str
    value: float | None
    stat: str = "value"
    n: int = 1
    ci_low: float | None = None
    ci_high: float | None = None
    reason_code: str | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which a speculative block leaves the baseline.

    `margin` is the target's top-1 − top-2 logit (float32) at that position, teacher-forced along the baseline;
    `near_tie` is true where the margin is too small for the two batch shapes to be expected to agree.
    """

    prompt_set: int
    round: int
    slot: int
    position: int
    expected: int
    got: int
    margin: float | None
    near_tie: bool


@dataclass(frozen=True, slots=True)
class Margin:
    """Top-2 logits of the target where a spec block left the baseline: evidence for or against a near tie."""

    cell: str
    prompt_set: int
    round: int
    slot: int
    position: int
    top1: float
    top2: float


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Spec tokens against baseline tokens of the timed blocks, over the length both have."""

    compared_tokens: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> bool:
        return not self.divergences

    @property
    def mismatches(self) -> tuple[Divergence, ...]:
        return tuple(d for d in self.divergences if not d.near_tie)


@dataclass(frozen=True, slots=True)
class CellResult:
    """What the blocks of one cell amount to. `reason` is set where `status` is not `ok`."""

    cell: Cell
    status: Literal["ok", "partial", "failed"]
    reason: str | None
    blocks: int
    acceptance: AcceptanceRecord | None
    values: Mapping[str, Value]
    series_ms: tuple[tuple[int, int, float], ...]
    """(round of the whole point in running order, slot in the round, milliseconds per emitted token) per block."""
    by_depth: tuple[DepthBin, ...] = ()
    """From the shallowest steps to the deepest."""
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    """Metric → the times of single requests: `tpot_ms`, in full runs `ttft_ms` too."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A spec cell against the baseline cell of its point, over pairs of blocks. `log_ratios` are ln(spec/base)
    tok/s.
    """

    cell: Cell
    tokens: TokenCheck
    log_ratios: tuple[float, ...]
    orders: tuple[int, ...]
    """+1 where the baseline block of the pair ran first, -1 where the spec block did."""
    prompt_sets: tuple[int, ...]
    turns: tuple[int, ...]
    """The round of each pair, counted over the whole point in running order."""
    speedup: Value


class State(StrEnum):
    """The states a verdict can have."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    SKIPPED = "SKIPPED"
    ENV_REJECTED = "ENV_REJECTED"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a policy: which gate, on which cells, with which numbers; `required` decides the exit code."""

    id: str
    gate: str
    required: bool
    scenario: str = "*"
    role: str = "*"
    params: Mapping[str, float | str | bool] = field(default_factory=dict)

    def matches(self, cell: Cell) -> bool:
        """Whether its `scenario` and `role` patterns select `cell`."""
        return fnmatchcase(cell.point.scenario, self.scenario) and fnmatchcase(cell.role.name, self.role)


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    rules: tuple[Rule, ...]
    source_file: Path | None = None
    micro: tuple[str, ...] = ()
    """Micro scenarios (names, or files seen from `source_file`) that must be green before a full run; none: all micro
    scenarios that the machine runs by default.
    """


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate says of one cell, with the reason as code and sentence, the numbers, and what to do next."""

    rule: str
    gate: str
    cell: str
    state: State
    required: bool
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """Where a run stands in the order micro → full, when it begins.

    `gates`: name → SHA-256 of the micro scenarios that must be green `needed` times in a row; `streak`: how often they
    have been; `command`: what advances the streak; `override`: why a full run was allowed to begin without it.
    """

    gates: Mapping[str, str]
    needed: int
    streak: int
    command: str
    override: str | None = None


@dataclass(frozen=True, slots=True)
class LastGreen:
    """The last green run of the same kind and subject before a run, as the ledger beside them knows it.

    `differences`: (key, then, now) over fingerprint and environment, None for a key that one of them does not have; all
    of it None where that run can no longer be read.
    """

    run: str
    time: str
    differences: tuple[tuple[str, str | None, str | None], ...] | None


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run as gates and reports see it: what was asked, on what, what was found, what was decided."""

    id: str
    kind: Literal["micro", "full"]
    status: Literal["running", "complete", "partial", "interrupted"]
    started: str
    ended: str | None
    argv: tuple[str, ...]
    tool_version: str
    fingerprint: Mapping[str, str | None]
    environment: Mapping[str, object]
    scenarios: Mapping[str, Scenario]
    pair: PairRef
    engines: Mapping[str, EngineFacts]
    prompts: Mapping[str, Mapping[str, object]]
    """point key → {"sha256": …, "sources": […], "pool": …} of the measured prompts."""
    cells: tuple[CellResult, ...]
    comparisons: tuple[Comparison, ...]
    failures: Mapping[str, str]
    """point key → the sentence that says why its blocks are missing or incomplete."""
    verdicts: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    certificates: Mapping[str, tuple[Invariant, ...]] = field(default_factory=dict)
    """cell key → its PERF_MODE invariants, for the cells of scenarios that ask for them."""
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    """point key → what the machine did while its blocks were measured."""
    mde: Mapping[str, float] = field(default_factory=dict)
    """cell key → minimum detectable effect (ratio less 1), from this machine's noise passport; empty without one."""
    ended_early: Mapping[str, int] = field(default_factory=dict)
    """point key → the planned rounds after which a look found it decided, where further ones were planned."""
    order: Order | None = None
    last_green: LastGreen | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """File of the run folder → SHA-256, of those that were finished before the reports."""
    bandwidth: Bandwidth | None = None
    """Of this machine's memory, where it had been measured when the run began."""
    budgets: Mapping[str, CycleBudget] = field(default_factory=dict)
    """cell key → where the time of its cycles goes; of cells whose times may be quoted."""

    @property
    def acceptance(self) -> AcceptanceSource:
        """The engines' where one of them says so, else the pair's. The engines of a run are of one back end."""
        return next((f.acceptance for f in self.engines.values() if f.acceptance), self.pair.acceptance)

    def draft_trouble(self, result: CellResult) -> str | None:
        """In one line, why steps of a spec cell had no draft, where it could not be used; None where it could."""
        if not result.cell.role.speculative:
            return None
        engine = self.engines.get(result.cell.point.key)
        if engine is not None and engine.draft_error:
            return engine.draft_error.splitlines()[0]
        plain = result.values.get("disabled_draft_error")
        if plain is None or not plain.value:
            return None
        return f"{plain.value:.0f} of {plain.n} request-steps decoded plainly"

    def result(self, cell_key: str) -> CellResult | None:
        return next((c for c in self.cells if c.cell.key == cell_key), None)

    def comparison(self, cell_key: str) -> Comparison | None:
        return next((c for c in self.comparisons if c.cell.key == cell_key), None)
