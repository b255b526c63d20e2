"""Prefill and whole steps of planted pairs, beside the bytes that they must read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from bench.gpt_oss.conditions import watched
from specgate.backends.eagle3.cupy.engine.engine import CupyEngine
from specgate.backends.eagle3.cupy.engine.facts import engine_facts
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.pair_tools.plant.calibrate import made_target
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.contract import Budget, Role
from specgate.contract.protocols import Decoded
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes
from tests.eagle3.lib.planted.drafts import made_draft

STEPS: Final = 64
WARM_UP: Final = 16
SIGNAL: Final = 0.75
"""Any: it decides the acceptance, of which the time of a step does not depend."""


@dataclass(frozen=True, slots=True)
class Point:
    context: int
    batch: int
    lengths: tuple[int, ...]


POINTS: Final = (
    Point(1024, 1, (0, 1, 3, 5, 7)),
    Point(32768, 1, (0, 3)),
    Point(1024, 4, (0, 3)),
    Point(1024, 8, (0, 3, 7)),
    Point(16384, 4, (0, 3)),
)
POSITIONS: Final = max(point.context for point in POINTS) + (STEPS + WARM_UP) * 8 + 64


class PlantedPair:
    """A planted pair, made in memory."""

    def __init__(self, shape: PairGeometry, overlap: float) -> None:
        recipe = Recipe(
            "A", seed=7, draft_vocab=shape.draft.draft_vocab, signal=SIGNAL, boundaries=shape.boundaries,
            expert_overlap=overlap,
        )  # fmt: skip
        self.target = made_target(recipe, shape, torch.bfloat16, "cuda")
        self.draft = made_draft(recipe, shape, torch.bfloat16, "cuda")
        self.model = Target.of(self.target, POSITIONS)
        self.head = Draft.of(self.draft, self.model, POSITIONS)

    def engine(self, point: Point) -> CupyEngine:
        """With attention tiled as an engine for this point has it."""
        most = max(point.lengths)
        positions = point.context + (STEPS + WARM_UP) * (most + 1) + 64
        sizes = Sizes(point.batch, positions, most + 1).usual(self.target.geometry)
        facts = engine_facts(self.target, self.draft, None, {}, sizes, graphs=True)
        buffers = Buffers.allocate(self.target.geometry, self.draft.geometry, sizes, "cuda")
        tuned = Tuned.on(torch.cuda.get_device_name(), None)
        return CupyEngine(self.model, self.head, sizes, buffers, facts, tuned=tuned)


def timings(pair: PlantedPair, bandwidth: float) -> Iterator[dict[str, Any]]:
    """One entry per point and draft length."""
    for point in POINTS:
        engine = pair.engine(point)
        generator = torch.Generator().manual_seed(1)
        prompts = torch.randint(pair.target.geometry.vocab, (point.batch, point.context), generator=generator).tolist()
        prefill_ms = [engine.prefill(prompts, draft=True) / 1e6 for _ in range(2)][-1]
        baseline: float | None = None
        for k in point.lengths:
            engine.decode(Role(k), Budget(steps=WARM_UP), ())
            with watched() as conditions:
                block = engine.decode(Role(k), Budget(steps=STEPS), ())
            step_ms = block.elapsed_ns / len(block.step_ns) / 1e6
            floor_ms = floor_bytes(engine, k, point, block) / bandwidth * 1e3
            baseline = baseline or step_ms
            yield {
                "context": point.context,
                "batch": point.batch,
                "k": k,
                "prefill_ms": prefill_ms,
                "step_ms": step_ms,
                "floor_ms": floor_ms,
                "ratio_to_floor": step_ms / floor_ms,
                "ratio_to_baseline": step_ms / baseline,
                "tokens_per_s": sum(len(text) - 1 for text in block.tokens) / block.elapsed_ns * 1e9,
                "tuned_products": f"{block.counters['tuned_hits']} of {block.counters['tuned_total']}",
                "touched_per_layer": touched(block) / pair.target.geometry.layers,
                "phases_ms": {name: ns / len(block.step_ns) / 1e6 for name, ns in block.phase_ns.items()},
                "conditions": conditions.summary(),
            }
        del engine


def touched(block: Decoded) -> float:
    """Experts that a step of the block reached, over all layers: the mean."""
    assert block.experts is not None
    return sum(block.experts.touched) / len(block.experts.touched)


def floor_bytes(engine: CupyEngine, k: int, point: Point, block: Decoded) -> float:
    """What a step must move at least, with the experts that were counted, in the middle of the block."""
    traffic = engine.facts().traffic
    assert traffic is not None
    emitted = sum(map(len, block.tokens)) // (2 * point.batch)
    moved = pass_bytes(traffic.target, [Slot(point.context + emitted, k + 1)] * point.batch, touched=touched(block))
    if k and traffic.draft:
        moved += draft_bytes(traffic.draft, [Slot(point.context + emitted - 1, 1)] * point.batch, [k] * point.batch)
    return moved.total
