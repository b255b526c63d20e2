"""The router and the experts' two products of one layer, on operands that no cache holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final

import torch

from bench.gpt_oss.conditions import watched
from specgate.backends.eagle3.cupy.bench.timing import time_launches
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.expert_down import ExpertDown
from specgate.backends.eagle3.cupy.kernels.experts.expert_gate_up import ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.experts.packing import (
    NUMBERS,
    TILE,
    Order,
    PackedExperts,
    slab_count,
    tile_bytes,
)
from specgate.backends.eagle3.cupy.kernels.experts.route import Route
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.memory.buffers import MixtureBuffers
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.checkpoints.geometry import TargetGeometry
from tests.eagle3.cupy.kernels.device import rows_of

INPUTS: Final = 12
"""Routings that take turns; between two of them more is read than an L2 cache holds."""
USUAL_SCALE: Final = 122 + 14


Configs = tuple[ExpertConfig | None, ExpertConfig | None]


class Weights:
    """A router and all experts of one layer: random numbers of about the size of real ones, without a checkpoint."""

    def __init__(self, g: TargetGeometry) -> None:
        assert g.experts is not None
        count = g.experts.count
        self.gate_up = random_tiles(count, 2 * g.intermediate, g.hidden, Order.PAIRED)
        self.down = random_tiles(count, g.hidden, g.intermediate, Order.PLAIN)
        self.router = torch.randn(count, g.hidden, device="cuda").bfloat16()
        self.router_bias = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
        self.norm = torch.ones(g.hidden, dtype=torch.bfloat16, device="cuda")

    @property
    def expert_bytes(self) -> tuple[int, int]:
        """Of one expert's two matrices, with their biases."""
        return self.gate_up.read_bytes, self.down.read_bytes


def random_tiles(experts: int, rows: int, columns: int, order: Order) -> PackedExperts:
    tiles = torch.empty((experts, rows // TILE, tile_bytes(columns)), dtype=torch.uint8, device="cuda").random_(256)
    tiles[..., slab_count(columns) * NUMBERS :] = USUAL_SCALE
    return PackedExperts(tiles, torch.zeros(experts, rows, dtype=torch.bfloat16, device="cuda"), columns, order)


class Mixture:
    """The kernels for `count` rows, and `INPUTS` routings of them, in which rows choose independently."""

    def __init__(self, g: TargetGeometry, w: Weights, count: int, configs: Configs = (None, None)) -> None:
        """`configs`: of gate and up, and of down, in place of the usual ones."""
        assert g.experts is not None
        self.g, self.w, self.rows = g, w, rows_of(range(count), 1)
        self.m = MixtureBuffers.allocate(g, count, 1, "cuda")
        self.m.x16.normal_()
        self.m.act.normal_()
        self.routings = [torch.randn(count, g.experts.count, device="cuda") for _ in range(INPUTS)]
        self.x = PreNormRows(
            torch.randn(count, g.hidden, device="cuda").bfloat16(), torch.full((count, g.hidden // 8), 8.0).cuda()
        )
        self.out = torch.zeros(count, g.hidden, device="cuda")
        self.step = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.route = Route(g.hidden, g.experts, count)
        self.first = ExpertGateUp(g.intermediate, g.hidden, g.experts, count, configs[0])
        self.second = ExpertDown(g.hidden, g.intermediate, g.experts, count, configs[1])

    @property
    def touched(self) -> float:
        """Experts of a routing, the mean."""
        assert self.g.experts is not None
        chosen = (logits.topk(self.g.experts.per_token).indices.flatten().tolist() for logits in self.routings)
        return sum(len({*experts}) for experts in chosen) / INPUTS

    def run_router(self, i: int) -> None:
        logits, rows = self.m.logits, self.rows
        self.route(logits, self.m.x16, self.x, self.w.router, self.w.router_bias, rows, eps=self.g.rms_eps)

    def run_gate_up(self, i: int) -> None:
        self.first(self.m.act, self.m.x16, self.w.gate_up, self.routings[i], self.rows)

    def run_down(self, i: int) -> None:
        m = self.m
        self.second(
            *(self.out, (self.x, self.w.norm), m.parts, m.finished, m.act, self.w.down, self.routings[i], self.rows),
            log=(m.touched, self.step, 0),
        )

    def run_both(self, i: int) -> None:
        self.run_gate_up(i)
        self.run_down(i)


def timings(g: TargetGeometry, counts: tuple[int, ...], bandwidth: float) -> Iterator[dict[str, Any]]:
    """For each number of rows: microseconds, bytes, and the share of `bandwidth`. The router comes from the L2 cache,
    as it does not in a step.
    """
    assert g.experts is not None
    stream, w = Stream(), Weights(g)
    first, second = w.expert_bytes
    for count in counts:
        made = Mixture(g, w, count)
        touched = made.touched
        parts: dict[str, tuple[Callable[[int], None], float]] = {
            "gate_up": (made.run_gate_up, touched * first),
            "down": (made.run_down, touched * second),
            "both": (made.run_both, touched * (first + second)),
            "router": (made.run_router, float(w.router.nbytes)),
        }
        torch.cuda.synchronize()
        for name, (launch, size) in parts.items():
            with watched() as conditions:
                timing = time_launches(launch, INPUTS, stream)
            yield {
                "part": name,
                "rows": count,
                "experts": g.experts.count,
                "touched": touched,
                "us": timing.latency_us,
                "spread": timing.spread,
                "bytes": size,
                "share_of_bandwidth": size / timing.latency_us * 1e6 / bandwidth,
                "conditions": conditions.summary(),
            }


def sweep(g: TargetGeometry, counts: tuple[int, ...], bandwidth: float) -> Iterator[dict[str, Any]]:
    """Each product in many ways to move its work: as `timings`, with the way."""
    assert g.experts is not None
    stream, w = Stream(), Weights(g)
    first, second = w.expert_bytes
    for count in counts:
        usual = Mixture(g, w, count)
        for ring, tiles, room, blocks in product((1, 3, 9), (1, 2), (2, 3, 4), (2, 3, 4)):
            if blocks > room:
                continue
            moved = {"ring": ring, "tiles": tiles, "room": room, "blocks_per_sm": blocks}
            made = Mixture(g, w, count, (replace(usual.first.config, **moved), replace(usual.second.config, **moved)))
            torch.cuda.synchronize()
            for name, launch, size in (("gate_up", made.run_gate_up, first), ("down", made.run_down, second)):
                us = time_launches(launch, INPUTS, stream).latency_us
                share = made.touched * size / us * 1e6 / bandwidth
                about = {"part": name, "rows": count, "touched": made.touched, **moved}
                yield {**about, "us": us, "share_of_bandwidth": share}
