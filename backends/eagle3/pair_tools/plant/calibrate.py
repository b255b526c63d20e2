"""Find the signal strength at which a wanted share of the target's tokens are the planted ones.

The signal (λ) affects the LM head alone. So one forward pass over a text gives its last hidden states, and every
strength can be tried on them. For each state, find the strength from which on its planted successor has the highest
logit. A quantile of these thresholds is the strength to choose.

The first texts follow the planted rule with the wanted probability. Later rounds use the pair's own greedy text. That
matters because unplanted tokens are not drawn uniformly in it: some are favoured by a whole context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import weight_bytes
from specgate.backends.eagle3.lib.pair import TargetCheckpoint, stored
from specgate.backends.eagle3.lib.planted.recipe import DEPTH, Recipe
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder, release
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.backends.eagle3.pair_tools.plant.orbit import Orbit
from specgate.backends.eagle3.pair_tools.plant.thresholds import STRONGEST, thresholds
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.open import DTYPES
from specgate.backends.eagle3.reference.ops import rms_norm
from specgate.backends.eagle3.reference.target import TorchTarget
from specgate.checkpoints.heads.tensors import draft_tensors
from specgate.contract import Budget, PairRef, Role

TEXTS: Final = 8
WALK: Final = 512
"""Each round reads the last `WALK` hidden states of `TEXTS` texts; with experts, half of those of twice as many."""
REFINEMENTS: Final = 3
"""Rounds on the pair's own text, each after other prompts. The result comes from the last two.

A share of 0.8 is then known to about half a percentage point.
"""
OWN_TEXT_SPEC: Final = 2
"""Length of the chains with which own text is decoded. The text does not depend on it."""
CHUNK: Final = 1024
"""Rows of a pass of a dense target."""
PASS: Final = 65536
"""Rows of a pass with experts, in all texts together. Each pass decodes every expert that it reaches once."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """`recipe` with the signal found. With it, a `share` of the `states` examined gives the planted token."""

    recipe: Recipe
    share: float
    states: int


def calibrate(recipe: Recipe, shape: PairGeometry, share: float, context: int, decoder: Decoder) -> Calibrated:
    """Choose the signal for `share` after prompts of `context` tokens. Raises OutOfReach where no signal is enough.

    `decoder` decodes the pair's own text. Hidden states are the reference engine's, in the same arithmetic.
    """
    orbit = Orbit(recipe, tables(recipe, shape.target.vocab))
    texts, walk = amount(shape)

    def walks(turn: int) -> list[list[int]]:
        return [orbit.text(context, walk, share, f"calibrate/{recipe.seed}/{turn}/{i}") for i in range(texts)]

    rounds = [needed_signals(recipe, shape, walks(0), decoder)]
    for turn in range(1, REFINEMENTS + 1):
        recipe = with_signal(recipe, rounds[-1], share)
        prompts = [text[:context] for text in walks(turn)]
        rounds.append(needed_signals(recipe, shape, own_texts(recipe, shape, prompts, decoder), decoder))
    needs = torch.cat((rounds[1:] or rounds)[-2:])
    recipe = with_signal(recipe, needs, share)
    return Calibrated(recipe, float((needs <= recipe.signal).double().mean()), len(needs))


def amount(shape: PairGeometry) -> tuple[int, int]:
    """(texts, hidden states to read of each). With experts, a pass unpacks each that it touches, so wider is faster."""
    return (2 * TEXTS, WALK // 2) if shape.target.experts else (TEXTS, WALK)


def with_signal(recipe: Recipe, needs: Tensor, share: float) -> Recipe:
    """Return the recipe with the signal that is enough for a `share` of the states. `needs` [T]: each state's least
    signal.
    """
    reachable = float((needs < torch.inf).double().mean())
    if share >= reachable:
        raise OutOfReach(reachable)
    return replace(recipe, signal=round(float(needs.quantile(share)), 6))


class OutOfReach(ValueError):
    """Even the signal `STRONGEST` plants fewer tokens than wanted: only a share of `reachable`."""

    def __init__(self, reachable: float) -> None:
        super().__init__(f"a signal of {STRONGEST:g} gives {reachable:.1%}")
        self.reachable = reachable


def needed_signals(recipe: Recipe, shape: PairGeometry, texts: Sequence[Sequence[int]], decoder: Decoder) -> Tensor:
    """The signal that each of the last states of each text needs, float32 [T].

    It is infinite where `STRONGEST` is too weak.
    """
    integers = tables(recipe, shape.target.vocab)
    orbit = Orbit(recipe, integers)
    _, walk = amount(shape)
    planted = [orbit.planted_row(text, at) for text in texts for at in range(len(text) - 1 - walk, len(text) - 1)]
    release(decoder.device)
    target = made_target(recipe, shape, DTYPES[decoder.dtype], decoder.device)
    normed = last_states(target, texts, walk, decoder.device)
    return thresholds(recipe, shape.target, integers, normed, torch.tensor(planted, device=decoder.device))


def own_texts(recipe: Recipe, shape: PairGeometry, prompts: Sequence[list[int]], decoder: Decoder) -> list[list[int]]:
    """Each prompt with the tokens that the pair greedily generates after it, as many as are read of it."""
    _, walk = amount(shape)
    longest = max(map(len, prompts)) + walk + DEPTH + 3
    with TemporaryDirectory() as folder:
        pair = from_seed(recipe, shape, Path(folder))
        with decoder.opened(pair, batch=len(prompts), positions=longest, k=OWN_TEXT_SPEC) as engine:
            engine.prefill(prompts, draft=True)
            decoded = engine.decode(Role(OWN_TEXT_SPEC), Budget(new_tokens=walk), ())
    return [[*prompt, *tokens] for prompt, tokens in zip(prompts, decoded.tokens, strict=True)]


def from_seed(recipe: Recipe, shape: PairGeometry, folder: Path) -> PairRef:
    """The pair, written into `folder` as configs alone: an engine makes its weights when it loads it."""
    pair = PairRef("planted", folder / "target", draft := folder / "draft", "planted")
    write_target(pair.target, shape.target, recipe, {}, written=False)
    write_draft(draft, shape, recipe, {}, written=False, target_sha256="")
    return pair


def calibration_bytes(shape: PairGeometry, context: int, dtype: torch.dtype) -> int:
    """Bytes that calibration needs beside the target's weights: the draft's weights and the KV caches of all texts."""
    texts, walk = amount(shape)
    positions = texts * (context + walk)
    caches = sum(2 * n * g.kv_heads * g.head_dim for n, g in ((shape.target.layers, shape.target), (1, shape.draft)))
    return weight_bytes(draft_tensors(shape.draft, False, False), dtype) + positions * caches * dtype.itemsize


def made_target(recipe: Recipe, shape: PairGeometry, dtype: torch.dtype, device: str) -> TargetCheckpoint:
    g = shape.target
    planted = PlantedTarget(recipe, g, tables(recipe, g.vocab), torch.device(device))
    made = {name: stored(planted.make(name, want.shape), dtype) for name, want in target_tensors(g).items()}
    return TargetCheckpoint(g, made, "", Path())


@torch.inference_mode()
def last_states(checkpoint: TargetCheckpoint, texts: Sequence[Sequence[int]], walk: int, device: str) -> Tensor:
    """Normed hidden states of the `walk` tokens of each text before its last: [len(texts) · walk, H], float32.

    With experts, the texts, which must then be of one length, go through the target together.
    """
    longest, g = max(map(len, texts)), checkpoint.geometry
    together = len(texts) if g.experts else 1
    rows = max(1, PASS // together) if g.experts else CHUNK
    engine = ReferenceEngine(checkpoint, None, max_batch=together, max_positions=longest, device=device)
    model = engine.model
    assert isinstance(model, TorchTarget)
    states = []
    for start in range(0, len(texts), together):
        tokens = torch.tensor([text[:-1] for text in texts[start : start + together]], device=device)
        positions = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
        streams = [
            model.forward(slice(0, together), t, p, ())[0][:, -walk:]
            for t, p in zip(torch.split(tokens, rows, 1), torch.split(positions, rows, 1), strict=True)
        ]
        last = torch.cat(streams, dim=1)[:, -walk:].flatten(0, 1)
        states.append(rms_norm(last, model.weights.norm, g.rms_eps).float())
    return torch.cat(states)
