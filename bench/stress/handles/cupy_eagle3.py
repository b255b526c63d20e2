"""The built-in engine's cache: blocks of positions, who owns each of them, and what lies in them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from bench.stress.handles.checksum import checksum
from bench.stress.handles.handle import CacheFault
from bench.stress.memory import Reading, reading
from specgate.backends.eagle3.cupy.engine.decode_run import STEPS_PER_GRAPH
from specgate.backends.eagle3.cupy.engine.decoding import FAULTS
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.prefilled import Prefilled
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.state.slots import FREE, SHARED, Fault, KVBlocks

NO_BLOCK = "no cache block left in the middle of a graph"
FOREIGN_BLOCK = "another slot's block on the free stack"
NOT_A_NUMBER = "a free block with values that are not numbers"


class CupyHandle:
    """As `Handle`. Faults lie in the blocks that a decode run will take next, so that its first steps are sound."""

    graph_steps = STEPS_PER_GRAPH
    faults: Mapping[str, CacheFault] = {
        NO_BLOCK: CacheFault(FAULTS[Fault.KV_EXHAUSTED], mended=True),
        FOREIGN_BLOCK: CacheFault(FAULTS[Fault.KV_INTEGRITY], mended=True),
        NOT_A_NUMBER: CacheFault(FAULTS[Fault.TARGET_NOT_FINITE], mended=True),
    }

    def __init__(self, engine: CupyEngine) -> None:
        self.engine = engine

    @property
    def prefilled(self) -> Prefilled:
        assert self.engine.prefilled is not None
        return self.engine.prefilled

    def rows(self) -> Iterator[Tensor]:
        """Keys and values of the blocks of every prompt that no step writes: those before its last position's."""
        for blocks, prompt in zip(self.prefilled.layout.blocks, self.prefilled.prompts, strict=True):
            ids = torch.tensor(blocks[: (len(prompt) - 1) // BLOCK], dtype=torch.int64)
            for pages in self.engine.b.pages:
                for cache in (pages.k, pages.v):
                    for layer in cache:
                        yield layer[ids.to(layer.device)]

    def prompt_sum(self) -> int:
        with self.engine.stream.current():
            return checksum(self.rows())

    def complaints(self) -> list[str]:
        with self.engine.stream.current():
            problems = misplaced(self.engine.b.kv, len(self.prefilled.prompts))
            if bool(self.engine.b.target.choices.any()):
                problems.append("greedy choices were left behind by the last step")
        return problems

    @contextmanager
    def damage(self, fault: str) -> Iterator[None]:
        kv = self.prefilled.kv
        top = int(kv.free_count) - 1
        with torch.inference_mode(), self.engine.stream.current():
            if fault == NO_BLOCK:
                kv.free_count.zero_()
            elif fault == FOREIGN_BLOCK:
                kv.free_blocks[top] = kv.block_table[len(self.prefilled.prompts) - 1, 0]
            else:
                assert fault == NOT_A_NUMBER
                self.engine.b.target.pages.v[:, int(kv.free_blocks[top])] = float("nan")
            self.engine.stream.wait()
        yield

    def steps_before_fault(self) -> int:
        return int(self.engine.b.slots.step)

    def reading(self) -> Reading:
        gc.collect()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return reading(torch.cuda.memory_allocated(), total - free)


def misplaced(kv: KVBlocks, slots: int) -> list[str]:
    """Return the faults in the accounts of the blocks, of which the first `slots` slots are in use.

    Every block lies on the free stack once, or in the table of one slot once, or is shared by the tables of several.
    """
    block_counts, table, owner = kv.held.tolist(), kv.block_table.tolist(), kv.owner.tolist()
    free = Counter(kv.free_blocks[: int(kv.free_count)].tolist())
    holders = [Counter(table[slot][: block_counts[slot]]) for slot in range(slots)]
    problems = []
    for block, owned_by in enumerate(owner):
        holding = [slot for slot, blocks in enumerate(holders) if blocks[block]]
        twice = free[block] > 1 or any(holders[slot][block] > 1 for slot in holding)
        right = {FREE: not holding, SHARED: len(holding) > 1}.get(owned_by, holding == [owned_by])
        if twice or not right or bool(free[block]) != (owned_by == FREE):
            problems.append(
                f"block {block}: owner {owned_by}, {free[block]} times on the free stack, held by slots {holding}"
            )
    return problems
