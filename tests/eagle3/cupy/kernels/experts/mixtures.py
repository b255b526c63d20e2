"""A mixture of experts of any size with random weights, its kernels, and the oracle's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp, Route
from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.lib.weights import decoded
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import normal, rows_of
from tests.eagle3.cupy.kernels.device import poisoned as poisoned_on

EPS = 1e-5


def random_experts(count: int, rows: int, columns: int, seed: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks, scales and bias as a checkpoint has them, of numbers of variance 1 / K."""
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (count, rows, columns // 32)
    blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, device=device, generator=generator)
    usual = round(127 - torch.log2(torch.tensor(2.93 * columns**0.5)).item())
    scales = torch.randint(usual - 1, usual + 2, shape, device=device, generator=generator).to(torch.uint8)
    bias = (0.3 * torch.randn(count, rows, device=device, generator=generator)).bfloat16()
    return blocks, scales, bias


@dataclass(frozen=True, slots=True)
class Left:
    """Outputs of a mixture's kernels for a step's rows."""

    logits: Tensor
    x16: Tensor
    act: Tensor
    stream: Tensor
    normed: Tensor
    squares: Tensor
    finished: Tensor
    touched: Tensor

    @property
    def results(self) -> tuple[Tensor, ...]:
        """What belongs to a row each."""
        return (self.logits, self.x16, self.act.view(len(self.logits), -1), self.stream, self.normed, self.squares)


class Mixture:
    def __init__(
        self, experts: ExpertGeometry, hidden: int, intermediate: int, seed: int = 0, device: str = "cuda"
    ) -> None:
        self.experts, self.hidden, self.intermediate, self.device = experts, hidden, intermediate, device
        self.router = self._normal(experts.count, hidden, scale=2 * hidden**-0.5, seed=seed)
        self.router_bias = self._normal(experts.count, scale=0.5, seed=seed)
        self.gate_up_stored = random_experts(experts.count, 2 * intermediate, hidden, seed, device)
        self.gate_up = PackedExperts.of(*self.gate_up_stored, Order.PAIRED)
        self.gate_up_numbers = decoded(*self.gate_up_stored[:2], torch.bfloat16)
        self.down_stored = random_experts(experts.count, hidden, intermediate, seed + 1, device)
        self.down = PackedExperts.of(*self.down_stored, Order.PLAIN)
        self.down_numbers = decoded(*self.down_stored[:2], torch.bfloat16)
        self.norm_weight = self._normal(hidden, seed=seed + 2)

    def _normal(self, *shape: int, scale: float = 1.0, seed: int) -> Tensor:
        return normal(*shape, scale=scale, seed=seed, device=self.device)

    def rows(self, count: int, seed: int = 0) -> Tensor:
        """Rows of a residual stream, float32 [R, H]."""
        return normal(count, self.hidden, dtype=torch.float32, scale=3.0, seed=seed, device=self.device)

    def listed(self, active: Sequence[int]) -> Rows:
        """The rows `active`, one of a slot."""
        return rows_of(active, 1, device=self.device)

    def run(
        self,
        stream: Tensor,
        rows: Rows,
        *,
        logits: Tensor | None = None,
        gate_up: ExpertConfig | None = None,
        down: ExpertConfig | None = None,
    ) -> Left:
        """The kernels of a step on `stream`, whose norm before the router has the weight 1. With `logits`, the router's
        are replaced.
        """
        count, k = len(stream), self.experts.per_token
        x = PreNormRows(stream.bfloat16(), stream.square().view(count, -1, 8).sum(-1))
        poisoned = partial(poisoned_on, device=self.device)
        left = Left(
            logits=poisoned(count, self.experts.count, dtype=torch.float32),
            x16=poisoned(count, self.hidden, dtype=torch.float16),
            act=poisoned(count * k, self.intermediate, dtype=torch.float16),
            stream=stream.clone(),
            normed=poisoned(count, self.hidden),
            squares=poisoned(count, self.hidden // 8, dtype=torch.float32),
            finished=torch.zeros(self.hidden // 16, dtype=torch.int32, device=self.device),
            touched=torch.full((2, 3), -1, dtype=torch.int32, device=self.device),
        )
        Route(self.hidden, self.experts, rows.most)(rows, x, left, router=self.router, bias=self.router_bias, eps=EPS)
        if logits is not None:
            left.logits.copy_(logits)
        parts = poisoned(count * k, self.hidden, dtype=torch.float32)
        sizes = self.intermediate, self.hidden
        ExpertGateUp(*sizes, self.experts, rows.most, gate_up)(rows, left, self.gate_up, x=left.x16)
        step = torch.tensor([1], dtype=torch.int32, device=self.device)
        log = {"step": step, "layer": 2, "layers": left.touched.shape[1]}
        ExpertDown(*sizes[::-1], self.experts, rows.most, down)(
            rows, left, self.down, parts=parts, norm_weight=self.norm_weight, **log
        )
        return left

    def oracle(self, stream: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, act, stream), in float64; experts are those of `logits`, where they are given."""
        x = stream.bfloat16().double() / torch.sqrt(stream.double().square().mean(-1, keepdim=True) + EPS)
        own = oracles.route(x, self.router, self.router_bias)
        chosen, weights = oracles.chosen_experts(own if logits is None else logits, self.experts.per_token)
        act = oracles.expert_gate_up(
            *(x, self.gate_up_numbers, self.gate_up.bias, chosen, self.experts.alpha, self.experts.limit)
        )
        mixed = oracles.expert_down(act, self.down_numbers, self.down.bias, chosen, weights)
        return own, act, stream.double() + mixed


def picked(left: Left, rows: Sequence[int]) -> tuple[Tensor, ...]:
    return tuple(result[list(rows)] for result in left.results)
