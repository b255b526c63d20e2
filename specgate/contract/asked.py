"""What an engine is asked to do: roles, scenarios, points, cells and the plan of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from specgate.contract.load.offered import Load


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


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a scenario.

    `context`: exact prompt lengths in tokens. For prompts from a file: the upper ends of classes of length, each of
        which begins above the one before. () until such prompts are chosen: then it is the length of the longest.
    `batch`: prompts that are decoded together.
    `spec`: draft lengths K ≥ 1.
    """

    context: tuple[int, ...]
    batch: tuple[int, ...]
    spec: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file of a user's own prompts.

    `path`: absolute.
    `sha256`: of the file's bytes. A run is only continued with the same ones.
    `format`: what its records look like, such as `lines` or `mt-bench` (`planning.prompt_files`).
    `chat`: whether prompts that are text become a user's message in the tokenizer's chat template. None: where the
        format's prompts are questions and the tokenizer has a template.
    `min_tokens`, `max_tokens`: prompts of other lengths are left out; `max_tokens` None: no upper limit.
    """

    path: Path
    sha256: str
    format: str
    chat: bool | None = None
    min_tokens: int = 1
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Which prompts a scenario decodes.

    `source`: the kind of text, `random`, or `file`.
    `prompt_sets`: how many sets of `batch` prompts each are measured.
    `warmup_sets`: how many sets are used for warm-up. Their prompts come from another pool.
    `file`: the prompts where `source` is `file`.
    `shared_prefix`: all prompts of a set begin with this many tokens of the set's first prompt.
    """

    source: str
    seed: int
    prompt_sets: int
    warmup_sets: int
    file: PromptFile | None = None
    shared_prefix: int = 0

    @property
    def own(self) -> PromptFile | None:
        """The file that the prompts come from, which then have lengths of their own; None for any other source."""
        return self.file if self.source == "file" else None


@dataclass(frozen=True, slots=True)
class Budget:
    """How long one block decodes. Exactly one of `steps` and `new_tokens` is set.

    `steps`: engine steps per block (micro scenarios).
    `new_tokens`: tokens per request (full scenarios).
    `ignore_eos`: whether a request goes on past EOS and stop tokens, so that every block does the same amount of work.
    """

    steps: int | None = None
    new_tokens: int | None = None
    ignore_eos: bool = True

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


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. The defaults are the target's own distribution.

    `temperature`: what logits are divided by; 0 is greedy.
    `top_p`, `top_k`, `min_p`: which tokens may be drawn; 1.0, 0 and 0.0 keep all of them.
    `repetition_penalty`: on tokens of the prompt and the output, as transformers has it; 1 is none.
    `presence_penalty`, `frequency_penalty`: on tokens of the output, subtracted from logits; 0 is none.
    `logit_bias`: (token, what is added to its logit).
    `seed`: of the random numbers.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    method: SamplingMethod = "coupled"
    seed: int = 0

    @property
    def penalises(self) -> bool:
        """Whether a token's chance depends on which tokens came before, beyond what the model makes of them."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Draws:
    """Texts that are drawn for the gate `distribution`, each a request of its own.

    `texts`: how many of every role. `tokens`: of each, the first one, which prefill gives, included. `prompt_tokens`:
        the prompt is so long, the beginning of the point's first one.
    """

    texts: int
    tokens: int = 4
    prompt_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """What a variant of a scenario's roles does otherwise. Everything else is as the scenario has it.

    `options`: of the engine, beside those of the scenario and of the command line.
    `sampling`: how tokens are drawn, in the place of what the scenario says; None: as the scenario says.
    `draws`: the texts to draw of every role; None: as the scenario says.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    sampling: Sampling | None = None
    draws: Draws | None = None


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """What a request must keep to for it to count as goodput, in ms; None where nothing is asked.

    `ttft_ms`: until its first token. `tpot_ms`: per output token after that. `e2e_ms`: until its last token.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


PASS_ROUNDS = 2
"""Rounds that every prompt set gets in one pass over the prompt sets: one in each order of the roles, A B · B A."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often a point is measured.

    `rounds`: at most so many rounds per prompt set. A round is one block of every role; the order of the roles is
        reversed from round to round. A point ends earlier where an interim look finds every rule that rests on samples
        decided.
    `warmup_rounds`: rounds per warm-up prompt set.
    `extended`: the rounds of earlier plans of a run that was continued with more, in ascending order.
    """

    rounds: int
    warmup_rounds: int
    extended: tuple[int, ...] = ()


STATISTICS: Final = 6
"""The statistics that new runs are planned and judged by."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question to an engine, with all its settings resolved.

    `question`: the question in words, from the first line of the file.
    `kind`: the command that runs it.
    `needs`: the smallest machine on which it makes sense.
    """

    name: str
    question: str
    kind: RunKind
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
    statistics: Literal[1, 2, 3, 4, 5, 6] = 1
    """By which rules its rounds are ordered, its interim looks placed and its pairs judged (docs/statistics.md). Runs
    that were stored before there was a choice have 1. In 3, verdicts are those of 2, and verdicts on whole requests
    say what prefill does to their interval. In 4, SM clocks of prefill and of decoding are told apart, and PERF_MODE
    takes what a server's client sees for evidence. In 5, acceptance that is forced, or looks so, is held to its shape,
    and short drafts are said. In 6, roles' SM clocks are compared over as much of the decoding as all of them have, and
    a run that is held against no earlier one is measured as far as a later one needs.
    """
    goodput: LatencyLimits | None = None
    """The latency limits of a request; None where none are asked for, so that there is no goodput."""
    definitions: int = 1
    """Which definitions the figures follow (`contract.metrics`). A file cannot set it: what is read from one has the
    newest, and stored runs without this field have the first.
    """

    baseline: bool = True
    """Whether the baseline runs too. Without it there is no speed-up, and nothing to compare tokens with: one server
    with speculation on, measured by itself.
    """
    sampling: Sampling | None = None
    """How tokens are drawn; None for greedy decoding."""
    draws: Draws | None = None
    """The texts to draw of every role after all timing, for their distribution to be judged; None for none."""
    load: Load | None = None
    """What a server is offered in a scenario of `kind: load`; None in every other."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the engine that belong to this scenario, beside those of the command line."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Name → what is measured beside the scenario itself. `planning.variants` makes a scenario of each, which is then
    called `SCENARIO+VARIANT` and has no variants.
    """

    @property
    def repeats_baseline(self) -> bool:
        """Whether speculation must emit the baseline's tokens: greedy ones, or drawn with the same random numbers."""
        return self.sampling is None or self.sampling.method == "coupled"

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
