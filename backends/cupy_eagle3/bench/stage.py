"""A step in the middle of decoding: a random pair, full caches, and the kernel calls that the step makes on them."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.bench.recording import Call, record
from specgate.backends.cupy_eagle3.bench.synthetic import Geometry
from specgate.backends.cupy_eagle3.buffers import Buffers
from specgate.backends.cupy_eagle3.cycle import Cycle
from specgate.backends.cupy_eagle3.kernels.attention import usual_config
from specgate.backends.cupy_eagle3.model import Draft, Target
from specgate.backends.cupy_eagle3.prompts import lay_out
from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.backends.cupy_eagle3.stretch import Start, StopRule
from specgate.backends.cupy_eagle3.tuning.tuned import NOTHING_TUNED, Tuned
from specgate.backends.eagle3.geometry import TargetGeometry

SLACK = 512
"""Positions beyond the context, as a stretch of some steps needs them."""


def sizes_of(target: TargetGeometry, context: int, batch: int, max_k: int) -> Sizes:
    positions = context + SLACK
    return Sizes(batch, positions, max_k + 1, usual_config(target.head_dim, batch, positions))


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
        tuned: Tuned = NOTHING_TUNED,
    ) -> None:
        self.geometry, self.b, self.sizes, self.context, self.k = geometry, b, sizes, context, k
        self.layout = lay_out([[slot] * context for slot in range(sizes.slots)], sizes)
        self.cycle = Cycle(*pair, sizes, sizes.slots, k, tuned)
        self.reserve = self.cycle.reserve  # as it is, while the step's own is recorded
        self.calls: list[Call] = []

    @property
    def slots(self) -> int:
        return self.sizes.slots

    def run(self) -> None:
        """Fill the caches with noise and record one step."""
        for pages in self.b.pages:
            pages.k.normal_()
            pages.v.normal_()
        if self.b.draft is not None:
            self.b.draft.features.normal_()
        self.reset()
        self.calls = record(self.cycle)
        self.cycle(self.b)

    def reset(self) -> None:
        """The state that the step began with: all slots active, all drafts of the step before accepted, blocks taken.

        A launch may be repeated on it, whatever was launched before.
        """
        slots = self.b.slots
        Start((self.context,) * self.slots, (0,) * self.slots).rewind(slots, StopRule((), (), self.sizes.positions))
        self.b.kv.copy_(self.layout.kv)
        self.b.target.choices.zero_()
        for tokens in (slots.root, slots.pending, slots.drafts):
            self.random_tokens(tokens)
        slots.counts.fill_(self.k + 1)
        self.reserve(self.b.kv, slots)

    def random_tokens(self, out: Tensor) -> None:
        out.copy_(torch.randint_like(out, self.geometry.target.vocab))
