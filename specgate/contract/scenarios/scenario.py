"""One question to an engine: a scenario, its variants and its latency limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from specgate.contract.load import Load
from specgate.contract.scenarios.pair import Rope
from specgate.contract.scenarios.roles import BASELINE, Role
from specgate.contract.scenarios.sampling import Draws, Sampling
from specgate.contract.scenarios.workload import LOAD_PAIRS, MOST_PAIRS, PASS_ROUNDS, Budget, Grid, Schedule, Workload
from specgate.contract.types import FILLED_IN, SECONDS, VALUES, Convert, LeavesOut, Length, Pattern, Range, Text

RunKind = Literal["micro", "full", "load"]
"""What is measured, and the command that does it: steps (`micro`), whole requests (`full`), or a server under load."""


Machine = Literal["cpu", "gpu"]


def option_text(value: object) -> object:
    """Return a number as the text that a command line would have in its place; everything else as it is."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


OptionName = Annotated[str, Pattern("^[A-Za-z][A-Za-z0-9_.-]*$"), Length(most=64)]


Options = Annotated[Mapping[OptionName, Annotated[Text, Convert(option_text, {"type": "number"})]], Length(most=VALUES)]


@dataclass(frozen=True, slots=True)
class Variant(LeavesOut):
    """Differences of a variant from its scenario. Everything else is as the scenario has it."""

    LEFT_OUT: ClassVar = frozenset({"backend"})

    options: Options = field(default_factory=dict)
    """Options of the engine, beside those of the scenario and of the command line."""
    sampling: Sampling | None = None
    """How tokens are drawn, in the place of what the scenario says; None: as the scenario says."""
    draws: Draws | None = None
    """The texts to draw of every role; None: as the scenario says."""
    backend: Text | None = None
    """A glob pattern of the back ends that have its options; others leave the variant out. None: all have them."""

    def __post_init__(self) -> None:
        if not self.options and self.sampling is None:
            raise ValueError("say what it varies: options: {NAME: VALUE}, or sampling: {temperature: …}")


VariantName = Annotated[str, Pattern("^[a-z0-9][a-z0-9._-]*$"), Length(most=32)]


Milliseconds = Annotated[float, Range(gt=0, le=1000 * SECONDS)]


@dataclass(frozen=True, slots=True)
class LatencyLimits(LeavesOut):
    """Limits that a request must keep to for it to count as goodput, in ms; None if there is none."""

    LEFT_OUT = frozenset({"share"})

    ttft_ms: Milliseconds | None = None
    """Until its first token."""
    tpot_ms: Milliseconds | None = None
    """Per output token after that."""
    e2e_ms: Milliseconds | None = None
    """Until its last token."""
    share: Annotated[float, Range(gt=0, lt=1)] = 0.9
    """Share of the requests that must keep to every limit for a level of load to count as within them. 0.9 is that of
    DistServe's goodput (OSDI 2024).
    """

    def __post_init__(self) -> None:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("set at least one of ttft_ms, tpot_ms and e2e_ms, in milliseconds")


@dataclass(frozen=True, slots=True)
class Scenario(LeavesOut):
    """One question to an engine, with all its settings resolved."""

    LEFT_OUT: ClassVar = frozenset({"backend", "perf_mode_off"})

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
    perf_mode_off: Annotated[bool, FILLED_IN] = False
    """Whether a command line has turned PERF_MODE off."""
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
    backend: Text | None = None
    """A glob pattern of the back ends that it is meant for; None: for all."""
    variants: Annotated[Mapping[VariantName, Variant], Length(most=VALUES)] = field(default_factory=dict)
    """Name → what is measured beside the scenario itself, under the name `SCENARIO+VARIANT`."""

    @property
    def repeats_baseline(self) -> bool:
        """True if speculation must emit the baseline's tokens: greedy ones, or drawn with the same random numbers."""
        return self.sampling is None or self.sampling.method == "coupled"

    @property
    def rope_keys(self) -> dict[str, float | str] | None:
        """The RoPE scaling as `PairRef.rope` has it; None keeps the checkpoint's."""
        return self.rope.keys if self.rope else None

    @property
    def until_decided(self) -> bool:
        """True if a point is measured until it is decided or its time is spent."""
        return self.schedule.until == "decided"

    @property
    def rounds(self) -> int:
        """The most rounds per prompt set."""
        if not self.until_decided:
            return self.schedule.rounds
        return max(1, MOST_PAIRS // (self.workload.prompt_sets * PASS_ROUNDS)) * PASS_ROUNDS

    @property
    def load_passes(self) -> int:
        """Passes over the prompt sets that an engine which holds one role at a time measures per load: those of
        LOAD_PAIRS pairs. 1 where roles take turns from block to block.
        """
        return -(-LOAD_PAIRS // self.workload.prompt_sets) if self.schedule.by_load else 1

    @property
    def whole_requests(self) -> bool:
        """True if blocks are whole requests, each with its own prefill."""
        return self.kind != "micro"

    def prompts_in_set(self, batch: int, rate: float | None = None) -> int:
        """The prompts of one prompt set at this batch: as many as are decoded together, or the requests of a load."""
        return batch if self.load is None else self.load.in_block(batch, rate)

    @property
    def set_sizes(self) -> tuple[int, ...]:
        """The prompts of one prompt set at every level, ascending."""
        rates = (self.load.rates if self.load is not None else ()) or (None,)
        return tuple(self.prompts_in_set(batch, rate) for batch in self.grid.batch for rate in rates)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The baseline, unless it is left out, then one role per draft length of the grid."""
        return (*((BASELINE,) if self.baseline else ()), *(Role(k) for k in self.grid.spec))
