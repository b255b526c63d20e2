"""One decode run: the start state goes in, graphs of several steps are enqueued, and everything is read at the end.

Between start and end no step waits for the host, unless that is late. Of a run with a number of steps the host reads
nothing. Whole requests end at different steps, and earlier than their limit would allow. Then the host watches how many
slots still run, some graphs behind. It enqueues steps that are captured for so few, and in the end no more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import torch

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MANY_ROWS, ROW_GROUP
from specgate.backends.eagle3.cupy.kernels.state.slots import MAX_ENDS, Fault, Slots, Stamp
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, tensors_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.partial import Kind
from specgate.backends.eagle3.cupy.stream import Stream, mark
from specgate.contract import Finish
from specgate.contract.protocols import Decoded, Text, block_marker
from specgate.contract.routing import ExpertCounts, counts_of
from specgate.contract.samples.counters import speculation_counters
from specgate.errors import BackendError, UsageError

STEPS_PER_GRAPH: Final = 8
"""How many steps a graph has, where so many are left to run. Between two graphs the GPU idles, and the first kernels of
each graph come late. Within a graph, the kernels of the next step are there when a step ends.
"""


Steps = tuple[Kind, ...]
"""How each step of a graph verifies."""


@dataclass(frozen=True, slots=True)
class GraphGeometry:
    """Everything fixed in a captured graph: draft length, slots, sizes, the address of every buffer, and its steps."""

    k: int
    slots: int
    sizes: Sizes
    addresses: int
    kinds: Steps

    @classmethod
    def of(cls, k: int, slots: int, sizes: Sizes, buffers: Buffers, kinds: Steps) -> GraphGeometry:
        return cls(k, slots, sizes, hash(tuple(t.data_ptr() for t in tensors_of(buffers))), kinds)


def graph_sizes(steps: int) -> list[int]:
    """The number of steps of each graph, one graph after the other, that together run `steps` steps."""
    return [STEPS_PER_GRAPH] * (steps // STEPS_PER_GRAPH) + [1] * (steps % STEPS_PER_GRAPH)


def captured(launches: Callable[[], None], stream: Stream) -> Any:
    """Run `launches` once on `stream`, then record them as a CUDA graph."""
    with stream.current():
        launches()  # warm up: compiles and loads what a capture could not
        stream.wait()
        stream.cupy.begin_capture()
        launches()
        return stream.cupy.end_capture()


class Graph:
    """Captured launches, which can be replayed for the geometry that they were captured for, and for no other."""

    def __init__(self, name: str, geometry: GraphGeometry, launches: Callable[[], None], stream: Stream) -> None:
        """Run `launches` once, which must change nothing (no slot may be active), then record them."""
        self.name, self.geometry, self.stream = name, geometry, stream
        self.graph = captured(launches, stream)

    def replay(self, geometry: GraphGeometry) -> None:
        """Enqueue its steps. Raises BackendError where it was captured for something else."""
        if geometry != self.geometry:
            raise BackendError(f"graph {self.name} was captured for {self.geometry}, but {geometry} is to be run")
        with mark(self.name):
            self.graph.launch(self.stream.cupy)


REASONS = (Finish.STEPS, Finish.EOS, Finish.STOP, Finish.LENGTH)
"""In the order of the codes in `commit.cu`. Code 0, a slot that still runs: the number of steps has stopped it."""
PHASES = {
    "draft": (Stamp.STEP_BEGAN, Stamp.DRAFTED),
    "verify": (Stamp.DRAFTED, Stamp.VERIFIED),
    "accept": (Stamp.VERIFIED, Stamp.ACCEPTED),
    "commit": (Stamp.ACCEPTED, Stamp.COMMITTED),
}


AHEAD: Final = 4
"""So many graphs at most are enqueued before the host looks whether the first of them has ended the last slot. What is
enqueued in vain is no more than these, and the single steps at the end of a run, before which it does not look.
"""
LATE_NS: Final = 10_000_000
"""So late the host may be while it looks, if the graphs that are left to run allow it. Three graphs of eight steps of
the smallest pair that is measured last 11 ms, one of a pair of 8B size 40.
"""


def graphs_ahead(graph_ns: float) -> int:
    """Return how many graphs to enqueue before the first of them is looked at, where one takes `graph_ns`: as few as
    leave the host `LATE_NS` while it looks. A step with nothing to do is not free: products begin to read weights
    before they know.
    """
    return max(2, min(AHEAD, 1 + math.ceil(LATE_NS / graph_ns)))


def pace(graph_ns: float, steps: int, *, narrows: bool) -> tuple[int, bool]:
    """Return how many graphs to enqueue ahead, and whether those that are left are to have one step each, where the
    first graph of `steps` steps took `graph_ns`.

    `narrows`: steps are captured for fewer slots. The sooner the host sees that slots have ended, the sooner such steps
    run. So graphs have one step if AHEAD of these leave the host its time: then the pause of 4 us between two graphs is
    next to nothing beside a step.
    """
    single = narrows and (AHEAD - 1) * graph_ns / steps >= LATE_NS
    return graphs_ahead(graph_ns / steps if single else graph_ns), single


def widths(count: int, rows: int) -> tuple[int, ...]:
    """Return for how many slots steps of `rows` rows per slot are captured, ascending: `count`, and as many as have the
    rows for which products are divided in another way.

    A product of few rows is faster if it is launched for few: up to MANY_ROWS each block reads all of x, up to twice as
    many two blocks share an SM, and up to ROW_GROUP one block multiplies all. No row's bits depend on that.
    """
    slots = (most // rows for most in (MANY_ROWS, 2 * MANY_ROWS, ROW_GROUP))
    return tuple(sorted({count, *(n for n in slots if 0 < n < count)}))


class SlotWatch:
    """Says how many slots still run. The number is copied on another stream than `stream`, on which steps run, so
    that no step waits for that. One per engine: torch has 32 streams, which it hands out again and again.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        new_stream, new_event = torch.cuda.Stream, torch.cuda.Event
        self._stream: torch.cuda.Stream = cast(Any, new_stream)()
        while self._stream == stream:
            self._stream = cast(Any, new_stream)()
        self._copied: torch.cuda.Event = cast(Any, new_event)()
        self._seen = torch.zeros(1, dtype=torch.int32, pin_memory=True)

    def running_after(self, event: torch.cuda.Event, active_count: torch.Tensor) -> int:
        """Wait until the GPU has passed `event`; return how many slots run there, or later, when there may be fewer.
        `active_count`: int32 [1].
        """
        self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            self._seen.copy_(active_count, non_blocking=True)
            self._copied.record(self._stream)
        self._copied.synchronize()
        return int(self._seen)


@dataclass(frozen=True, slots=True)
class StopRule:
    """End of a slot's text: at one of the ids `eos` (none where EOS is ignored) or `stop`, or after `limit` tokens.
    These include the token that prefill chose. Raises UsageError for more ids than a kernel holds.
    """

    eos: tuple[int, ...]
    stop: tuple[int, ...]
    limit: int

    def __post_init__(self) -> None:
        if len(self.eos) + len(self.stop) > MAX_ENDS:
            raise UsageError(f"{len(self.eos) + len(self.stop)} EOS and stop tokens", hint=f"at most {MAX_ENDS}")

    def code(self, first: int) -> int:
        """The code of a slot that has emitted `first` alone: 0 where it still runs, else why it has ended."""
        if self.limit <= 1:
            return REASONS.index(Finish.LENGTH)
        if first in self.eos:
            return REASONS.index(Finish.EOS)
        return REASONS.index(Finish.STOP) if first in self.stop else 0

    def words(self) -> list[int]:
        """The rule as `commit.cu` reads it."""
        return [self.limit, len(self.eos), len(self.stop), *self.eos, *self.stop]


@dataclass(frozen=True, slots=True)
class StartState:
    """Start of every decode run over the same prompts: lengths and first tokens of the slots in use."""

    lengths: tuple[int, ...]
    first_tokens: tuple[int, ...]

    def rewind(self, slots: Slots, rule: StopRule) -> None:
        """Put `slots` back to their prompts. It copies from the host, so it is done before a run and never within."""
        count = len(self.lengths)
        codes = [rule.code(token) for token in self.first_tokens]
        running = [slot for slot, code in enumerate(codes) if code == 0]

        def put(tensor: torch.Tensor, values: Sequence[int]) -> None:
            tensor[: len(values)] = torch.tensor(values, dtype=torch.int32).to(tensor.device)

        for zeroed in (slots.truncated, slots.step, slots.fault, slots.accepted):
            zeroed.zero_()
        slots.accepted_log.fill_(-1)
        put(slots.length, self.lengths)
        put(slots.last_token, self.first_tokens)
        put(slots.out[:, 0], self.first_tokens)
        put(slots.pending[:, 0], self.first_tokens)
        put(slots.emitted, [1] * count)
        put(slots.counts, [1] * count)
        put(slots.finish, codes)
        put(slots.rule, rule.words())
        put(slots.active, running)
        put(slots.active_count, [len(running)])


Launch = Callable[[Steps, int | None], None]
"""Enqueue a graph of these steps, where as many slots run as the number says, or fewer; None: nobody has looked."""


def run(
    graphs: Sequence[Steps],
    launch: Launch,
    stream: torch.cuda.Stream,
    running_after: Callable[[torch.cuda.Event], int] | None = None,
    *,
    narrows: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Enqueue `graphs` on `stream`, an event after each, and wait for the last. Returns steps and nanoseconds of each
    graph that was enqueued. `running_after`: how many slots run behind an event; nothing is enqueued once none does.
    `narrows`: as `pace` has it.
    """
    event_type: Any = torch.cuda.Event
    events = [event_type(enable_timing=True) for _ in range(1 + sum(map(len, graphs)))]
    look = (lambda number: running_after(events[number])) if running_after else None

    def paced() -> tuple[int, bool]:
        return pace(1e6 * events[0].elapsed_time(events[1]), len(graphs[0]), narrows=narrows)

    with block_marker():
        events[0].record(stream)
        enqueued = enqueue(graphs, launch, lambda number: events[number].record(stream), look, paced)
    stream.synchronize()
    times = (round(since.elapsed_time(to) * 1e6) for since, to in pairwise(events[: len(enqueued) + 1]))
    return tuple(map(len, enqueued)), tuple(times)


def enqueue(
    graphs: Sequence[Steps],
    launch: Launch,
    mark: Callable[[int], None],
    running_after: Callable[[int], int] | None = None,
    paced: Callable[[], tuple[int, bool]] = lambda: (AHEAD, False),
) -> list[Steps]:
    """Enqueue one after the other, and `mark` the end of the n-th, counted from 1. Returns those that were enqueued:
    all, or as many as were when `running_after` said of one of them that no slot runs behind it. It is asked up to the
    last graph of several steps. `paced`: as `pace`, called once the first of all has run.
    """
    left, enqueued, now, single, running = deque(graphs), list[Steps](), AHEAD, False, None
    while left:
        number = len(enqueued)
        if running_after is not None and number >= AHEAD and (single or any(len(of) > 1 for of in left)):
            running = running_after(number - now + 1)
            if not running:
                break
            if number == AHEAD:
                now, single = paced()
                left = deque((kind,) for of in left for kind in of) if single else left
        launch(left[0], running)
        enqueued.append(left.popleft())
        mark(number + 1)
    return enqueued


def read(
    slots: Slots,
    count: int,
    k: int,
    graphs: Sequence[int],
    elapsed_ns: Sequence[int],
    touched: torch.Tensor | None = None,
) -> tuple[Decoded, Fault]:
    """Everything that a decode run of spec-`k` over `count` slots has left on the device, and what went wrong.

    Graph i had `graphs[i]` steps and took `elapsed_ns[i]` nanoseconds. `touched` int32 [steps, layers]: how many
    experts of each layer each step reached, of a target that has them.
    """
    steps = int(slots.step)
    stamps = slots.stamps[:steps].cpu()
    times = step_times(graphs, elapsed_ns, stamps)
    accepted = [tuple(row) for row in slots.accepted_log[:steps, :count].tolist()]
    drafted = tuple(tuple(k if a >= 0 else -1 for a in row) for row in accepted)
    text = text_of(slots, count)
    decoded = Decoded(
        elapsed_ns=sum(times),
        step_ns=times,
        tokens=text.tokens,
        accepted=tuple(accepted),
        drafted=drafted,
        truncated=tuple(slots.truncated[:count].tolist()),
        finish=text.finish,
        counters=speculation_counters(accepted, text.finish, drafted) if k else {},
        experts=None if touched is None else experts_of(touched[:steps], accepted),
        phase_ns={name: int((stamps[:, to] - stamps[:, since]).sum()) for name, (since, to) in PHASES.items()},
    )
    return decoded, Fault(int(slots.fault))


def experts_of(touched: torch.Tensor, accepted: Sequence[Sequence[int]]) -> ExpertCounts:
    """The counts of a run, from `touched` [steps, layers]; a slot that is done accepts -1."""
    active = [any(a >= 0 for a in row) for row in accepted]
    return counts_of([layers if n else [0] * len(layers) for layers, n in zip(touched.tolist(), active, strict=False)])


def text_of(slots: Slots, count: int) -> Text:
    """Return the tokens that `count` slots have emitted after their prompts."""
    emitted, codes = slots.emitted[:count].tolist(), slots.finish[:count].tolist()
    tokens = tuple(tuple(row[:n]) for row, n in zip(slots.out[:count].tolist(), emitted, strict=True))
    return Text(tokens, tuple(REASONS[code] for code in codes))


def step_times(graphs: Sequence[int], elapsed_ns: Sequence[int], stamps: torch.Tensor) -> tuple[int, ...]:
    """Nanoseconds of each step that has a row in `stamps` [steps, 5]. The steps of a graph add up to what it took.

    Within a graph, a step ends where the next one begins. The last step gets the rest, including the launch of the
    graph. Where a run ended in the middle of a graph, the steps after that had nothing to do; then the last step ends
    with its commit.
    """
    began, committed = stamps[:, Stamp.STEP_BEGAN].tolist(), stamps[:, Stamp.COMMITTED].tolist()
    times: list[int] = []
    for size, elapsed in zip(graphs, elapsed_ns, strict=True):
        first, ran = len(times), min(size, len(began) - len(times))
        inner = [to - since for since, to in pairwise(began[first : first + ran])]
        if ran == size:
            times += [*inner, elapsed - sum(inner)]
        elif ran:
            times += [*inner, committed[first + ran - 1] - began[first + ran - 1]]
    return tuple(times)


def rows_of_slots(
    logits: torch.Tensor, running: Sequence[int], of_slot: int, path: torch.Tensor | None = None
) -> dict[int, torch.Tensor]:
    """Slot → its rows of `logits` [R, V] after a step of `of_slot` rows per slot. `running`: the slots that ran, in the
    order in which the step had them, since a slot that has ended has no rows. With a tree, `path` int32 [S, P], those
    of the accepted path, in its order.
    """
    rows = {slot: logits[a * of_slot : (a + 1) * of_slot] for a, slot in enumerate(running)}
    if path is None:
        return rows
    return {slot: own[path[slot].long().clamp(0, of_slot - 1)] for slot, own in rows.items()}
