"""One decode run: the start state goes in, graphs of several steps are enqueued, and everything is read at the end.

Between start and end the host reads nothing and waits for nothing, where the number of steps is given. Whole requests
may need fewer steps than tokens: there the host also looks whether any slot still runs, some graphs behind the one that
it enqueues. The stream that decodes knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import torch
from torch import Tensor

from specgate.api import Decoded, Text, block_marker
from specgate.backends.cupy_eagle3.kernels.state.slots import MAX_ENDS, Fault, Slots, Stamp
from specgate.core import Finish
from specgate.eagle3.counters import speculation_counters
from specgate.errors import UsageError

REASONS = (Finish.STEPS, Finish.EOS, Finish.STOP, Finish.LENGTH)
"""In the order of the codes in `commit.cu`. Code 0, a slot that still runs: the number of steps has stopped it."""
AHEAD: Final = 2
"""How many graphs are enqueued behind the one whose end is looked at, so the GPU never waits for the host. When the
last slot has ended, at most so many still run, with nothing to do.
"""
PHASES = {
    "draft": (Stamp.STEP_BEGAN, Stamp.DRAFTED),
    "verify": (Stamp.DRAFTED, Stamp.VERIFIED),
    "accept": (Stamp.VERIFIED, Stamp.ACCEPTED),
    "commit": (Stamp.ACCEPTED, Stamp.COMMITTED),
}


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a slot ends: at one of the ids `eos` (none where EOS is ignored) or `stop`, or after `limit` tokens. These
    include the token that prefill chose. Raises UsageError for more ids than a kernel holds.
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
    """Where every decode run over the same prompts begins: lengths and first tokens of the slots in use."""

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


class EndWatch:
    """Whether any slot still runs after a graph, copied to the host by a stream of its own.

    The number of active slots may be one of a later step by then; within a run it never rises. `first`: the first graph
    that can be the last.
    """

    def __init__(self, active_count: Tensor, graphs: int, first: int) -> None:
        new: Any = torch.cuda.Stream
        event: Any = torch.cuda.Event
        self.active_count, self.first = active_count, first
        self.stream: torch.cuda.Stream = new()
        self.seen = torch.ones(graphs, dtype=torch.int32, pin_memory=True)
        self.copied = [event() for _ in range(graphs)]

    def look(self, graph: int, ended: Any) -> None:
        """Look when `ended`, the event behind graph `graph`, has happened. The host does not wait."""
        if graph < self.first:
            return
        self.stream.wait_event(ended)
        with torch.cuda.stream(self.stream):
            self.seen[graph : graph + 1].copy_(self.active_count, non_blocking=True)
            self.copied[graph].record(self.stream)

    def over(self, graph: int) -> bool:
        """Whether no slot ran on after graph `graph`, which has been looked at. Waits until it has ended."""
        if graph < self.first:
            return False
        self.copied[graph].synchronize()
        return int(self.seen[graph]) == 0


def first_end(graphs: Sequence[int], fewest: int) -> int:
    """The first of `graphs`, of so many steps each, after which `fewest` steps have run; their number, if none."""
    return next((i for i, steps in enumerate(accumulate(graphs)) if steps >= fewest), len(graphs))


def going_on(graphs: int, over: Callable[[int], bool]) -> Iterator[int]:
    """The numbers of the graphs to enqueue, one after the other, until one that lies AHEAD before is `over`."""
    for graph in range(graphs):
        if graph >= AHEAD and over(graph - AHEAD):
            return
        yield graph


def run(
    launches: Sequence[Callable[[], None]], stream: torch.cuda.Stream, watch: EndWatch | None = None
) -> tuple[int, ...]:
    """Enqueue `launches` on `stream`, an event after each, and wait for the last. Returns the nanoseconds of each that
    was enqueued: all of them, unless `watch` says before that no slot runs any more.
    """
    event_type: Any = torch.cuda.Event
    events = [event_type(enable_timing=True) for _ in range(len(launches) + 1)]
    recorded = 1
    with block_marker():
        events[0].record(stream)
        for graph in going_on(len(launches), watch.over if watch else lambda graph: False):
            launches[graph]()
            events[recorded].record(stream)
            if watch is not None:
                watch.look(graph, events[recorded])
            recorded += 1
    stream.synchronize()
    return tuple(round(since.elapsed_time(to) * 1e6) for since, to in pairwise(events[:recorded]))


def read(slots: Slots, count: int, k: int, graphs: Sequence[int], elapsed_ns: Sequence[int]) -> tuple[Decoded, Fault]:
    """Everything that a decode run of spec-`k` over `count` slots has left on the device, and what went wrong.

    Graph i had `graphs[i]` steps and took `elapsed_ns[i]` nanoseconds. Graphs without a time did not run.
    """
    steps = int(slots.step)
    stamps = slots.stamps[:steps].cpu()
    times = step_times(graphs[: len(elapsed_ns)], elapsed_ns, stamps)
    accepted = [tuple(row) for row in slots.accepted_log[:steps, :count].tolist()]
    text = text_of(slots, count)
    decoded = Decoded(
        elapsed_ns=sum(times),
        step_ns=times,
        tokens=text.tokens,
        accepted=tuple(accepted),
        drafted=tuple(tuple(k if a >= 0 else -1 for a in row) for row in accepted),
        truncated=tuple(slots.truncated[:count].tolist()),
        finish=text.finish,
        counters=speculation_counters(accepted, text.finish, k) if k else {},
        phase_ns={name: int((stamps[:, to] - stamps[:, since]).sum()) for name, (since, to) in PHASES.items()},
    )
    return decoded, Fault(int(slots.fault))


def text_of(slots: Slots, count: int) -> Text:
    """What `count` slots have emitted since their prompts ended."""
    emitted, codes = slots.emitted[:count].tolist(), slots.finish[:count].tolist()
    tokens = tuple(tuple(row[:n]) for row, n in zip(slots.out[:count].tolist(), emitted, strict=True))
    return Text(tokens, tuple(REASONS[code].value for code in codes))


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
