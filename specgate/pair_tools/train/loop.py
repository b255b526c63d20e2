"""The training loop: one optimiser step per batch of sequences, the draft unrolled as an engine unrolls it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.reference.target import RopeTable, target_logits
from specgate.pair_tools.train.data import Batch
from specgate.pair_tools.train.draft import TrainableDraft
from specgate.pair_tools.train.objective import Labels, labels_from, step_loss, survival
from specgate.pair_tools.train.recipe import Recipe
from specgate.pair_tools.train.target import FrozenTarget, upto
from specgate.pair_tools.train.unroll import ChainStep, chain_step, unroll

LOWEST_RATE = 0.02
CLIP = 1.0

StepLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The two functions that take the time, as they are or compiled."""

    chain_step: ChainStep = chain_step
    step_loss: StepLoss = step_loss


@dataclass(frozen=True, slots=True)
class Progress:
    """Means since the last report: `loss` (nats) and `survival` (of teacher-forced chains) per step of the chain."""

    step: int
    seconds: float
    tokens: int
    loss: tuple[float, ...]
    survival: tuple[float, ...]
    coverage: float

    def __str__(self) -> str:
        losses = " ".join(f"{x:.3f}" for x in self.loss)
        alive = " ".join(f"{x:.3f}" for x in self.survival)
        return (
            f"step {self.step:6d}  {self.seconds:7.1f} s  {self.tokens / 1e6:7.1f} M tokens  "
            f"loss {losses}  alive {alive}  covered {self.coverage:.4f}"
        )


def train(
    target: FrozenTarget,
    draft: TrainableDraft,
    batches: Iterator[Batch],
    draft_rows: RopeTable,
    recipe: Recipe,
    report: Callable[[Progress], None],
    report_every: int = 100,
    kernels: Kernels | None = None,
) -> None:
    """Train `draft` in place until the recipe's steps or minutes are over; `draft_rows` are RoPE rows of one piece."""
    optimisers = make_optimisers(draft, recipe)
    groups = [(group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups]
    began, step, tokens, progress = time.monotonic(), 0, 0, 0.0
    figures: list[Tensor] = []
    while progress < 1.0:
        for group, peak in groups:
            group["lr"] = peak * rate_factor(step, progress, recipe.warmup)
        batch = next(batches)
        figures.append(backward(target, draft, batch, draft_rows, recipe, kernels or Kernels()))
        torch.nn.utils.clip_grad_norm_(draft.tensors.values(), CLIP)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step, tokens = step + 1, tokens + batch.tokens.numel()
        seconds = time.monotonic() - began
        progress = step / recipe.steps if recipe.steps else seconds / (60 * (recipe.minutes or 0.0))
        if step % report_every == 0 or progress >= 1.0:
            means = torch.stack(figures).mean(dim=0).tolist()
            figures.clear()
            k = recipe.unroll
            report(Progress(step, seconds, tokens, tuple(means[:k]), tuple(means[k : 2 * k]), means[-1]))


def rate_factor(step: int, progress: float, warmup: int) -> float:
    """Linear warm-up over `warmup` steps, then a cosine in `progress` (0 … 1) down to LOWEST_RATE."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return min(1.0, (step + 1) / warmup) * (LOWEST_RATE + (1 - LOWEST_RATE) * cosine)


def make_optimisers(draft: TrainableDraft, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between hidden spaces, AdamW for the head and the norms."""
    muon = torch.optim.Muon(
        draft.matrices, lr=recipe.matrix_rate, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(draft.others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def backward(
    target: FrozenTarget, draft: TrainableDraft, batch: Batch, draft_rows: RopeTable, recipe: Recipe, kernels: Kernels
) -> Tensor:
    """Accumulate the gradients of one batch; return [losses, survivals, coverage], 2·unroll + 1 figures."""
    cut = PieceCutter(recipe.piece)
    with torch.no_grad():
        features, stream = target.features_and_stream(batch.tokens, batch.rows)
        position = torch.arange(batch.tokens.shape[1], device=stream.device).expand(batch.tokens.shape)
        # Row q is labelled with the token after next, so the row before the last of the context is the first to count.
        counted = cut(position >= batch.learned_from - 2)
        logits = target_logits(target.weights, target.geometry, cut(stream))
        labels = labels_from(logits, draft.target_ids, recipe.label_temperature, counted)
    next_tokens = cut(batch.tokens.roll(-1, dims=1))
    loss, figures = chain_loss(target, draft, draft_rows, cut(features), next_tokens, labels, recipe, kernels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return torch.cat((figures, labels.coverage[None]))


@dataclass(frozen=True, slots=True)
class PieceCutter:
    """Long sequences are cut for the draft, whose attention has a window anyway; shorter ones stay whole."""

    length: int

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, …] → [B·T/length, length, …]."""
        return x.reshape(-1, min(self.length, x.shape[1]), *x.shape[2:])


def chain_loss(
    target: FrozenTarget,
    draft: TrainableDraft,
    draft_rows: RopeTable,
    features: Tensor,
    next_tokens: Tensor,
    labels: Labels,
    recipe: Recipe,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:
    """The weighted loss of the unrolled chain, and [losses, survivals] of its steps, detached."""
    weights = draft.weights(target.weights)
    rows = upto(draft_rows, features.shape[1])
    position = torch.arange(features.shape[1], device=features.device)
    total = torch.zeros((), device=features.device)
    losses, survivals, alive = [], [], torch.ones_like(labels.counted)
    chain = unroll(weights, draft.geometry, rows, features, next_tokens, recipe.unroll, kernels.chain_step)
    for j, logits in enumerate(chain):
        counted = labels.counted & (position >= j)
        loss, guess = kernels.step_loss(logits, labels.logits, counted & (labels.best >= 0))
        total = total + recipe.decay**j * loss
        alive = survival(guess == labels.best, alive) if j else guess == labels.best
        losses.append(loss.detach())
        survivals.append((alive & counted).sum() / counted.sum().clamp(min=1))
    return total, torch.stack(losses + survivals)
