"""What an engine is asked to do: roles, scenarios, points, cells and the plan of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Final, Literal

from specgate.contract.load.offered import Load
from specgate.contract.types import (
    ASCENDING,
    BATCH,
    DRAFT_TOKENS,
    FACTOR,
    FILLED_IN,
    POSITIONS,
    REPEATS,
    SECONDS,
    STEPS,
    VALUES,
    Check,
    Convert,
    Digest,
    Factor,
    Length,
    Pattern,
    Positions,
    Range,
    Repeats,
    Requests,
    Seed,
    Share,
    Steps,
    Text,
)


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """How a block decodes: `k = 0` is `baseline` (no draft), `k > 0` is `spec-k` (a chain of k draft tokens)."""

    k: int

    @property
    def name(self) -> str:
        """`"baseline"` or `"spec-k"`."""
        return f"spec-{self.k}" if self.k else "baseline"

    @property
    def speculative(self) -> bool:
        """Whether blocks of this role draft."""
        return self.k > 0

    @classmethod
    def parse(cls, text: str) -> Role:
        """The role called `"baseline"` or `"spec-N"`. Raises ValueError for any other text."""
        if text == "baseline":
            return cls(0)
        prefix, _, digits = text.partition("-")
        if prefix == "spec" and digits.isdigit() and int(digits) > 0:
            return cls(int(digits))
        raise ValueError(f"{text!r} is not a role; a role is 'baseline' or 'spec-N' with N > 0")

    def __str__(self) -> str:
        return self.name


BASELINE = Role(0)
VARIANT_MARK: Final = "+"
"""What stands between a role, or a scenario, and the name of its variant. No scenario file may have it in its name."""


RunKind = Literal["micro", "full", "load"]
"""What is measured, and the command that does it: steps (`micro`), whole requests (`full`), or a server under load."""

Machine = Literal["cpu", "gpu"]


AcceptanceSource = Literal["real", "planted", "stand-in", "forced", "scripted"]
"""Where acceptance comes from. It is printed beside every figure.

`real`: a trained pair.
`planted`: a pair whose weights are analytic, not trained.
`stand-in`: another drafter in the place of the pair's. Its drafts are verified, so the tokens are right.
`forced`: a simulation option of the engine that sets how many drafts are accepted. The tokens are wrong.
`scripted`: an engine that decodes nothing at all.
"""


@dataclass(frozen=True, slots=True)
class PairRef:
    """A target checkpoint and a draft checkpoint.

    `acceptance`: holds for an engine that decodes with the pair as it is. Any other engine states its own in
        `EngineFacts`.
    `rope`: overrides the target's RoPE scaling (Hugging Face keys, e.g. ``{"rope_type": "yarn", "factor": 4.0}``). None
        keeps the checkpoint's.
    `weights`: `server` where a running server has them, and this machine does not. `target` is then no checkpoint, but
        what its tokens are known by: a folder with its `tokenizer.json`, or that file under any name.
    """

    name: str
    target: Path
    draft: Path | None
    acceptance: AcceptanceSource = "real"
    rope: Mapping[str, int | float | str] | None = None
    weights: Literal["here", "server"] = "here"

    @property
    def tokenizer(self) -> Path:
        """The target's tokenizer file, which need not be there."""
        is_file = self.weights == "server" and self.target.suffix == ".json"
        return self.target if is_file else self.target / "tokenizer.json"


def own_lengths(context: object) -> object:
    """Return the contexts of a grid; () for `own`, the lengths that prompts from a file have."""
    return () if context == "own" else tuple(context) if isinstance(context, list) else context


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a scenario. Each axis ascends."""

    context: Annotated[tuple[Positions, ...], Length(0, VALUES), ASCENDING, Convert(own_lengths, {"const": "own"})]
    """Exact prompt lengths in tokens, ascending. For prompts from a file: the upper ends of classes of length, each of
    which begins above the one before; or `own`: such prompts keep their lengths, and once they are chosen, this is the
    length of the longest.
    """
    batch: Annotated[tuple[Annotated[int, Range(ge=1, le=BATCH)], ...], Length(1, VALUES), ASCENDING]
    """Prompts that are decoded together, ascending."""
    spec: Annotated[tuple[Annotated[int, Range(ge=1, le=DRAFT_TOKENS)], ...], ASCENDING]
    """Draft lengths K of the speculative roles, ascending. No file asks for the baseline alone, which has none."""


PromptSource = Literal["mixed", "code", "docs", "prose", "random", "file"]
FormatName = Literal["auto", "lines", "mt-bench", "humaneval", "gsm8k", "longbench", "sharegpt", "vllm-custom"]
"""Formats of a file of prompts (`planning.prompt_files`). `auto`: recognise it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts that a scenario decodes."""

    seed: Seed
    """Decides which prompts are chosen, and in which order."""
    prompt_sets: Repeats
    """Sets of `batch` prompts each that are measured."""
    warmup_sets: Repeats
    """Sets for warm-up. Their prompts come from another pool."""
    source: PromptSource = "file"
    """The kind of text; `file` for the prompts in `file`."""
    shared_prefix: Annotated[int, Range(ge=0, le=POSITIONS)] = 0
    """Tokens of the set's first prompt that all prompts of a set begin with."""
    file: Path | None = None
    """A file of the user's own prompts. A scenario's YAML file names it relative to itself."""
    format: FormatName = "auto"
    """The form of the file's records."""
    chat: bool | None = None
    """Whether prompts that are text become a user's message in the tokenizer's chat template. None: where the format's
    prompts are questions and the tokenizer has a template.
    """
    min_tokens: Positions = 1
    """Shorter prompts of the file are left out."""
    max_tokens: Positions | None = None
    """Longer prompts of the file are left out; None: no upper limit."""
    sha256: Digest | None = None
    """SHA-256 of the file's bytes. A run is only continued with the same ones."""

    @property
    def own(self) -> bool:
        """Whether the prompts come from a file, and then have lengths of their own."""
        return self.source == "file"


@dataclass(frozen=True, slots=True)
class Budget:
    """The length of one block. Exactly one of `steps` and `new_tokens` is set."""

    steps: Steps | None = None
    """Engine steps per block (micro scenarios)."""
    new_tokens: Annotated[int, Range(ge=2, le=STEPS)] | None = None
    """Tokens per request (full scenarios)."""
    ignore_eos: bool = True
    """Whether a request goes on past EOS and stop tokens, so that every block does the same amount of work."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.new_tokens is None):
            raise ValueError("set exactly one of steps (engine steps per block) and new_tokens (per request)")

    def longest(self, k: int) -> int:
        """Upper bound of the tokens that a slot can gain in one block at draft length `k`, for KV cache sizes and
        context checks.
        """
        if self.new_tokens is not None:
            return self.new_tokens
        assert self.steps is not None
        return self.steps * (k + 1)


SamplingMethod = Literal["coupled", "rejection"]
"""How a draft is verified at a temperature. `coupled`: with the random numbers of plain sampling, whose tokens are then
emitted. `rejection`: so that as many draft tokens as possible are accepted; the tokens are others of the same
distribution.
"""


def one_bias_per_token(biases: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return `biases` in the order of their tokens. Raises ValueError where a token has two."""
    if len({token for token, _ in biases}) < len(biases):
        raise ValueError("every token once: [[TOKEN, BIAS], …]")
    return tuple(sorted(biases))


Penalty = Annotated[float, Range(ge=-FACTOR, le=FACTOR)]
Bias = tuple[Annotated[int, Range(ge=0, le=POSITIONS)], Penalty]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. The defaults are the target's own distribution, with coupled verification."""

    temperature: Annotated[float, Range(ge=0, le=FACTOR)] = 1.0
    """What logits are divided by; 0 is greedy."""
    top_p: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Only the most likely tokens may be drawn that have this probability together; 1 keeps all."""
    top_k: Annotated[int, Range(ge=0, le=POSITIONS)] = 0
    """Only so many of the most likely tokens may be drawn; 0 keeps all."""
    min_p: Share = 0.0
    """Only tokens with this share of the largest probability may be drawn; 0 keeps all."""
    repetition_penalty: Factor = 1.0
    """On tokens of the prompt and the output, as transformers has it; 1 is none."""
    presence_penalty: Penalty = 0.0
    """On tokens of the output, subtracted from logits; 0 is none."""
    frequency_penalty: Penalty = 0.0
    """On tokens of the output and as often as they are there, subtracted from logits; 0 is none."""
    logit_bias: Annotated[tuple[Bias, ...], Check(one_bias_per_token)] = ()
    """Pairs of a token and what is added to its logit."""
    method: SamplingMethod = "coupled"
    """How a draft is verified."""
    seed: Annotated[int, Range(ge=0, le=(1 << 64) - 1)] = 0
    """Of the random numbers."""

    @property
    def filters(self) -> bool:
        """Whether some tokens may not be drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def penalises(self) -> bool:
        """Whether a token's chance depends on which tokens came before, beyond what the model makes of them."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Draws:
    """Texts that are drawn for the gate `distribution`, each a request of its own."""

    texts: Requests
    """Texts of every role."""
    tokens: Steps = 4
    """Tokens of each text, the first one, which prefill gives, included."""
    prompt_tokens: Positions = 16
    """Length of the prompt, which is the beginning of the point's first one."""


def option_text(value: object) -> object:
    """Return a number as the text that a command line would have in its place; everything else as it is."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


OptionName = Annotated[str, Pattern("^[A-Za-z][A-Za-z0-9_.-]*$"), Length(most=64)]
Options = Annotated[Mapping[OptionName, Annotated[Text, Convert(option_text, {"type": "number"})]], Length(most=VALUES)]


@dataclass(frozen=True, slots=True)
class Variant:
    """What a variant of a scenario's roles does otherwise. Everything else is as the scenario has it."""

    options: Options = field(default_factory=dict)
    """Options of the engine, beside those of the scenario and of the command line."""
    sampling: Sampling | None = None
    """How tokens are drawn, in the place of what the scenario says; None: as the scenario says."""
    draws: Draws | None = None
    """The texts to draw of every role; None: as the scenario says."""

    def __post_init__(self) -> None:
        if not self.options and self.sampling is None:
            raise ValueError("say what it varies: options: {NAME: VALUE}, or sampling: {temperature: …}")


VariantName = Annotated[str, Pattern("^[a-z0-9][a-z0-9._-]*$"), Length(most=32)]
Milliseconds = Annotated[float, Range(gt=0, le=1000 * SECONDS)]


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """What a request must keep to for it to count as goodput, in ms; None where nothing is asked."""

    ttft_ms: Milliseconds | None = None
    """Until its first token."""
    tpot_ms: Milliseconds | None = None
    """Per output token after that."""
    e2e_ms: Milliseconds | None = None
    """Until its last token."""

    def __post_init__(self) -> None:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("set at least one of ttft_ms, tpot_ms and e2e_ms, in milliseconds")


ROPE_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "linear": frozenset(),
    "yarn": frozenset({"attention_factor", "beta_fast", "beta_slow"}),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
}
"""`rope_type` → the keys that only this type has."""


@dataclass(frozen=True, slots=True)
class Rope:
    """RoPE scaling of a target, with the keys of `rope_scaling` in its Hugging Face config."""

    rope_type: Literal["yarn", "linear", "llama3"]
    factor: Annotated[float, Range(ge=1, le=FACTOR)]
    original_max_position_embeddings: Positions | None = None
    attention_factor: Factor | None = None
    beta_fast: Factor | None = None
    beta_slow: Factor | None = None
    low_freq_factor: Factor | None = None
    high_freq_factor: Factor | None = None

    def __post_init__(self) -> None:
        of_type = ROPE_KEYS[self.rope_type]
        given = self.keys.keys() - {"rope_type", "factor", "original_max_position_embeddings"}
        if given - of_type:
            raise ValueError(f"rope_type {self.rope_type} has no {', '.join(sorted(given - of_type))}")
        if self.rope_type == "llama3" and given != of_type:
            raise ValueError("rope_type llama3 needs low_freq_factor and high_freq_factor")

    @property
    def keys(self) -> dict[str, float | str]:
        """The keys that are set, as `PairRef.rope` has them."""
        values = ((key.name, getattr(self, key.name)) for key in fields(self))
        return {key: value for key, value in values if value is not None}


PASS_ROUNDS = 2
"""Rounds that every prompt set gets in one pass over the prompt sets: one in each order of the roles, A B · B A."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often a point is measured."""

    rounds: Repeats
    """At most so many rounds per prompt set. A round is one block of every role; the order of the roles is reversed
    from round to round. A point ends earlier where an interim look finds every rule that rests on samples decided.
    """
    warmup_rounds: Annotated[int, Range(ge=0, le=REPEATS)]
    """Rounds per warm-up prompt set."""
    extended: Annotated[tuple[int, ...], FILLED_IN] = ()
    """The rounds of earlier plans of a run that was continued with more, in ascending order."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question to an engine, with all its settings resolved."""

    name: Annotated[str, FILLED_IN]
    """The stem of the file."""
    question: Annotated[str, FILLED_IN]
    """The question in words, from the first line of the file, a comment."""
    kind: RunKind
    """The command that runs it."""
    family: Text
    """The group of scenarios that it belongs to."""
    needs: Machine
    """The smallest machine on which it makes sense."""
    pair: Text
    """The pair that it measures unless a command line names another one."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """The number format of the target's weights."""
    grid: Grid
    """The cells."""
    workload: Workload
    """The prompts."""
    budget: Budget
    """The length of a block."""
    schedule: Schedule
    """How often each cell is measured."""
    timeout_s: Annotated[float, Range(gt=0, le=SECONDS)]
    """Seconds that one call of the engine may take."""
    perf_mode: bool = False
    """Whether a profiler checks the decode loop, outside the timed blocks."""
    rope: Rope | None = None
    """RoPE scaling that overrides the target's, with the keys of its Hugging Face config."""
    default: bool = True
    """Whether a command that names no scenario runs this one."""
    source_file: Annotated[Path | None, FILLED_IN] = None
    goodput: LatencyLimits | None = None
    """The latency limits of a request. Without them there is no goodput."""
    baseline: Annotated[bool, FILLED_IN] = True
    """Whether the baseline runs too. Without it there is no speed-up, and nothing to compare tokens with: one server
    with speculation on, measured by itself.
    """
    sampling: Sampling | None = None
    """How tokens are drawn. Without it decoding is greedy."""
    draws: Draws | None = None
    """The texts to draw of every role after all timing, for their distribution to be judged."""
    load: Load | None = None
    """The requests that a server gets in a scenario of `kind: load`."""
    options: Options = field(default_factory=dict)
    """Options of the engine that belong to this scenario, as `-o` has them. A command line cannot set them again."""
    variants: Annotated[Mapping[VariantName, Variant], Length(most=VALUES)] = field(default_factory=dict)
    """Name → what is measured beside the scenario itself, under the name `SCENARIO+VARIANT`."""

    @property
    def repeats_baseline(self) -> bool:
        """Whether speculation must emit the baseline's tokens: greedy ones, or drawn with the same random numbers."""
        return self.sampling is None or self.sampling.method == "coupled"

    @property
    def rope_keys(self) -> dict[str, float | str] | None:
        """The RoPE scaling as `PairRef.rope` has it; None keeps the checkpoint's."""
        return self.rope.keys if self.rope else None

    @property
    def whole_requests(self) -> bool:
        """Whether blocks are whole requests, each with its own prefill."""
        return self.kind != "micro"

    def prompts_in_set(self, batch: int) -> int:
        """The prompts of one prompt set at this batch: as many as are decoded together, or the requests of a load."""
        return batch if self.load is None else self.load.in_block(batch)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The baseline, unless it is left out, then one role per draft length of the grid."""
        return (*((BASELINE,) if self.baseline else ()), *(Role(k) for k in self.grid.spec))


@dataclass(frozen=True, slots=True)
class Point:
    """Scenario × backend × batch × context. The blocks of one point share prompts, prefill and engine.

    `context` is the prompt length in tokens, `batch` the number of prompts decoded together. Prompts from a file have
    at most `context` tokens. Of a server under load, `batch` is the number of clients; in an open loop, the most
    requests that the server decodes together.
    """

    scenario: str
    backend: str
    context: int
    batch: int
    rate: float | None = None
    """Requests per second of an open loop; None everywhere else."""

    @property
    def unvaried(self) -> str:
        """The name of the scenario that this point's is a variant of, or is itself."""
        plain, _, variant = self.scenario.partition(VARIANT_MARK)
        return plain if plain and variant else self.scenario

    @property
    def variant(self) -> str:
        """The name of the variant; empty for the scenario itself."""
        return self.scenario[len(self.unvaried) + len(VARIANT_MARK) :]

    @property
    def key(self) -> str:
        """The name of the point in stored files: `scenario/backend/cCONTEXT/bBATCH`, and `/qRATE` in an open loop."""
        return self.key_in(self.scenario)

    def key_in(self, scenario: str) -> str:
        """The key of this point if it were one of `scenario`."""
        arrivals = "" if self.rate is None else f"/q{self.rate:g}"
        return f"{scenario}/{self.backend}/c{self.context}/b{self.batch}{arrivals}"

    @property
    def level(self) -> float:
        """The level of load: requests per second in an open loop, else requests at a time."""
        return float(self.batch) if self.rate is None else self.rate


@dataclass(frozen=True, slots=True)
class Cell:
    """Scenario × backend × batch × context × role, and the variant of the role."""

    point: Point
    role: Role

    @property
    def role_name(self) -> str:
        """The role with its variant: `"spec-3"`, `"spec-3+kv-fp8"`, `"baseline+kv-fp8"`."""
        return f"{self.role}{VARIANT_MARK}{self.point.variant}" if self.point.variant else self.role.name

    @property
    def baseline(self) -> Cell:
        """The cell that this one is compared with: the baseline of its point, so of the same variant."""
        return Cell(self.point, BASELINE)

    @property
    def key(self) -> str:
        """The name of the cell in stored files: the point's key without the variant, then the role with it."""
        return f"{self.point.key_in(self.point.unvaried)}/{self.role_name}"


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every role on one prompt set.

    `order`: the roles in running order.
    `warmup`: warm-up rounds are journaled but never judged.
    """

    point: Point
    prompt_set: int
    index: int
    order: tuple[Role, ...]
    warmup: bool

    @property
    def key(self) -> str:
        """A name that is unique within a plan."""
        kind = "w" if self.warmup else "r"
        return f"{self.point.key}/s{self.prompt_set}/{kind}{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run will do, in order, before it does any of it."""

    scenarios: Mapping[str, Scenario]
    rounds: tuple[Round, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """Every point, in running order."""
        return tuple(dict.fromkeys(r.point for r in self.rounds))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, in running order of the points."""
        return tuple(Cell(p, role) for p in self.points for role in self.scenarios[p.scenario].roles)

    def rounds_of(self, point: Point) -> Iterator[Round]:
        """The rounds of one point, warm-up included, in running order."""
        return (r for r in self.rounds if r.point == point)
