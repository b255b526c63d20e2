"""One of the two products of a mixture of experts with random operands, to check and time its configurations on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench import oracles
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE, Order, PackedExperts
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, PreNormRows
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_GATE_UP
from specgate.backends.eagle3.cupy.tuning.product import MOST, OnRandom, Results, rows_of
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.checkpoints.mxfp4 import BIAS, BLOCK, VALUES

ROUTINGS: Final = 12
"""Fewest routings that take turns: how many experts rows have between them differs from one to the next."""
TOLERANCES: Final = {Order.PAIRED: 1e-3, Order.PLAIN: 1e-4}
"""The most that ‖found − oracle‖ / ‖oracle‖ may be: of float16 results, and of float32 ones."""


def geometry_of(shape: GemmShape) -> ExpertGeometry:
    return ExpertGeometry(shape.experts, shape.per_token, mxfp4=True)


def launcher(shape: GemmShape, config: ExpertConfig | None = None) -> ExpertGateUp | ExpertDown:
    """For up to `shape.m` rows. Raises ValueError for a mixture that no kernel is made for."""
    if shape.tag == EXPERT_GATE_UP:
        return ExpertGateUp(shape.n // 2, shape.k, geometry_of(shape), shape.m, config)
    return ExpertDown(shape.n, shape.k, geometry_of(shape), shape.m, config)


@dataclass(frozen=True)
class ExpertProduct(OnRandom[ExpertConfig]):
    """Of `shape`, for up to its m rows. It leaves act, or the stream and the input of the next norm.

    `x` float16 [m, k], of the second product [m · per_token, k]; `before` float32 [m, n]: what the second one adds to;
    `logits` float32 [inputs, m, E]: routings, of rows that choose independently; `weights`: copies of the experts'
    matrices, as a step has them of several layers.
    """

    shape: GemmShape
    x: Tensor
    before: Tensor
    logits: Tensor
    weights: tuple[PackedExperts, ...]

    @classmethod
    def random(
        cls, shape: GemmShape, copies: int, device: torch.device | str = "cuda", rows: int = MOST
    ) -> ExpertProduct:
        """Random operands for `rows` rows, whose sums have a variance of about one."""
        generator = torch.Generator(device).manual_seed(shape.n + shape.k)

        def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(sizes, dtype=dtype, device=device).normal_(generator=generator)

        experts, n, k = shape.experts, shape.n, shape.k
        first = shape.tag == EXPERT_GATE_UP
        usual = round(BIAS - math.log2(k * sum(value * value for value in VALUES) / len(VALUES)) / 2)
        blocks = torch.empty(experts, n, k // BLOCK, BLOCK // 2, dtype=torch.uint8, device=device)
        scales = torch.empty(experts, n, k // BLOCK, dtype=torch.uint8, device=device)
        packed = PackedExperts.of(
            blocks.random_(256, generator=generator),
            scales.random_(usual - 1, usual + 2, generator=generator),
            normal(experts, n, dtype=torch.bfloat16),
            Order.PAIRED if first else Order.PLAIN,
        )
        every = [packed.weight, *(packed.weight.clone() for _ in range(copies - 1))]
        return cls(
            replace(shape, m=rows),
            x=normal(rows if first else rows * shape.per_token, k, dtype=torch.float16),
            before=normal(rows, n),
            logits=normal(max(copies, ROUTINGS), rows, experts),
            weights=tuple(replace(packed, weight=one) for one in every),
        )

    @property
    def first(self) -> bool:
        """Return whether it is the first of the two."""
        return self.shape.tag == EXPERT_GATE_UP

    @property
    def rows(self) -> int:
        return self.shape.m

    @property
    def inputs(self) -> int:
        return len(self.logits)

    @property
    def per_row(self) -> int:
        """Rows of x of one of the step's rows."""
        return 1 if self.first else self.shape.per_token

    @cached_property
    def chosen(self) -> Tensor:
        """The experts of every row of every routing: [inputs, m, per_token]."""
        return self.logits.topk(self.shape.per_token, dim=-1).indices

    def read_bytes(self, rows: int) -> float:
        touched = sum(len({*routing[:rows].flatten().tolist()}) for routing in self.chosen) / self.inputs
        return touched * self.weights[0].read_bytes

    def output(self) -> Results:
        m, n = self.before.shape

        def poisoned(rows: int, width: int, dtype: torch.dtype) -> Tensor:
            return torch.full((rows, width), float("nan"), dtype=dtype, device=self.x.device)

        if self.first:
            return (poisoned(m * self.shape.per_token, n // 2, torch.float16),)
        return self.before.clone(), poisoned(m, n, torch.bfloat16), poisoned(m, n // NORM_GROUP, torch.float32)

    def launching_into(self, out: Results, config: ExpertConfig, count: int) -> Callable[[int], None]:
        made, device = launcher(self.shape, config), self.x.device
        rows, weights, logits = rows_of(count, device), self.weights, self.logits
        if isinstance(made, ExpertGateUp):
            first = made
            return lambda i: first(rows, weights[i % len(weights)], act=out[0], x=self.x, logits=logits[i])
        second, (m, n) = made, self.before.shape
        zeros = partial(torch.zeros, dtype=torch.int32, device=device)
        others: dict[str, Any] = {
            "stream": out[0],
            "norm_weight": torch.ones(n, dtype=torch.bfloat16, device=device),
            "act": self.x,
            "parts": torch.empty(m * self.shape.per_token, n, device=device),
            "finished": zeros(n // TILE),
            "touched": zeros(1, 1),
            "step": zeros(1),
        }
        norm = PreNormRows(out[1], out[2])
        return lambda i: second(rows, weights[i % len(weights)], norm, logits=logits[i], layer=0, layers=1, **others)

    def last_first(self) -> ExpertProduct:
        return replace(
            self,
            x=self.x.roll(self.per_row, dims=0),
            before=self.before.roll(1, dims=0),
            logits=self.logits.roll(1, dims=1),
        )

    def part(self, first: int, end: int) -> ExpertProduct:
        return replace(
            self,
            shape=replace(self.shape, m=end - first),
            x=self.x[first * self.per_row : end * self.per_row],
            before=self.before[first:end],
            logits=self.logits[:, first:end].contiguous(),
        )

    def computed(self, whole: Results) -> Tensor:
        """Return act, or what the stream has gained."""
        return whole[0] if self.first else whole[0].double() - self.before.double()

    def oracles(self) -> Mapping[str, tuple[Tensor, float]]:
        shape, weight = self.shape, self.weights[0]
        experts, weights = oracles.chosen_experts(self.logits[0], shape.per_token)
        # Of a large mixture, only the matrices that rows have are unpacked.
        used, index = torch.unique(experts, return_inverse=True)
        matrices, bias = torch.stack([weight.matrix(int(expert)) for expert in used]), weight.bias[used]
        tolerance, g = TOLERANCES[weight.order], geometry_of(shape)
        if not self.first:
            return {"float64": (oracles.expert_down(self.x, matrices, bias, index, weights), tolerance)}
        return {"float64": (oracles.expert_gate_up(self.x, matrices, bias, index, g.alpha, g.limit), tolerance)}
