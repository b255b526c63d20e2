"""One decode run: the start state goes in, graphs of several steps are enqueued, and everything is read at the end.

Between start and end the host reads nothing and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from specgate.api import Decoded, Text, block_marker
from specgate.backends.cupy_eagle3.kernels.state.slots import MAX_ENDS, Fault, Slots, Stamp
from specgate.core import Finish
from specgate.core.routing import ExpertCounts, counts_of
from specgate.eagle3.counters import speculation_counters
from specgate.errors import UsageError

REASONS = (Finish.STEPS, Finish.EOS, Finish.STOP, Finish.LENGTH)
"""In the order of the codes in `commit.cu`. Code 0, a slot that still runs: the number of steps has stopped it."""
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


def run(launches: Sequence[Callable[[], None]], stream: torch.cuda.Stream) -> tuple[int, ...]:
    """Enqueue `launches` on `stream`, an event after each, and wait for the last. Returns the nanoseconds of each."""
    event_type: Any = torch.cuda.Event
    events = [event_type(enable_timing=True) for _ in range(len(launches) + 1)]
    with block_marker():
        events[0].record(stream)
        for launch, event in zip(launches, events[1:], strict=True):
            launch()
            event.record(stream)
    stream.synchronize()
    return tuple(round(since.elapsed_time(to) * 1e6) for since, to in pairwise(events))


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
        experts=None if touched is None else experts_of(touched[:steps], accepted, k),
        phase_ns={name: int((stamps[:, to] - stamps[:, since]).sum()) for name, (since, to) in PHASES.items()},
    )
    return decoded, Fault(int(slots.fault))


def experts_of(touched: torch.Tensor, accepted: Sequence[Sequence[int]], k: int) -> ExpertCounts:
    """The counts of a run of spec-`k` from `touched` [steps, layers]; a slot that is done accepts -1."""
    rows = [(k + 1) * sum(a >= 0 for a in row) for row in accepted]
    by_step = [layers if n else [0] * len(layers) for layers, n in zip(touched.tolist(), rows, strict=True)]
    return counts_of(by_step, rows)


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
