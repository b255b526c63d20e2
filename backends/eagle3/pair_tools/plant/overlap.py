"""Number of distinct experts that neighbouring tokens of a planted pair touch, by the reference engine's own router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import TargetCheckpoint, load_target
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.routing import expected_touched, independent_touched
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.pair_tools.plant.orbit import HISTORY, Orbit
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.gpt_oss import GptOssTarget
from specgate.backends.eagle3.reference.open import DTYPES
from specgate.contract import PairRef

MOST_TOKENS: Final = 8
"""The longest run of neighbours that is counted: a verification of seven drafts."""
CHAINS: Final = 8
CHAIN: Final = 256
"""Chains of planted successors that are read, and tokens of each. Every run of neighbours within one is counted."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Distinct experts per layer that `tokens` neighbours touch: as many as independent ones would, as the recipe
    implies, and as the router chose, each on average.
    """

    tokens: int
    independent: float
    predicted: float
    measured: float
    per_token: int

    @property
    def overlap(self) -> float | None:
        """(independent − measured) / (independent − per_token); None for a single token."""
        spread = self.independent - self.per_token
        return None if self.tokens == 1 or spread <= 0 else (self.independent - self.measured) / spread


def touched(pair: PairRef, recipe: Recipe, dtype: str, device: str) -> list[Touched]:
    """Touched experts for 1 to `MOST_TOKENS` neighbours, each the planted successor of the one before it, as in the
    verification of a faithful draft. Empty for a dense target.
    """
    target = load_target(pair.target, DTYPES[dtype], device, pair.rope)
    experts = target.geometry.experts
    if experts is None:
        return []
    orbit = Orbit(recipe, tables(recipe, target.geometry.vocab))
    chains = [orbit.text(HISTORY, CHAIN, 1.0, f"overlap/{i}")[HISTORY:] for i in range(CHAINS)]
    chosen = routed(target, chains, device)
    return [
        Touched(
            n,
            independent_touched(experts, n),
            expected_touched(recipe, experts, n),
            distinct(chosen, experts.count, n),
            experts.per_token,
        )
        for n in range(1, MOST_TOKENS + 1)
    ]


def touched_keys(counts: Sequence[Touched]) -> dict[str, object]:
    """Config keys of what was measured: none for a dense target, else the distinct experts of 1, 2, … neighbours."""
    return {"experts_touched": [round(one.measured, 4) for one in counts]} if counts else {}


@torch.inference_mode()
def routed(target: TargetCheckpoint, texts: list[list[int]], device: str) -> Tensor:
    """The experts that the reference engine's router chooses, int64 [texts, layers, tokens, k] on the CPU. All texts
    are of one length, and go through the target together.
    """
    tokens = torch.tensor(texts, device=device)
    engine = ReferenceEngine(target, None, max_batch=len(texts), max_positions=tokens.shape[1], device=device)
    assert isinstance(engine.model, GptOssTarget)
    positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    engine.model.forward(slice(0, len(texts)), tokens, positions, ())
    return engine.model.chosen.transpose(0, 1).cpu()


def distinct(chosen: Tensor, count: int, tokens: int) -> float:
    """Mean number of distinct experts, of `count`, in every run of `tokens` neighbours; `chosen` [..., T, k]."""
    marks = torch.zeros(*chosen.shape[:-1], count, dtype=torch.bool).scatter_(-1, chosen, True)
    runs = marks.unfold(-2, tokens, 1).any(dim=-1)
    return float(runs.sum(dim=-1).double().mean())
