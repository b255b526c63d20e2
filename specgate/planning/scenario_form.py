"""The form of a scenario file: which keys there are, what each may hold, and which values contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from specgate.contract import RunKind, SamplingMethod
from specgate.files.yaml_schema import Form, Problem
from specgate.planning.bounds import (
    BATCH,
    DRAFT_TOKENS,
    FACTOR,
    POSITIONS,
    RATE,
    REPEATS,
    REQUESTS,
    SECONDS,
    SEED,
    STEPS,
    VALUES,
)
from specgate.planning.prompt_files.formats import FormatName

SCHEMA = "specgate.scenario/v1"
MIN_PROMPTS = 8
"""Different prompts that a cell must have. Fewer would say more about the prompts than about the engine."""

Kind = RunKind
Machine = Literal["cpu", "gpu"]


Number = TypeVar("Number", int, float)


def ascending(values: list[Number]) -> list[Number]:
    """`values` as they are. Raises ValueError unless they strictly ascend."""
    if any(later <= earlier for earlier, later in pairwise(values)):
        raise ValueError(f"must ascend without repeats: {sorted(set(values))}")
    return values


Repeats = Annotated[int, Field(ge=1, le=REPEATS)]
Positions = Annotated[int, Field(ge=1, le=POSITIONS)]
Batch = Annotated[int, Field(ge=1, le=BATCH)]
Factor = Annotated[float, Field(gt=0, le=FACTOR)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
DraftLength = Annotated[int, Field(ge=1, le=DRAFT_TOKENS)]


Contexts = Annotated[list[Positions], Field(min_length=1, max_length=VALUES), AfterValidator(ascending)]


class GridForm(Form):
    """The form of `contract.Grid`. `context: own`, or none, leaves prompts from a file as long as they are."""

    context: Annotated[Contexts | None, BeforeValidator(lambda said: None if said == "own" else said)] = None
    batch: Annotated[list[Batch], Field(min_length=1, max_length=VALUES), AfterValidator(ascending)]
    spec: Annotated[list[DraftLength], Field(min_length=1), AfterValidator(ascending)]


FILE_KEYS = ("format", "chat", "min_tokens", "max_tokens", "sha256")
"""Keys of a workload that say something about its file."""


class WorkloadForm(Form):
    """The form of `contract.Workload`, and of the `contract.PromptFile` in it."""

    source: Literal["mixed", "code", "docs", "prose", "random", "file"] = "file"
    seed: Annotated[int, Field(ge=0, le=SEED)]
    prompt_sets: Repeats
    warmup_sets: Repeats
    shared_prefix: Annotated[int, Field(ge=0, le=POSITIONS)] = 0
    file: Text | None = None
    format: FormatName = "auto"
    chat: bool | None = None
    min_tokens: Positions = 1
    max_tokens: Positions | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None


class BudgetForm(Form):
    """The form of `contract.Budget`."""

    steps: Annotated[int, Field(ge=1, le=STEPS)] | None = None
    new_tokens: Annotated[int, Field(ge=2, le=STEPS)] | None = None
    ignore_eos: bool = True

    @model_validator(mode="after")
    def one_limit(self) -> BudgetForm:
        """Refuses a budget with both limits or none."""
        if (self.steps is None) == (self.new_tokens is None):
            raise ValueError("set exactly one of steps (engine steps per block) and new_tokens (per request)")
        return self


class ScheduleForm(Form):
    """The form of `contract.Schedule`."""

    rounds: Repeats
    warmup_rounds: Annotated[int, Field(ge=0, le=REPEATS)]


Limit = Annotated[float, Field(gt=0, le=1000 * SECONDS)]


class GoodputForm(Form):
    """The form of `contract.LatencyLimits`."""

    ttft_ms: Limit | None = None
    tpot_ms: Limit | None = None
    e2e_ms: Limit | None = None

    @model_validator(mode="after")
    def some_limit(self) -> GoodputForm:
        """Refuses a key without any limit."""
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("set at least one of ttft_ms, tpot_ms and e2e_ms, in milliseconds")
        return self


class LoadForm(Form):
    """The form of `contract.load.Load`."""

    requests: Annotated[int, Field(ge=1, le=REQUESTS)]
    per_client: Annotated[int, Field(ge=1, le=REQUESTS)] = 1
    rates: (
        Annotated[
            list[Annotated[float, Field(ge=1 / SECONDS, le=RATE)]],
            Field(min_length=1, max_length=VALUES),
            AfterValidator(ascending),
        ]
        | None
    ) = None


Chance = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-FACTOR, le=FACTOR)]


def pair_of(said: object) -> object:
    """A list of two, which YAML has in the place of a pair, as one."""
    return tuple(said) if isinstance(said, list) and len(said) == 2 else said


def one_per_token(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """`pairs` as they are. Raises ValueError where a token has two."""
    tokens = [token for token, _ in pairs]
    if len(set(tokens)) < len(tokens):
        raise ValueError("every token once: [[TOKEN, BIAS], …]")
    return pairs


Bias = Annotated[tuple[Annotated[int, Field(ge=0, le=POSITIONS)], Penalty], BeforeValidator(pair_of)]


class SamplingForm(Form):
    """The form of `contract.Sampling`. `sampling: {}` is the target's own distribution, with coupled verification.

    `logit_bias`: pairs of a token and what is added to its logit.
    """

    temperature: Annotated[float, Field(ge=0, le=FACTOR)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=POSITIONS)] = 0
    min_p: Chance = 0.0
    repetition_penalty: Factor = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[list[Bias], AfterValidator(one_per_token)] = Field(default_factory=list)
    method: SamplingMethod = "coupled"
    seed: Annotated[int, Field(ge=0, le=SEED)] = 0

    @property
    def filters(self) -> bool:
        """Whether some tokens may not be drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


class DrawsForm(Form):
    """The form of `contract.Draws`."""

    texts: Annotated[int, Field(ge=1, le=REQUESTS)]
    tokens: Annotated[int, Field(ge=1, le=STEPS)] = 4
    prompt_tokens: Positions = 16


def option_text(said: object) -> object:
    """A number as the text that a command line would have in its place; everything else as it is."""
    return str(said) if isinstance(said, int | float) and not isinstance(said, bool) else said


OptionName = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_.-]*$", max_length=64)]
Options = Annotated[dict[OptionName, Annotated[Text, BeforeValidator(option_text)]], Field(max_length=VALUES)]


class VariantForm(Form):
    """The form of `contract.Variant`."""

    options: Options = Field(default_factory=dict)
    sampling: SamplingForm | None = None
    draws: DrawsForm | None = None

    @model_validator(mode="after")
    def something(self) -> VariantForm:
        """Refuses a variant that varies nothing."""
        if not self.options and self.sampling is None:
            raise ValueError("say what it varies: options: {NAME: VALUE}, or sampling: {temperature: …}")
        return self


VariantName = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9._-]*$", max_length=32)]


ROPE_KEYS: dict[str, set[str]] = {
    "linear": set(),
    "yarn": {"attention_factor", "beta_fast", "beta_slow"},
    "llama3": {"low_freq_factor", "high_freq_factor"},
}
"""`rope_type` → the keys that only this type has."""


class RopeForm(Form):
    """The Hugging Face keys of `rope_scaling`."""

    rope_type: Literal["yarn", "linear", "llama3"]
    factor: Annotated[float, Field(ge=1, le=FACTOR)]
    original_max_position_embeddings: Positions | None = None
    attention_factor: Factor | None = None
    beta_fast: Factor | None = None
    beta_slow: Factor | None = None
    low_freq_factor: Factor | None = None
    high_freq_factor: Factor | None = None

    @model_validator(mode="after")
    def keys_of_its_type(self) -> RopeForm:
        """Refuses keys of another `rope_type`, and a `llama3` scaling without all of its keys."""
        of_type = ROPE_KEYS[self.rope_type]
        common = {"rope_type", "factor", "original_max_position_embeddings"}
        given = self.model_dump(exclude_none=True).keys() - common
        if given - of_type:
            raise ValueError(f"rope_type {self.rope_type} has no {', '.join(sorted(given - of_type))}")
        if self.rope_type == "llama3" and given != of_type:
            raise ValueError("rope_type llama3 needs low_freq_factor and high_freq_factor")
        return self


class ScenarioForm(Form):
    """A scenario file, after everything it extends was merged in."""

    schema_: Literal["specgate.scenario/v1"] = Field(alias="schema")
    extends: None = None  # resolved before the form is checked; listed here so that it counts as a known key
    kind: Kind
    family: Text
    needs: Machine
    pair: Text
    dtype: Literal["float32", "bfloat16", "float16"]
    grid: GridForm
    workload: WorkloadForm
    budget: BudgetForm
    schedule: ScheduleForm
    perf_mode: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=SECONDS)]
    rope: RopeForm | None = None
    goodput: GoodputForm | None = None
    sampling: SamplingForm | None = None
    draws: DrawsForm | None = None
    load: LoadForm | None = None
    options: Options = Field(default_factory=dict)
    variants: Annotated[dict[VariantName, VariantForm], Field(max_length=VALUES)] = Field(default_factory=dict)
    default: bool = True


def contradictions(form: ScenarioForm) -> Iterator[Problem]:
    """Problems that lie in the combination of several keys."""
    sets, rounds, batch = form.workload.prompt_sets, form.schedule.rounds, form.grid.batch[0]
    yield from load_contradictions(form)
    if form.kind == "micro" and form.budget.steps is None:
        yield Problem(("budget",), "a micro scenario counts engine steps: set steps, not new_tokens")
    if form.kind == "micro" and form.goodput is not None:
        yield Problem(("goodput",), "a micro scenario measures no whole requests, so it has no goodput: leave it out")
    if form.draws is not None and form.sampling is None:
        yield Problem(("draws",), "greedy decoding draws nothing: set sampling, or leave this out")
    if form.draws is not None and form.sampling is not None and form.sampling.filters and form.needs != "cpu":
        why = "engines that round differently part at a filter's last token: leave out top_p, top_k and min_p"
        yield Problem(("draws",), f"{why}, or say needs: cpu")
    if form.sampling is not None and form.kind == "load":
        yield Problem(("sampling",), "a server under load is asked greedily: leave it out")
    yield from contradicting_variants(form)
    yield from contradicting_prompts(form)
    in_set, what = batch, f"batch {batch}"
    if form.load is not None:
        in_set = max(form.load.requests, form.load.per_client * batch)
        what = f"{in_set} requests"
    if sets * in_set < MIN_PROMPTS:
        enough = -(-MIN_PROMPTS // in_set)
        why = f"{sets} × {what} = {sets * in_set} different prompts; {MIN_PROMPTS} are needed: {enough} or more"
        yield Problem(("workload", "prompt_sets"), why)
    if sets * rounds % 2:
        why = f"with {sets} prompt sets an odd number of rounds, so the roles' two orders cannot balance: make one even"
        yield Problem(("schedule", "rounds"), why)


def contradicting_variants(form: ScenarioForm) -> Iterator[Problem]:
    """Problems that a variant has beyond those of the scenario, each with the key that has it."""
    if not form.variants:
        return
    plain = form.model_copy(update={"variants": {}})
    known = set(contradictions(plain))
    for name, variant in form.variants.items():
        said = {key: value for key in ("sampling", "draws") if (value := getattr(variant, key)) is not None}
        for problem in contradictions(plain.model_copy(update=said)):
            if problem not in known:
                yield Problem(("variants", name, *problem.key), problem.why)


def contradicting_prompts(form: ScenarioForm) -> Iterator[Problem]:
    """Problems that lie in what is said of the prompts and their lengths."""
    work, grid = form.workload, form.grid
    if work.file is None:
        if work.source == "file":
            yield Problem(("workload", "source"), "no file: set workload.file, or a source: mixed, code, docs, …")
        if grid.context is None:
            yield Problem(
                ("grid", "context"), "exact prompt lengths are needed; only prompts from a file have their own"
            )
        for key in FILE_KEYS:
            if key in work.model_fields_set:
                yield Problem(("workload", key), "it speaks of workload.file, and there is none")
    if work.max_tokens is not None and work.max_tokens < work.min_tokens:
        yield Problem(("workload", "max_tokens"), f"less than min_tokens, which is {work.min_tokens}")
    if work.shared_prefix and form.grid.batch[-1] == 1:
        yield Problem(("workload", "shared_prefix"), "sets of one prompt share nothing: ask for a larger batch")


def load_contradictions(form: ScenarioForm) -> Iterator[Problem]:
    """Problems of a scenario of `kind: load`, and of `load` in any other."""
    if (form.kind == "load") != (form.load is not None):
        why = "a load scenario says what it offers: load: {requests: …}"
        yield Problem(("load",), why if form.load is None else f"only a scenario of kind: load has it, not {form.kind}")
    if form.kind != "load":
        return
    if form.budget.new_tokens is None:
        yield Problem(("budget",), "a load scenario sends whole requests: set new_tokens, not steps")
    if form.perf_mode:
        yield Problem(("perf_mode",), "the loop of a server cannot be profiled: leave it out")
    if form.load is not None and form.load.rates and len(form.grid.batch) > 1:
        why = "an open loop has one: the most requests that the server decodes together; its levels are load.rates"
        yield Problem(("grid", "batch"), why)
    if form.load is not None and form.load.rates and form.load.per_client > 1:
        yield Problem(("load", "per_client"), "an open loop has no clients: requests says how many a block has")
