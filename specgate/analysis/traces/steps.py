"""The decode loop in a trace: its window, and what happens in it.

A step lasts from the beginning of its range to that of the next one: what an engine does after its range (sampling,
drafting, copying tokens) belongs to the step. So n ranges enclose n − 1 whole steps, and the last one's beginning ends
the window.

A call belongs to the window in which it began, and to the loop if the loop's own process made it. Work belongs to the
call that launched it, however late it runs: all kernels of a CUDA graph carry the number of the call that launched it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

from specgate.analysis.traces.cuda_calls import kind_of, to_host
from specgate.analysis.traces.doubts import doubts_of, overlapping, shared_numbers, unclear_processes
from specgate.analysis.traces.phases import Phase, phases_of
from specgate.analysis.traces.ranges import Step, longest_run, ranges_in, steps_by_ranges
from specgate.analysis.traces.recording import About, Call, Doubt, Recording, Work, process_of
from specgate.contract import LoopFigures
from specgate.contract.traces import Observed


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a recording that is looked at.

    `begin_ns` inclusive, `end_ns` exclusive: of host calls; work belongs to the call that launched it.
    `steps`: whole decode steps in it; None where nobody tells.
    `thread`: the thread of the loop; None where nobody tells.
    `told_by`: what tells the steps, as in a sentence.
    `ranges`: decode steps that ranges tell in the whole recording; None where there are no ranges.
    `run`: the steps of the window, and the one that ends it. `threads`: those on which steps are told in its time.
    """

    begin_ns: int
    end_ns: int
    steps: int | None
    thread: str | None
    told_by: str
    ranges: int | None = None
    run: tuple[Step, ...] = ()
    threads: frozenset[str] = frozenset()


def window_of(recording: Recording, stated: int | None = None) -> Window:
    """The longest run of decode steps between two passes with a prefill.

    Where no ranges tell them, the whole recording, with `stated` steps: what the user says.
    """
    for told_by, steps in steps_by_ranges(recording).items():
        run = longest_run(steps)
        if len(run) > 1:
            return Window(
                begin_ns=run[0].begin_ns,
                end_ns=run[-1].begin_ns,
                steps=len(run) - 1,
                thread=run[0].thread,
                told_by=told_by,
                ranges=sum(step.decodes for step in steps),
                run=tuple(run),
                threads=frozenset(step.thread for step in steps if run[0].begin_ns <= step.begin_ns < run[-1].begin_ns),
            )
    times = [entry.begin_ns for entries in (recording.calls, recording.work) for entry in entries]
    told_by = "what was stated for the whole trace" if stated else "nothing"
    return Window(min(times, default=0), max(times, default=0) + 1, stated, None, told_by)


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop of a trace. `steps`: whole decode steps in the window; None where nobody tells.

    `kernels`, `copies`, `calls`: how often, by name. `launches`: kernels, by `contract.traces.launch_name`.
    `kernel_ns`: time on the GPU by kernel.
    `figures`: None where nothing ran on a GPU.
    `phases`: the parts of a step that ranges tell, by name; empty where none does.
    `doubts`: why there may have been more of something than was counted.
    `unseen`: why nothing follows from the counts; None if something does.
    """

    profiler: str
    window: Window
    kernels: Mapping[str, int]
    launches: Mapping[str, int]
    kernel_ns: Mapping[str, int]
    copies: Mapping[str, int]
    calls: Mapping[str, int]
    figures: LoopFigures | None
    doubts: tuple[Doubt, ...]
    unseen: str | None
    notes: tuple[str, ...]
    phases: Mapping[str, Phase] = field(default_factory=dict)

    @property
    def steps(self) -> int | None:
        return self.window.steps

    @property
    def partial(self) -> str | None:
        """Why there may have been more than was seen; None if everything was."""
        return "; ".join(dict.fromkeys(doubt.reason for doubt in self.doubts)) or None

    def why_not(self, *parts: About) -> str | None:
        """The first reason why figures that follow from these parts of a recording cannot be told; None if they can."""
        return next((doubt.reason for doubt in self.doubts if doubt.about in ("all", *parts)), None)

    def per_step(self, count: float) -> float | None:
        """A count of the window, per decode step; None where the steps are not known."""
        return count / self.steps if self.steps else None


def loop_of(recording: Recording, stated: int | None = None) -> Loop:
    """The decode loop in a recording. `stated`: how many steps it has, where its ranges do not tell."""
    return loop_within(recording, window_of(recording, stated))


def loop_within(recording: Recording, window: Window) -> Loop:
    """What happened in one window of a recording."""
    process = process_of(window.thread) if window.thread else None
    shared = shared_numbers(recording.calls)
    inside = [call for call in recording.calls if window.begin_ns <= call.begin_ns < window.end_ns]
    calls = once([call for call in inside if process in (None, process_of(call.thread))], shared)
    work = launched(recording, calls, window, shared)
    kernels = [entry for entry in work if entry.kind == "kernel"]
    kernel_ns: Counter[str] = Counter()
    for kernel in kernels:
        kernel_ns[kernel.name] += kernel.end_ns - kernel.begin_ns
    return Loop(
        profiler=recording.profiler,
        window=window,
        kernels=by_name(kernels),
        launches=dict(sorted(Counter(kernel.launch for kernel in kernels if kernel.launch is not None).items())),
        kernel_ns=dict(sorted(kernel_ns.items())),
        copies=by_name([entry for entry in work if entry.kind != "kernel"]),
        calls=by_name(calls),
        figures=figures_of(work, calls, window),
        doubts=(
            *doubts_of(recording, calls, work, shared),
            *overlapping(window.run),
            *unclear_processes(window.thread, window.threads, {process_of(call.thread) for call in inside}),
        ),
        unseen=None if calls or work else "the trace has neither work on a GPU nor calls of CUDA or HIP in its steps",
        notes=(*recording.notes, *notes_of(recording, calls, work, window)),
        phases=phases_of(
            (mark for mark in recording.marks if window.begin_ns <= mark.begin_ns < window.end_ns), calls, work
        ),
    )


def observed_in(loop: Loop, unseen: str | None) -> Observed:
    """Return the loop as a run stores it. `unseen`: why nothing follows from it; None if something does."""
    return Observed(
        kernels=loop.kernels,
        copies=loop.copies,
        calls=loop.calls,
        unseen=unseen,
        partial=loop.partial,
        loop=loop.figures,
    )


def once(calls: Sequence[Call], shared: Mapping[int, bool]) -> list[Call]:
    """These calls, but for all but the first of those of one process that share a number."""
    first: dict[int, Call] = {}
    return [
        call for call in calls if not shared.get(call.correlation) or first.setdefault(call.correlation, call) is call
    ]


def launched(recording: Recording, calls: Sequence[Call], window: Window, shared: Collection[int]) -> list[Work]:
    """The work of the window: what its calls launched, or what began in it where the launching call is not recorded.
    Work whose number calls share is nobody's, and what is recorded twice counts once: so no count is too high.
    """
    numbers = {call.correlation for call in calls} - {0, *shared}
    known = {call.correlation for call in recording.calls} - {0}
    return [
        entry
        for entry in dict.fromkeys(recording.work)
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
    sizes = [entry.size for entry in work if entry.kind == "copy" and to_host(entry.name)]
    waits = [call for call in calls if kind_of(call.name) in ("wait", "waiting copy")]
    return LoopFigures(
        window_ns=busy[-1][1] - busy[0][0],
        busy_ns=sum(end - begin for begin, end in busy),
        gaps=len(gaps),
        gap_p50_ns=percentile(gaps, 0.50),
        gap_p99_ns=percentile(gaps, 0.99),
        longest_gap_ns=gaps[-1] if gaps else 0,
        bytes_to_host=None if None in sizes else sum(size for size in sizes if size is not None),
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


def notes_of(recording: Recording, calls: Sequence[Call], work: Sequence[Work], window: Window) -> list[str]:
    """Notes for the reader of the figures."""
    notes = [f"{window.steps:,} decode steps, told by {window.told_by}"] if window.steps else []
    if window.thread is None:
        notes.append(
            "no ranges tell the decode steps: prefill and whatever else the trace has is counted too; "
            + ranges_in(recording)
        )
    processes = len({process_of(call.thread) for call in (recording.calls if window.thread else calls)})
    if processes > 1:
        counted = "only the loop's own is counted" if window.thread else "all are counted"
        notes.append(f"the calls of {processes} processes are in it: {counted}")
    if (gpus := len({entry.device for entry in work})) > 1:
        notes.append(f"{gpus} GPUs: counts are of all, busy time and gaps of the one with the most work")
    return notes
