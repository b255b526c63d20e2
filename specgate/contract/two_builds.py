"""Data classes of `specgate ab`: two builds of an engine, measured in turns in one session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from specgate.contract.samples.engine_facts import EngineFacts
from specgate.contract.scenarios.pair import AcceptanceSource
from specgate.contract.scenarios.scenario import Scenario
from specgate.errors import ExitCode

SideName = Literal["old", "new"]
SIDES: Final[tuple[SideName, SideName]] = ("old", "new")


@dataclass(frozen=True, slots=True)
class Side:
    """One build of an engine: how its processes are started.

    `python`: the interpreter that runs it; None for the harness's own.
    `source`: the folder that its code is imported from before anything else; None for what is installed.
    `revision`: the git commit of `source`, where it lies in a git checkout.
    `changed`: whether that checkout differs from its commit; None where there is none.
    `sha256`: SHA-256 over the Python, C and CUDA files below `source`; None without `source`.
    """

    name: SideName
    backend: str
    options: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    source: str | None = None
    revision: str | None = None
    changed: bool | None = None
    sha256: str | None = None

    @property
    def label(self) -> str:
        """The build in a few words: its commit, else the folder, else what sets it apart."""
        if self.revision is not None:
            return f"{self.revision[:12]}{' with changes' if self.changed else ''}"
        servers = dict.fromkeys(value for key, value in self.options.items() if key.partition(".")[0] == "url")
        return self.source or self.python or ", ".join(servers) or f"back end {self.backend}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a process's code.

    `backend_file`, `specgate_file`: paths of the modules that it imported.
    `python`: version of its interpreter.
    """

    backend_file: str
    specgate_file: str
    specgate_version: str
    python: str


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one side. Processes with the same `number` form a pair: they ran beside or after each other.

    `first`: whether it was started before the other one of its pair.
    `start_ns`: from starting the process until the engine was ready, in nanoseconds of the harness's clock.
    `device_bytes`: GPU memory that is in use after its warm-up and was not before it started, in bytes; None where
        there is no GPU, or the driver does not say.
    `host_bytes`: the most memory that it and its child processes have had on the host, in bytes; None where the
        system does not say.
    """

    side: SideName
    number: int
    first: bool
    start_ns: int
    device_bytes: int | None = None
    host_bytes: int | None = None
    origin: Origin | None = None


class Word(StrEnum):
    """Verdict on the new build beside the old one.

    `SAME`: the two differ by less than the margin, and that is proven.
    `SLOWER`, `FASTER`: a difference is proven that is not proven to be smaller than the margin. Of acceptance, SLOWER
        is a lower one; of memory, it is more of it.
    `CANNOT_TELL`: none of these is proven.
    """

    SLOWER = "SLOWER"
    FASTER = "FASTER"
    SAME = "SAME"
    CANNOT_TELL = "CANNOT TELL"


STEP: Final = "step_ms"
"""Milliseconds per engine step. Of a server: per arrival, or per output token of a request (`StepUnit`)."""
PREFILL: Final = "prefill_ms"
"""Milliseconds of prefill."""
ACCEPTANCE: Final = "acceptance_length"
"""1 + accepted draft tokens / request-steps with a draft."""
START_UP: Final = "start_up_s"
"""Seconds until the engine is ready."""
MEMORY: Final = "device_memory_mib"
"""MiB of GPU memory after warm-up."""
HOST_MEMORY: Final = "host_memory_mib"
"""The most MiB of host memory."""
NAMES: Final = {
    STEP: "step time",
    PREFILL: "prefill time",
    ACCEPTANCE: "acceptance length",
    START_UP: "start-up time",
    MEMORY: "GPU memory",
    HOST_MEMORY: "host memory",
}
"""Quantity → its name in words."""


TELLING_PCT: Final = 100
"""Percent. A wider interval tells nothing, and its ends are not shown."""
Device = Literal["gpu", "attached", "cpu"]
USUAL_PCT: Final[Mapping[Device, Mapping[str, float]]] = {
    "gpu": {STEP: 1.0, PREFILL: 5.0, ACCEPTANCE: 2.0, START_UP: 20.0, MEMORY: 2.0, HOST_MEMORY: 2.0},
    "attached": {STEP: 3.0, PREFILL: 5.0, ACCEPTANCE: 2.0},
    "cpu": {STEP: 5.0, PREFILL: 10.0, ACCEPTANCE: 5.0, START_UP: 20.0, MEMORY: 2.0, HOST_MEMORY: 2.0},
}
"""Engine on a GPU, server that somebody else has started, or engine on a CPU → quantity → its margin in percent, where
the command line states none.

A margin is told from nothing by 24 process pairs where their standard deviation is six tenths of it: 0.6 % on a GPU of
a shared host, 3 % on a CPU. Two servers that somebody else has started are never proven closer than 2.1 %
(`estimates.Difference.assumed`).
"""


@dataclass(frozen=True, slots=True)
class Margins:
    """Size, in percent, that a difference must have to matter. A smaller one is SAME once that is proven.

    `step_pct`, `prefill_pct`, `acceptance_pct`: None for the usual ones of `device`, which the engine's facts tell.
    `same_within_pct`: the whole is SAME, too, where every quantity that decides is proven to differ by no more. None:
        only where each is within its own margin.
    `error`: the chance, on each side, that a difference is found where there is none, over all quantities that decide;
        and that SAME is said of a difference as large as the margin.
    """

    step_pct: float | None = None
    prefill_pct: float | None = None
    acceptance_pct: float | None = None
    same_within_pct: float | None = None
    device: Device = "gpu"
    error: float = 0.005

    def percent(self, quantity: str) -> float:
        """The margin of a quantity, by its name."""
        stated = {STEP: self.step_pct, PREFILL: self.prefill_pct, ACCEPTANCE: self.acceptance_pct}.get(quantity)
        return USUAL_PCT[self.device][quantity] if stated is None else stated


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of both builds.

    `cell`: `scenario/cCONTEXT/bBATCH/ROLE`, `scenario/cCONTEXT/bBATCH` for prefill, or empty for the whole process.
    `decides`: whether its word counts for the word of the whole.
    `old`, `new`: geometric means, in the unit that the name says.
    `ratio`: new / old, paired by process. `low`, `high`: its interval with an error of `Margins.error` on each side.
    `sd`: standard deviation of ln(new / old) between process pairs (of acceptance: what one prompt moves).
    `within_pct`: the two differ by no more than that, in percent: |mean| and half the width of the interval together.
        It is proven with an error of `Margins.error`, and costs no error of its own: margins are nested, so that this
        is the end of one test in a fixed order, from wide margins to narrow ones.
    `n`: process pairs (of acceptance: prompts) behind the interval.
    `needed`: how many would be enough to tell, if `sd` stays as it is; None where more would not help or none is
        needed.
    """

    name: str
    cell: str
    decides: bool
    better: Literal["lower", "higher"]
    margin_pct: float
    old: float | None
    new: float | None
    ratio: float | None
    low: float | None
    high: float | None
    sd: float | None
    n: int
    word: Word
    reason: str
    needed: int | None = None
    within_pct: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The word after the first `pairs` process pairs of every schedule, and what it is due to.

    `error`: the share of `Margins.error` that it could spend; the shares of all looks sum up to less than the whole.
    """

    pairs: int
    error: float
    word: Word | None
    reason: str


@dataclass(frozen=True, slots=True)
class Parting:
    """Place where the new build's text of a prompt leaves the old build's: token `position`, and the token of each.

    `gap`: distance of the two largest logits there, as one side's engine has them; None where it does not show them.
    """

    prompt_set: int
    slot: int
    position: int
    old: int
    new: int
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class TextChange:
    """The texts of one cell in both builds: how many prompts were compared, and where they part.

    `unsteady`: (side, prompt set, slot, index of the first token that differs) of every prompt to which one side gave
        another text in a later process than in its first one.
    """

    cell: str
    prompts: int
    tokens: int
    changed: tuple[Parting, ...]
    unsteady: tuple[tuple[str, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TokensOf:
    """The tokens of one spec cell of one side, compared with the same side's baseline.

    `why`: why nothing of the cell may be quoted, where that is so.
    """

    side: str
    cell: str
    compared: int
    emitted: int
    mismatches: int
    near_ties: int
    why: str | None = None


@dataclass(frozen=True, slots=True)
class TwoBuilds:
    """A whole comparison.

    `beside`: whether both builds were loaded at the same time, so that their blocks could alternate.
    `trouble`: what makes the comparison INVALID, a sentence each.
    `word`: None where there is trouble or the measuring was cut short.
    `code`: the exit code: SLOWER 1, SAME and FASTER 0, CANNOT TELL 3, trouble 6, else that of what cut it short.
    `looks`: the words so far, the last one the comparison's.
    `within_pct`: all quantities that decide are the same within that, in percent; None where one has no interval.
    """

    id: str
    started: str
    ended: str
    argv: tuple[str, ...]
    tool_version: str
    sides: Mapping[str, Side]
    engines: Mapping[str, Mapping[str, EngineFacts]]
    """Side → point → what its engine says about itself."""
    pair: str
    acceptance: AcceptanceSource
    scenarios: Mapping[str, Scenario]
    prompts: Mapping[str, Mapping[str, object]]
    environment: Mapping[str, object]
    margins: Margins
    processes: tuple[Process, ...]
    beside: bool
    quantities: tuple[Quantity, ...]
    texts: tuple[TextChange, ...]
    tokens: tuple[TokensOf, ...]
    trouble: tuple[str, ...]
    warnings: tuple[str, ...]
    word: Word | None
    reason: str
    code: ExitCode
    looks: tuple[Look, ...]
    within_pct: float | None = None

    @property
    def attached(self) -> tuple[str, ...]:
        """The sides that are servers which somebody else has started."""
        return tuple(name for name in SIDES if any(f.attached for f in self.engines.get(name, {}).values()))

    @property
    def error(self) -> float:
        """The error on each side of every interval: what the last look could spend."""
        return self.looks[-1].error

    @property
    def one_build(self) -> bool:
        """True if both sides are one build: the same code, interpreter, back end and options."""
        old, new = (self.sides[name] for name in SIDES)
        return replace(old, name="new", source=new.source, revision=new.revision, changed=new.changed) == new

    @property
    def verdict(self) -> str:
        """The word, or else why there is none, in capitals."""
        return self.word.value if self.word is not None else self.code.name.replace("_", " ")
