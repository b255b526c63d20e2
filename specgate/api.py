"""What a plug-in implements. An author of a back end, gate or report imports this module and `specgate.core`, no more.

Entry-point groups: `specgate.backends`, `specgate.gates`, `specgate.reports`, and for what is made of several stored
runs `specgate.contrast_gates`, `specgate.views` and `specgate.exports`; each entry point names an object with the
attributes below. Built-ins come in by the same door (see `specgate/plugins.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

from specgate.archive.contrast import Contrast
from specgate.archive.trends import Trends
from specgate.core import Block, Budget, EngineFacts, PairRef, Policy, Role, Rule, Run, Served, ServedRequest, Verdict
from specgate.tuning.fmha import AttentionConfig, TileStatistics
from specgate.tuning.gemms import GemmShape, StepsRequest, TunedGemm
from specgate.tuning.kernel_bench import KernelBench, KernelBenchRequest

__all__ = [
    "BLOCK_MARK",
    "Activity",
    "Availability",
    "Backend",
    "BenchesKernels",
    "Block",
    "ChecksOptions",
    "Combined",
    "ContrastGate",
    "Decoded",
    "Engine",
    "Export",
    "Gate",
    "GemmShape",
    "GemmTuner",
    "MemoryReads",
    "OpenRequest",
    "ReadsMemory",
    "Report",
    "ScriptedTrace",
    "Sequential",
    "Served",
    "ServedRequest",
    "TunableEngine",
    "TunedGemm",
    "TunesGemms",
    "Verdict",
    "View",
    "block_marker",
]

BLOCK_MARK = "specgate.block"


@contextmanager
def block_marker() -> Iterator[None]:
    """An engine wraps the steps of a block in this, so that a profiler can tell them from what comes before and after.

    Costs a microsecond where nobody profiles, and nothing where torch has not been imported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.profiler.record_function(BLOCK_MARK):
        yield


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a back end can run on this machine. Of several, the highest `rank` is the default."""

    usable: bool
    reason: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What an engine must be able to hold before anything is measured: checked, and refused with numbers, at load
    time.
    """

    pair: PairRef
    dtype: str
    max_batch: int
    max_positions: int
    max_k: int
    perf_mode: bool
    options: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None
    """A folder for what programs that the engine starts print; None: a temporary one."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one decode stretch returns; fields as in `core.Block`, which the runner makes of it.

    An engine that prefills and decodes in one go, as a server does, sets `prefill_ns`; what its `prefill` returned is
    then disregarded.
    """

    elapsed_ns: int
    step_ns: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...]
    drafted: tuple[tuple[int, ...], ...]
    truncated: tuple[int, ...]
    finish: tuple[str, ...]
    counters: Mapping[str, int] = field(default_factory=dict)
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    prefill_ns: int | None = None
    served: Served | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What was seen of a block: kernels, copies and CUDA calls of the host, counted by name; `unseen` says why nothing
    was.
    """

    kernels: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unseen: str | None = None


class Engine(Protocol):
    """A loaded pair. Lives in a worker process; all calls come from one thread, in the order prefill, decode*,
    top2*.
    """

    def facts(self) -> EngineFacts: ...

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Fill the caches from ragged `prompts` (one per slot), forget what was there; return nanoseconds.

        The draft's cache is filled too where `draft` is set; without it only baseline blocks may follow.
        """

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Rewind every slot to its prompt, then decode greedily under `role` until `budget` is spent."""

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        """The two largest target logits (float32) for the token that follows prompt[slot] + continuation.

        Log-probabilities will do, since only their difference is used. None where the engine cannot say.
        """

    def close(self) -> None: ...


@runtime_checkable
class ScriptedTrace(Protocol):
    """An engine that answers for the look at its loop itself: one that only pretends to decode (its acceptance is
    `scripted`), or one whose loop runs in a process that cannot be looked into, and which says so (`Activity.unseen`).
    """

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]: ...


@runtime_checkable
class TunableEngine(Engine, Protocol):
    """An engine whose attention can be tiled in another way while it is loaded; its prompts stay."""

    def attention_config(self) -> AttentionConfig:
        """What it decodes with."""

    def attention_configs(self) -> Sequence[AttentionConfig]:
        """What is worth trying for its pair and sizes here."""

    def prepare_attention(self, configs: Sequence[AttentionConfig], roles: Sequence[Role]) -> Sequence[str | None]:
        """Compile what `roles` need under each of `configs`; why it cannot be, for those where it cannot.

        Raises UsageError for knobs and values that it does not have.
        """

    def retile_attention(self, config: AttentionConfig) -> None:
        """Decode with `config` from now on. Raises UsageError for knobs and values that it does not have."""

    def attention_tiles(self, role: Role) -> TileStatistics:
        """Of all attention of one step after the prompts."""


@runtime_checkable
class Backend(Protocol):
    """A way to measure. Constructing and asking `available` must be cheap and import no engine library."""

    name: str
    description: str

    def available(self) -> Availability: ...

    def open(self, request: OpenRequest) -> Engine:
        """Load the pair. Raises BackendError (CheckpointError) with file, tensor or key, and what would be right."""


@runtime_checkable
class ChecksOptions(Protocol):
    """What a back end has besides where it can refuse options before a run folder, which stores them, is made."""

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raises UsageError for what cannot be meant, or must not be written down."""


@dataclass(frozen=True, slots=True)
class MemoryReads:
    """Timed reads of the memory that an engine decodes from: `size` bytes, once through, every time.

    `device` as the engine's facts name it; `gpu_uuid` as NVML does, None on a CPU.
    """

    device: str
    gpu_uuid: str | None
    size: int
    elapsed_ns: tuple[int, ...]


@runtime_checkable
class ReadsMemory(Protocol):
    """What a back end has besides where it can time its device's memory, in this process."""

    def read_memory(self, repeats: int) -> MemoryReads:
        """Raises EnvironmentRefused where too little memory is free."""


class GemmTuner(Protocol):
    """Searches configurations of matrix products on the device that this process would decode on."""

    device: str
    """As the engine's facts name it."""
    compute_capability: str

    def untuned(self, shapes: Sequence[GemmShape], file: Path | None) -> Sequence[GemmShape]:
        """Those for which an engine would find no configuration: in `file` alone, else where it looks by itself."""

    def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
        """One by one, largest weights first; none is begun once `seconds` have passed.

        Raises UsageError for a tag or size that the engine does not have, BackendError where the default
        configuration computes something wrong.
        """

    def refine(self, request: StepsRequest, file: Path | None, seconds: float) -> Iterator[TunedGemm]:
        """What an engine finds, in `file` alone or where it looks by itself, chosen anew in whole steps: those weights
        that take enough of a step for a difference to be seen, the greatest first; none is begun once `seconds` have
        passed.

        Raises UsageError for a weight that is not tuned and for sizes that cannot be decoded, CheckpointError for a
        bad pair, EnvironmentRefused where the device is too small.
        """


@runtime_checkable
class TunesGemms(Protocol):
    """What a back end has besides where its matrix products are tuned."""

    def gemm_shapes(self, pair: PairRef, batches: Sequence[int], draft_lengths: Sequence[int]) -> Sequence[GemmShape]:
        """Every product of a baseline step, and of the cycles of these draft lengths, at these batches.

        Reads configs, no weights, and needs no GPU.
        """

    def gemm_tuner(self) -> GemmTuner:
        """Raises EnvironmentRefused where the device is missing."""


@runtime_checkable
class BenchesKernels(Protocol):
    """What a back end has besides where it can time the kernels of its steps one by one, in this process."""

    def bench_kernels(self, request: KernelBenchRequest) -> KernelBench:
        """Raises UsageError for sizes that it cannot decode, EnvironmentRefused where the device is missing or too
        small, BackendError (CheckpointError) for a bad pair.
        """


@runtime_checkable
class Gate(Protocol):
    """A judge. Pure: the same run and rule give the same verdicts, so that a verdict can be recomputed offline."""

    name: str
    params: Mapping[str, type]
    """Parameters a rule may set, with their types; unknown ones are refused when the policy is read."""

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        """One verdict per cell that the rule's `scenario` and `role` patterns select."""


@runtime_checkable
class Sequential(Protocol):
    """What a gate has besides where its verdict rests on samples, and is INCONCLUSIVE while these are too few.

    It is asked at the looks of a scenario (`stats.planned_looks`); a point ends early once no such gate is open.
    """

    sequential: Literal[True]


@runtime_checkable
class Report(Protocol):
    """A renderer. Pure: the same run gives the same text, which the harness writes to `filename` of the run folder.

    Without a file name, a report is for the terminal.
    """

    name: str
    filename: str | None

    def render(self, run: Run, policy: Policy) -> str: ...


@runtime_checkable
class Combined(Protocol):
    """What a report has besides where several runs make one file, such as a table with a column that names the run."""

    def render_all(self, runs: Sequence[Run]) -> str: ...


# ── of several stored runs ───────────────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class ContrastGate(Protocol):
    """A judge of one run beside another; otherwise as `Gate`."""

    name: str
    params: Mapping[str, type]

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]: ...


Format = Literal["console", "plain", "html", "md", "csv"]
Subject = TypeVar("Subject", contravariant=True)


@runtime_checkable
class View(Protocol[Subject]):
    """A renderer of a contrast, a bench matrix or trends. Pure: the same subject gives the same text."""

    name: str

    def render(self, subject: Subject, format: Format) -> str: ...


@runtime_checkable
class Export(Protocol):
    """Trends as the input files of another tool: file name → text."""

    name: str

    def files(self, trends: Trends) -> Mapping[str, str]: ...
