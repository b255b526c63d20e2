"""`Rank`: one of the GPUs that an engine decodes on, what stands for one in a prefill, and its weights.

One process drives all of them. It enqueues the same on every rank, and the kernels of a step wait for each other; the
host never stands between them. What it enqueues before it turns to the next rank must have room in a stream's queue, of
1,024 launches: else it would wait for a rank that waits for the next. So it enqueues graphs, or single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import Graph, GraphGeometry
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.engine.prefilled import Prefilled
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import PLAIN, Kind
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED, Tuned
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.shard import WHOLE, Shard, shards


class OnStream(Protocol):
    """As `stream.Stream`; `torch` is None on a CPU."""

    @property
    def torch(self) -> torch.cuda.Stream | None: ...

    def current(self) -> AbstractContextManager[None]: ...


class OneOfRanks(Protocol):
    """One rank with its part of the target, and the whole draft."""

    target: Target
    draft: Draft | None
    b: Buffers
    mode: PrefillMode
    device: torch.device

    @property
    def stream(self) -> OnStream: ...


class Rank:
    """A GPU with its part of the target, the whole draft, everything that a step reads and writes, and its graphs."""

    def __init__(
        self,
        target: Target,
        draft: Draft | None,
        sizes: Sizes,
        buffers: Buffers,
        *,
        tuned: Tuned = NOTHING_TUNED,
        mode: PrefillMode | None = None,
    ) -> None:
        self.target, self.draft, self.sizes, self.b, self.tuned = target, draft, sizes, buffers, tuned
        self.device = buffers.slots.length.device
        self.mode = mode or PrefillMode.on(self.device)
        self.stream = Stream(self.device)
        self.cycles: dict[tuple[int, int, Kind], Cycle] = {}
        self.graphs: dict[GraphGeometry, Graph] = {}
        self._loaded: set[tuple[int, int]] = set()
        self.prefilled: Prefilled | None = None

    def cycle(self, k: int, count: int, kind: Kind = PLAIN) -> Cycle:
        """A step of spec-`k` over `count` slots."""
        if (k, count, kind) not in self.cycles:
            with torch.cuda.device(self.device):
                made = Cycle(self.target, self.draft, self.sizes, count, k, self.tuned, kind)
            self.cycles[k, count, kind] = made
        return self.cycles[k, count, kind]

    def replay(self, k: int, count: int, kinds: tuple[Kind, ...]) -> Callable[[], None]:
        """A step for each of `kinds`, captured at first use, with no slot active: then no rank waits for another."""
        cycles = [self.cycle(k, count, kind) for kind in kinds]
        cycle = cycles[0]
        geometry = GraphGeometry.of(k, count, self.sizes, self.b, kinds)

        def launches() -> None:
            for each in cycles:
                each(self.b)

        if geometry not in self.graphs:
            with self.stream.current():
                self.b.slots.active_count.zero_()
                self.graphs[geometry] = Graph(cycle.name, geometry, launches, self.stream)
                if self.target.shard.ranks > 1:
                    # Here and not with its first replay, for which other ranks would wait.
                    self.graphs[geometry].graph.upload(self.stream.cupy)
                    self.stream.wait()
        graph = self.graphs[geometry]
        return lambda: graph.replay(geometry)

    def load(self, k: int, count: int) -> None:
        """Run a step once with no slot active, to load its kernels. That may take longer than other ranks wait."""
        if (k, count) not in self._loaded:
            with self.stream.current():
                self.b.slots.active_count.zero_()
                self.cycle(k, count)(self.b)
                self.stream.wait()
            self._loaded.add((k, count))

    def launch(self, k: int, count: int, kind: Kind = PLAIN) -> None:
        """One step, kernel by kernel."""
        cycle = self.cycle(k, count, kind)
        with self.stream.current():
            cycle(self.b)

    @property
    def of_prompts(self) -> Prefilled:
        """Return the prefilled prompts. Raises if there are none."""
        assert self.prefilled is not None
        return self.prefilled


def whole_logits(ranks: Sequence[Rank], rows: int) -> Tensor:
    """The logits [rows, V] of the last step on the first rank's GPU, from all parts of the vocabulary.

    Waits for every rank but the first, on whose stream it must be called.
    """
    parts = [rank.b.target.layer.logits[:rows] for rank in ranks]
    if len(parts) == 1:
        return parts[0]
    for rank in ranks[1:]:
        rank.stream.wait()
    return torch.cat([part.to(ranks[0].device) for part in parts], dim=-1)


def models_of(
    targets: Sequence[TargetCheckpoint],
    draft: DraftCheckpoint | None,
    positions: int,
    devices: Sequence[torch.device],
    *,
    draft_ranks: int = 1,
) -> list[tuple[Target, Draft | None]]:
    """The checkpoints are used up. The draft, on the first device, is copied to the others, bit for bit; where
    `draft_ranks` is above 1, each of so many devices gets its part.
    """
    made = list[tuple[Target, Draft | None]]()
    for target, own in zip(targets, drafts_of(draft, devices, draft_ranks), strict=True):
        model = Target.of(target, positions)
        made.append((model, Draft.of(own, model, positions) if own else None))
    return made


def drafts_of(
    draft: DraftCheckpoint | None, devices: Sequence[torch.device], ranks: int
) -> Sequence[DraftCheckpoint | None]:
    """The draft of each device."""
    if draft is None:
        return [None] * len(devices)
    if ranks == 1:
        return [draft, *(copied(draft, device) for device in devices[1:])]
    return [copied(draft, device, shard) for device, shard in zip(devices, shards(ranks), strict=True)]


def copied(draft: DraftCheckpoint, device: torch.device, shard: Shard = WHOLE) -> DraftCheckpoint:
    """The part `shard` of the draft, on `device`."""
    parts = draft.tensors if shard.ranks == 1 else {name: shard.part(name, t) for name, t in draft.tensors.items()}
    tensors = {name: tensor.to(device) for name, tensor in parts.items()}
    return replace(draft, tensors=tensors, d2t=None if draft.d2t is None else draft.d2t.to(device), shard=shard)


def with_exchange(plan: Mapping[str, int], mailboxes: int, prefill: int) -> dict[str, int]:
    """A memory plan with what ranks exchange in steps and in a prefill, in bytes on each GPU."""
    return {**plan, "exchange between GPUs": mailboxes + prefill}
