"""Rows of logits and what the kernels draw from them, beside what `specgate.sampling` draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.penalties.launchers import CountTokens
from specgate.backends.eagle3.cupy.kernels.state.slots import Slots
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers
from specgate.backends.eagle3.cupy.step.token_draw import TokenDraw
from specgate.contract import Sampling
from specgate.sampling.history import History
from specgate.sampling.keys import Integers, Keys
from specgate.sampling.rejection import sample
from specgate.sampling.target import target_distribution
from tests.eagle3.cupy.kernels.device import index_of


@dataclass
class Rows:
    """`logits` float32 [S · T, V] of S slots with T rows each, whose first stand at `positions` [S] of their texts.

    `active`: the slots that decode; by default all. For penalties, of every slot: its prompt, what it has emitted, and
    the drafts [T − 1] between its rows.
    """

    asked: Sampling
    logits: Tensor
    requests: Sequence[int]
    positions: Sequence[int]
    active: Sequence[int] = ()
    prompts: Sequence[Sequence[int]] = ()
    outputs: Sequence[Sequence[int]] = ()
    drafts: Sequence[Sequence[int]] = ()
    per_slot: int = field(init=False)

    def __post_init__(self) -> None:
        self.active = self.active or range(len(self.requests))
        self.per_slot = len(self.logits) // len(self.active)

    def buffers(self, device: str) -> tuple[SamplingBuffers, Slots]:
        slots, rows = len(self.requests), len(self.requests) * self.per_slot
        b = SamplingBuffers.allocate(self.asked, self.logits.shape[-1], slots, rows, device)
        b.requests.copy_(torch.from_numpy(np.array(self.requests, np.uint64).view(np.int64)))
        made = Slots.allocate(slots, self.per_slot, 8, device)
        made.active[: len(self.active)] = torch.tensor(list(self.active), dtype=torch.int32)
        made.active_count[0] = len(self.active)
        made.length.copy_(torch.tensor(self.positions, dtype=torch.int32) - 1)
        b.begin_texts(self.prompts)
        count = CountTokens(self.logits.shape[-1], self.per_slot) if self.asked.penalises else None
        for i in range(max(map(len, self.outputs), default=0)):
            made.counts.copy_(torch.tensor([i < len(output) for output in self.outputs]))
            made.pending[:, 0] = torch.tensor([output[i] if i < len(output) else 0 for output in self.outputs])
            if count:
                count(made.rows(slots, 1), made, b)
        if self.per_slot > 1 and self.drafts:
            made.drafts[:, : self.per_slot - 1] = torch.tensor(self.drafts)
        return b, made

    def drawn(self, device: str, *, target_ids: Tensor | None = None, offset: int = 0) -> list[int]:
        """What the kernels draw of every row that is there, as columns."""
        return self.run(device, target_ids, offset)[0]

    def kept(self, device: str, room: int | None = None) -> NDArray[np.bool_]:
        """bool [S · T, V]: what the kernels of filters leave. `room`: of a list of columns, if not the usual."""
        cuts = self.run(device, room=room)[1].cuts[: len(self.logits)].cpu().numpy().view(np.uint64)
        rows, columns = self.logits.numpy(), np.arange(self.logits.shape[-1], dtype=np.uint64)
        ranks = ordered_bits(rows) << np.uint64(18) | (np.uint64(2**18 - 1) - columns)
        mask: NDArray[np.bool_] = ranks >= cuts[:, None]
        return mask

    def run(
        self, device: str, target_ids: Tensor | None = None, offset: int = 0, room: int | None = None
    ) -> tuple[list[int], SamplingBuffers]:
        """What is drawn, and what the kernels have left. All that shall be zero afterwards is."""
        draft = target_ids is not None
        draw = TokenDraw(self.asked, self.logits.shape[-1], self.per_slot, draft=draft)
        b, slots = self.buffers(device)
        if room is not None:
            assert draw.cut is not None
            draw.cut = replace(draw.cut, listed=room)
            b = replace(b, listed=b.listed[:, :room].contiguous())
        logits = torch.full((len(self.requests) * self.per_slot, self.logits.shape[-1]), float("nan"), device=device)
        logits[: len(self.logits)] = self.logits
        choices = torch.zeros(len(logits), dtype=torch.int64, device=device)
        choices[: len(self.logits)] = greedy(self.logits).to(device)
        ids = None if target_ids is None else target_ids.to(device)
        rows = slots.rows(len(self.requests), self.per_slot)
        draw(rows, b, slots, logits=logits, choices=choices, offset=offset, target_ids=ids)
        for name in ("best", "finished", "bucket_sums", "list_sizes"):
            assert not getattr(b, name).any(), name
        assert not choices[len(self.logits) :].any()
        return list(index_of(choices[: len(self.logits)]).tolist()), b

    def expected(self, among: Sequence[int] | None = None) -> list[int]:
        """What `specgate.sampling` draws of all rows, or `among` these."""
        chosen = np.array(range(len(self.logits)) if among is None else among, np.int64)
        rows = self.logits[torch.from_numpy(chosen)].double().cpu().numpy()
        histories = list(self.histories()) if self.asked.penalises else [None] * len(self.logits)
        law = np.stack(
            [target_distribution(row, self.asked, histories[n]) for row, n in zip(rows, chosen.tolist(), strict=True)]
        )
        return list(sample(law, self.keys().of(chosen)).tolist())

    def histories(self) -> Iterator[History]:
        """What penalties count, of every row."""
        for slot in self.active:
            before = History.of(self.prompts[slot], self.outputs[slot], self.logits.shape[-1])
            yield from before.rows(self.drafts[slot] if self.drafts else ())

    def keys(self) -> Keys:
        """Of every row."""
        at: list[tuple[int, int]] = [(slot, t) for slot in self.active for t in range(self.per_slot)]
        requests: NDArray[np.uint64] = np.array([self.requests[slot] for slot, _ in at], np.uint64)
        positions: Integers = np.array([self.positions[slot] + t for slot, t in at], np.int64)
        return Keys(self.asked.seed, requests, positions)


def greedy(logits: Tensor) -> Tensor:
    """Greedy choices int64 [R] of `logits` [R, V], packed as in `argmax.cuh`."""
    rows = logits.float().cpu().numpy()
    columns = rows.argmax(axis=1)
    ordered = ordered_bits(rows[np.arange(len(rows)), columns])
    ordered = np.where(np.isfinite(rows).all(axis=1), ordered, np.uint64(0xFFFFFFFF))
    packed = ordered << np.uint64(32) | (np.uint64(0xFFFFFFFF) - columns.astype(np.uint64))
    return torch.from_numpy(packed.view(np.int64))


def ordered_bits(values: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Below 2**32, in the order of the values; -0 is 0."""
    bits = (values + np.float32(0)).view(np.uint32).astype(np.uint64)
    return np.where(bits >> np.uint64(31), ~bits & np.uint64(0xFFFFFFFF), bits | np.uint64(0x80000000))
