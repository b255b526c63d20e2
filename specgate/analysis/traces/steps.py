"""The decode loop in a trace: its marks, its steps, and what happens between them.

    vLLM       execute_context_0(0)_generation_1(4)     requests (tokens) in prefill, requests (tokens) in decoding
    SGLang     step[DECODE bs=1], step[EXTEND bs=1 toks=512]; with a draft, step[TARGET_VERIFY bs=1] once per cycle

Read from vLLM 0.25.1 (`Worker.annotate_profile`) and SGLang 0.5.17 (`build_step_span_name`). A step lasts from the
beginning of its range to that of the next one: what an engine does after its range (sampling, drafting, copying tokens)
belongs to the step. So n ranges enclose n − 1 whole steps, and the last one's beginning ends the window.

A call belongs to the window in which it began. Work belongs to the call that launched it, however late it runs: all
kernels of a CUDA graph carry the number of the call that launched the graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil
from typing import Final

from specgate.analysis.traces.recording import TO_HOST, WAITING_COPIES, WAITS, Call, Mark, Recording, Work, matches
from specgate.contract import LoopFigures

VLLM: Final = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\((\d+)\)$")
SGLANG: Final = re.compile(r"step\[(\w+) bs=(\d+)")
IGNORED_BY_SGLANG: Final = ("IDLE", "DRAFT_EXTEND", "DRAFT_EXTEND_V2")
"""Ranges of SGLang's draft passes, which lie within a cycle, and of steps without work."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a recording that is looked at.

    `begin_ns` inclusive, `end_ns` exclusive: of host calls; work belongs to the call that launched it.
    `steps`: whole decode steps in it; None where nobody tells.
    `thread`: the thread of the loop; None where nobody tells.
    `told_by`: what tells the steps, as in a sentence.
    `ranges`: decode steps that ranges tell in the whole recording; None where there are no ranges.
    `requests`: the most requests of a step. `tokens`: the most tokens of a request that a step runs over: K + 1 where K
        drafts are verified. None where ranges do not tell.
    """

    begin_ns: int
    end_ns: int
    steps: int | None
    thread: str | None
    told_by: str
    ranges: int | None = None
    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of an engine's loop. `decodes`: it has requests that decode, and none in prefill.

    `requests`, `tokens`: as in `Window`.
    """

    begin_ns: int
    thread: str
    decodes: bool
    requests: int
    tokens: int | None


def window_of(recording: Recording, stated: int | None = None) -> Window:
    """The longest run of decode steps between two passes with a prefill.

    Where no ranges tell them, the whole recording, with `stated` steps: what the user says.
    """
    for told_by, steps in (
        ("vLLM's ranges", vllm_steps(recording.marks)),
        ("SGLang's ranges", sglang_steps(recording)),
    ):
        run = longest_run(steps)
        if len(run) > 1:
            return Window(
                begin_ns=run[0].begin_ns,
                end_ns=run[-1].begin_ns,
                steps=len(run) - 1,
                thread=run[0].thread,
                told_by=told_by,
                ranges=sum(step.decodes for step in steps),
                requests=max(step.requests for step in run),
                tokens=max((step.tokens for step in run if step.tokens is not None), default=None),
            )
    times = [entry.begin_ns for entries in (recording.calls, recording.work) for entry in entries]
    told_by = "what was stated for the whole trace" if stated else "nothing"
    return Window(min(times, default=0), max(times, default=0) + 1, stated, None, told_by)


def longest_run(steps: Sequence[Step]) -> list[Step]:
    """The longest stretch of decode steps one after the other, all on one thread."""
    runs = [
        list(run)
        for _, of_thread in groupby(sorted(steps, key=lambda s: (s.thread, s.begin_ns)), key=lambda s: s.thread)
        for decodes, run in groupby(of_thread, key=lambda s: s.decodes)
        if decodes
    ]
    return max(runs, key=len, default=[])


def vllm_steps(marks: Sequence[Mark]) -> list[Step]:
    return list(_vllm_steps(marks))


def _vllm_steps(marks: Sequence[Mark]) -> Iterator[Step]:
    for mark in marks:
        if match := VLLM.match(mark.name):
            prefills, decodes, tokens = map(int, match.groups())
            if prefills or decodes:  # a pass without requests only polls
                each = -(-tokens // decodes) if decodes else None
                yield Step(mark.begin_ns, mark.thread, decodes > 0 and not prefills, decodes, each)


def sglang_steps(recording: Recording) -> list[Step]:
    """With a draft, the target's verification is the step: the draft's own passes are ranges of the same form."""
    named = [(mark, match[1], int(match[2])) for mark in recording.marks if (match := SGLANG.match(mark.name))]
    verifies = any(mode == "TARGET_VERIFY" for _, mode, _ in named)
    step = "TARGET_VERIFY" if verifies else "DECODE"
    ignored = (*IGNORED_BY_SGLANG, "DECODE") if verifies else IGNORED_BY_SGLANG
    return [
        Step(mark.begin_ns, mark.thread, mode == step, requests, None if verifies else 1)
        for mark, mode, requests in named
        if mode not in ignored
    ]


NO_CALLS: Final = (
    "the trace has no CUDA calls of the host: waits and allocations cannot be seen (record CPU activities)"
)
NO_WORK: Final = "the trace has no work on a GPU in its decode steps (record CUDA activities)"


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop of a trace. `steps`: whole decode steps in the window; None where nobody tells.

    `kernels`, `copies`, `calls`: how often, by name. `kernel_ns`: time on the GPU by kernel.
    `figures`: None where nothing ran on a GPU.
    `unseen`: why waits and launches cannot be told; None where they can.
    """

    profiler: str
    window: Window
    kernels: Mapping[str, int]
    kernel_ns: Mapping[str, int]
    copies: Mapping[str, int]
    calls: Mapping[str, int]
    figures: LoopFigures | None
    unseen: str | None
    notes: tuple[str, ...]

    @property
    def steps(self) -> int | None:
        return self.window.steps

    def per_step(self, count: float) -> float | None:
        """A count of the window, per decode step; None where the steps are not known."""
        return count / self.steps if self.steps else None


def loop_of(recording: Recording, stated: int | None = None) -> Loop:
    """The decode loop in a recording. `stated`: how many steps it has, where its ranges do not tell."""
    window = window_of(recording, stated)
    calls = [call for call in recording.calls if window.begin_ns <= call.begin_ns < window.end_ns]
    work = launched(recording, calls, window)
    kernels = [entry for entry in work if entry.kind == "kernel"]
    kernel_ns: Counter[str] = Counter()
    for kernel in kernels:
        kernel_ns[kernel.name] += kernel.end_ns - kernel.begin_ns
    return Loop(
        profiler=recording.profiler,
        window=window,
        kernels=by_name(kernels),
        kernel_ns=dict(sorted(kernel_ns.items())),
        copies=by_name([entry for entry in work if entry.kind != "kernel"]),
        calls=by_name(calls),
        figures=figures_of(work, calls, window),
        unseen=None if calls and work else NO_WORK if not work else NO_CALLS,
        notes=(*recording.notes, *notes_of(work, window)),
    )


def launched(recording: Recording, calls: Sequence[Call], window: Window) -> list[Work]:
    """The work of the window: what its calls launched, or what began in it where the launching call is not recorded."""
    numbers = {call.correlation for call in calls} - {0}
    known = {call.correlation for call in recording.calls}
    return [
        entry
        for entry in recording.work
        if entry.correlation in numbers
        or (entry.correlation not in known and window.begin_ns <= entry.begin_ns < window.end_ns)
    ]


def figures_of(work: Sequence[Work], calls: Sequence[Call], window: Window) -> LoopFigures | None:
    """Time use of the GPU that had the most work in the window. None where no GPU had any."""
    if not work:
        return None
    device = Counter(entry.device for entry in work).most_common(1)[0][0]
    busy = merged((entry.begin_ns, entry.end_ns) for entry in work if entry.device == device)
    gaps = sorted(later[0] - earlier[1] for earlier, later in pairwise(busy))
    to_host = [entry.size for entry in work if entry.kind == "copy" and matches(entry.name, TO_HOST)]
    waits = [call for call in calls if matches(call.name, (*WAITS, *WAITING_COPIES))]
    return LoopFigures(
        window_ns=busy[-1][1] - busy[0][0],
        busy_ns=sum(end - begin for begin, end in busy),
        gaps=len(gaps),
        gap_p50_ns=percentile(gaps, 0.50),
        gap_p99_ns=percentile(gaps, 0.99),
        longest_gap_ns=gaps[-1] if gaps else 0,
        bytes_to_host=None if None in to_host else sum(size for size in to_host if size is not None),
        waits_elsewhere=sum(call.thread != window.thread for call in waits) if window.thread else None,
    )


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time as `spans` cover, in stretches that neither overlap nor touch, in order."""
    stretches: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if stretches and begin <= stretches[-1][1]:
            stretches[-1] = stretches[-1][0], max(end, stretches[-1][1])
        else:
            stretches.append((begin, end))
    return stretches


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least this share of the values does not exceed (nearest rank); 0 of none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0


def by_name(entries: Iterable[Call | Work]) -> dict[str, int]:
    """Name → how often it occurs, sorted by name."""
    return dict(sorted(Counter(entry.name for entry in entries).items()))


def notes_of(work: Sequence[Work], window: Window) -> list[str]:
    """Notes for the reader of the figures."""
    notes = [f"{window.steps:,} decode steps, told by {window.told_by}"] if window.steps else []
    if window.thread is None:
        notes.append("no ranges tell the decode steps: prefill and whatever else the trace has is counted too")
    if (gpus := len({entry.device for entry in work})) > 1:
        notes.append(f"{gpus} GPUs: busy time and gaps are those of the one with the most work")
    return notes
