"""Profiles of a decode loop, and the PERF_MODE invariants that follow.

Data classes only; `specgate.analysis.perf_invariants` judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from specgate.contract.samples.spans import ShownSpans
from specgate.contract.types import Count, Size, Text

TraceSource = Literal["profiler", "engine", "server-profiler"]
"""Who looked at a traced block.

`profiler`: the harness's own.
`engine`: the engine, which brought a trace of its own.
`server-profiler`: the profiler that a server has built in, started by the harness through the server's own endpoint. It
runs in the server's process and writes a file, which the harness's code reads.
"""


StatedInvariant = Literal["I1", "I2", "I3", "I4", "I6"]
"""The invariants of which an engine may say something itself."""


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Use of the GPU's time in a traced part of a decode loop. Times are in nanoseconds, of the profiler's clock.

    `window_ns`: from the beginning of the first piece of work on the GPU to the end of the last.
    `busy_ns`: the part of it in which a kernel, a copy or a memory set ran.
    `gaps`: how many stretches without any lie between. `longest_gap_ns`: the longest of them.
    `gap_p50_ns`, `gap_p99_ns`: percentiles of their lengths.
    `bytes_to_host`: bytes of all copies from the device to the host; None where the profiler does not tell.
    `waits_elsewhere`: how many of the waits for the device were made by another thread than the loop's own; None where
        it is not known which thread that is.
    """

    window_ns: Count
    busy_ns: Count
    gaps: Count
    gap_p50_ns: Count
    gap_p99_ns: Count
    longest_gap_ns: Count
    bytes_to_host: Count | None = None
    waits_elsewhere: Count | None = None

    @property
    def busy_share(self) -> float:
        """The share of the window in which the GPU worked, 0 to 1."""
        return self.busy_ns / self.window_ns if self.window_ns else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Statement of an engine about an invariant: in its log, or by flags that its kernels contradict.

    `breaks`: whether that breaks the invariant. Otherwise it is evidence that holds nothing, as it is the engine's own.
    `count`: how many lines say so. `where`: the file and the number of the first of them, or the flag.
    `text`: that line, shortened. `meaning`: what it means.
    """

    invariant: StatedInvariant
    reason_code: str
    breaks: bool
    count: Size
    where: str
    text: str
    meaning: str


def launch_name(kernel: str, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> str:
    """The name by which launches of a kernel with such a grid, block and shared memory are counted."""
    blocks, threads = ("x".join(map(str, (*size, 1, 1)[:3])) for size in (grid, block))
    return f"{kernel} {blocks} blocks of {threads} threads and {shared_bytes} bytes"


@dataclass(frozen=True, slots=True)
class TunedProduct:
    """A matrix product of a decode step, as an engine's tuned configurations have it launched.

    `name`: what it is, with its sizes. `kernel`: the one that computes it.
    `launch`: `launch_name` by the configuration that was tuned for its weight; None where none was.
    `by_rule`: no search knows steps of so many rows, so a rule makes this launch of its weight's configuration.
    """

    name: Text
    kernel: Text
    launch: Text | None
    by_rule: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen of a decode loop: kernels, memory copies and CUDA functions called by the host, counted by name.

    `unseen`: why nothing could be observed; None where something was.
    `partial`: why there may have been more than was observed; None where all was. What is seen still counts.
    `loop`: how the GPU spent the traced time, where the profiler tells.
    `findings`: what the engine says itself, in its log or by its flags.
    `allowed`: patterns (`fnmatch`) of the kernels that may run in the loop, where the user has given them.
    `notes`: what whoever reads the trace should know, such as which ranges tell its steps.
    `products`: those of a step, of an engine that states them. `launches`: how often their kernels were launched, by
        `launch_name`.
    """

    kernels: Mapping[str, Count] = field(default_factory=dict)
    copies: Mapping[str, Count] = field(default_factory=dict)
    calls: Mapping[str, Count] = field(default_factory=dict)
    unseen: str | None = None
    partial: str | None = None
    loop: LoopFigures | None = None
    findings: tuple[Finding, ...] = ()
    allowed: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    products: tuple[TunedProduct, ...] = ()
    launches: Mapping[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockTrace(Observed):
    """Profile of one untimed block of a cell. The same engine decoded it from the same prompts as the timed blocks.

    Everything is counted between the marks that the engine sets around a block's steps (`api.block_marker`). In a
    server's own trace, everything is counted from the beginning of its first decode step to that of its last.

    `source`: who looked.
    `tokens[slot]`: token ids, which link the trace to the timed blocks.
    `spans`: cache and trees in steps of another untimed run of the cell; None where the engine shows none.
    """

    cell: str
    prompt_set: int
    worker_generation: int
    source: TraceSource
    steps: int
    tokens: tuple[tuple[int, ...], ...]
    spans: ShownSpans | None = None


class Held(StrEnum):
    """State of an invariant."""

    HELD = "held"
    BROKEN = "broken"
    UNSEEN = "not observable"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One PERF_MODE invariant of one cell: its `id`, I1 … I7, what was found, and the evidence for it."""

    id: str
    held: Held
    reason_code: str
    message: str
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)
