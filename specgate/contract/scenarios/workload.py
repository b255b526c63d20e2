"""The grid, the prompts and the lengths of a scenario's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from specgate.contract.types import (
    ASCENDING,
    BATCH,
    DRAFT_TOKENS,
    FILLED_IN,
    POSITIONS,
    REPEATS,
    SECONDS,
    STEPS,
    VALUES,
    Convert,
    Digest,
    LeavesOut,
    Length,
    Positions,
    Range,
    Repeats,
    Seed,
    Steps,
)


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


FormatName = Literal[
    "auto",
    "lines",
    "plain-lines",
    "mt-bench",
    "speed-bench",
    "humaneval",
    "mbpp",
    "gsm8k",
    "math",
    "alpaca",
    "longbench",
    "sharegpt",
    "conversations",
    "openai-batch",
    "mooncake",
    "vllm-custom",
]
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
        """True if the prompts come from a file, and then have lengths of their own."""
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


LEAST_BUDGET_S = 60.0
"""Seconds of measuring that a point gets at least whose schedule does not say how many."""
MOST_PAIRS = 384
"""Pairs of a point that is measured until it is decided, at most: what so many do not tell is better found with less
noise.
"""
LOAD_PAIRS = 8
"""Pairs whose blocks of a role come from one load, at least, where an engine holds one role at a time (`by_load`)."""
PASS_ROUNDS = 2
"""Rounds that every prompt set gets in one pass over the prompt sets: one in each order of the roles, A B · B A."""


@dataclass(frozen=True, slots=True)
class Schedule(LeavesOut):
    """Number of measurements of a point."""

    LEFT_OUT: ClassVar = frozenset({"by_load"})

    rounds: Repeats
    """At most so many rounds per prompt set. A round is one block of every role; the order of the roles is reversed
    from round to round. A point ends earlier where an interim look finds every rule that rests on samples decided.
    """
    warmup_rounds: Annotated[int, Range(ge=0, le=REPEATS)]
    """Rounds per warm-up prompt set."""
    extended: Annotated[tuple[int, ...], FILLED_IN] = ()
    """The rounds of earlier plans of a run that was continued with more, in ascending order."""
    by_load: Annotated[bool, FILLED_IN] = False
    """True where an engine holds one role at a time (`servers=apart`): many rounds are then measured role by role."""
    until: Literal["decided"] | None = None
    """`decided`: a point ends where every required rule that rests on samples is decided, or its time is spent.
    `rounds` is not read then, and the first interim look comes at 4 pairs.
    """
    budget_s: Annotated[float, Range(gt=0, le=SECONDS)] | None = None
    """With `until: decided`, the seconds of measuring that a point gets; null: 60, or as many as starting took if those
    are more.
    """

    def __post_init__(self) -> None:
        if self.budget_s is not None and self.until != "decided":
            raise ValueError("budget_s without until: decided; a fixed number of rounds takes the time that it takes")
