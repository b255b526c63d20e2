"""A step in the middle of decoding: a random pair, full caches, and the kernel calls that the step makes on them.

The step can be repeated and recorded, and its products can be given other configurations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.engine import limits
from specgate.backends.eagle3.cupy.engine.decode_run import StartState, StopRule
from specgate.backends.eagle3.cupy.kernels.heads import OUTER_BYTES
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes, assign_blocks
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.recording import Call, recorded
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED
from specgate.backends.eagle3.lib.kv import fp8
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvMode, KvModes
from specgate.checkpoints.geometry import TargetGeometry
from specgate.contract import PairRef, Role
from specgate.contract.protocols import OpenRequest

NOISE_SCALE = 43
"""0.34 in E4M3: numbers of any code of E2M1 then have a mean square of one."""
SLACK = 2048
"""Positions beyond the context, as 512 cycles of spec-3 need them. The tiling of attention depends on it."""


def sizes_of(
    target: TargetGeometry,
    context: int,
    batch: int,
    max_k: int,
    kv: KvModes = AS_COMPUTED,
    tree: DraftTree | None = None,
) -> Sizes:
    return Sizes(batch, context + SLACK, tree.rows if tree else max_k + 1, kv=kv, tree=tree).usual(target)


class Stage:
    """A step of spec-`k` over slots of `context` cached positions each. `calls`: what it does, once it has run."""

    def __init__(
        self,
        geometry: Geometry,
        pair: tuple[Target, Draft | None],
        b: Buffers,
        sizes: Sizes,
        context: int,
        k: int,
        tuned: Configurations = NOTHING_TUNED,
    ) -> None:
        self.geometry, self.pair, self.b, self.sizes, self.context, self.k = geometry, pair, b, sizes, context, k
        self.layout = assign_blocks([[slot] * context for slot in range(sizes.slots)], sizes)
        self.retile(tuned)
        self.calls: list[Call] = []

    def retile(self, tuned: Configurations) -> None:
        """Make the step anew, with the products' configurations that `tuned` knows."""
        self.cycle = Cycle(*self.pair, self.sizes, self.sizes.slots, self.k, tuned)

    @property
    def slots(self) -> int:
        return self.sizes.slots

    def run(self) -> None:
        """Fill the caches with noise and record one step."""
        self.fill()
        self.reset()
        with recorded(self.cycle) as self.calls:
            self.cycle(self.b)

    def fill(self) -> None:
        """The caches, with noise."""
        for pages in self.b.pages:
            for layer in (*pages.k, *pages.v):
                layer.copy_(noise_like(layer, pages.kv))
            if pages.kv == "nvfp4" and pages.scales is not None:
                pages.scales[..., :-OUTER_BYTES] = NOISE_SCALE
        if self.b.draft is not None:
            self.b.draft.features.normal_()

    def reset(self) -> None:
        """The state that the step began with: all slots active, all drafts of the step before accepted, blocks taken.

        A launch may be repeated on it, whatever was launched before.
        """
        slots = self.b.slots
        StartState((self.context,) * self.slots, (0,) * self.slots).rewind(
            slots, StopRule((), (), self.sizes.positions)
        )
        self.b.kv.copy_(self.layout.kv)
        self.b.target.choices.zero_()
        if self.b.draft is not None:
            self.b.draft.choices.zero_()
        for tokens in (slots.last_token, slots.pending, slots.drafts):
            self.random_tokens(tokens)
        slots.counts.fill_(self.k + 1)
        self.cycle.reserve(self.b.kv, slots)

    def random_tokens(self, out: Tensor) -> None:
        out.copy_(torch.randint_like(out, self.geometry.target.vocab))


def noise_like(cached: Tensor, kv: KvMode) -> Tensor:
    """Normal numbers; in E4M3 as codes over a scale of one, with which pages begin; in NVFP4 any codes."""
    if kv == "nvfp4":
        return torch.randint_like(cached, 256)
    noise = torch.randn(cached.shape, device=cached.device)
    return fp8.encoded(noise, torch.ones((), device=cached.device)) if kv == "fp8" else noise


def stages_at(
    pair: PairRef,
    points: Sequence[tuple[int, int]],
    roles: Sequence[Role],
    tuned: Configurations,
    device: torch.device,
    kv: KvModes = AS_COMPUTED,
    tree: DraftTree | None = None,
) -> list[dict[Role, Stage]]:
    """Steps of `roles` for every (context, batch) of `points`: those of a point over the same buffers, and all with the
    same random weights of `pair`'s geometry. `kv`: the formats of the caches. `tree`: what the longest role drafts, if
    no chain.

    Raises CheckpointError for a bad pair, UsageError for sizes that cannot be decoded.
    """
    most = max(role.k for role in roles)
    geometry = Geometry.of(pair, drafts=most > 0)
    sizes = [sizes_of(geometry.target, context, batch, most, kv, tree) for context, batch in points]
    for (_, batch), size in zip(points, sizes, strict=True):
        limits.check_request(OpenRequest(pair, "bfloat16", batch, size.positions, most, perf_mode=True))
    weights = random_pair(geometry, max(size.positions for size in sizes), device)
    return [
        {role: Stage(geometry, weights, buffers, size, context, role.k, tuned) for role in roles}
        for (context, _), size in zip(points, sizes, strict=True)
        for buffers in [Buffers.allocate(geometry.target, geometry.draft, size, device)]
    ]
