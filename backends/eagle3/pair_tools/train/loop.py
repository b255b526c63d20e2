"""The training loop, and what the draft learns: soft labels at every step of the unrolled chain."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.pair_tools.train.data import Batch
from specgate.backends.eagle3.pair_tools.train.draft import TrainableDraft
from specgate.backends.eagle3.pair_tools.train.recipe import Recipe
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget, upto
from specgate.backends.eagle3.pair_tools.train.unroll import ChainStep, chain_step, unroll
from specgate.backends.eagle3.reference.target import RopeTable, target_logits


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of row q of any step: the target's distribution of the token at position q + 2.

    `logits` [B, T, W]: the target's logits at position q + 1, for the draft vocabulary. `best` [B, T]: their argmax as
    a draft id, −1 if the target prefers a token outside the draft vocabulary. `counted` bool [B, T]: rows to learn
    from.
    """

    logits: Tensor
    best: Tensor
    counted: Tensor

    @property
    def coverage(self) -> Tensor:
        """Share of the counted labels that lie inside the draft vocabulary."""
        return (self.counted & (self.best >= 0)).sum() / self.counted.sum()


def labels_from(target_logits: Tensor, target_ids: Tensor, temperature: float, counted: Tensor) -> Labels:
    """Labels from the target's logits [B, T, V] over its whole vocabulary. `target_ids` [W] are the draft vocabulary.

    The last row of a sequence is never counted, because its label lies outside. A `temperature` below 1 sharpens the
    labels towards the target's greedy token.
    """
    within = target_logits[..., target_ids]
    top = within.max(dim=-1)
    covered = top.values >= target_logits.max(dim=-1).values
    best = torch.where(covered, top.indices, -1)
    inside = torch.arange(counted.shape[1], device=counted.device) < counted.shape[1] - 1
    return Labels(within.roll(-1, dims=1) / temperature, best.roll(-1, dims=1), counted & inside)


def step_loss(logits: Tensor, label_logits: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, argmax [B, T] of the draft) of one step.

    The loss is the mean cross entropy (nats, float32) of `logits` [B, T, W] against softmax(label_logits), over the
    rows where `counted` [B, T] is true.
    """
    loss = -(label_logits.float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
    return (loss * counted).sum() / counted.sum().clamp(min=1), logits.argmax(-1)


def survival(correct: Tensor, alive: Tensor) -> Tensor:
    """Mark the chains that are still right after a step, bool [B, T].

    Row q continues the chain that was right at q − 1 (`alive`), and is right if its own prediction is (`correct`).
    """
    return correct & F.pad(alive[:, :-1], (1, 0))


LOWEST_RATE = 0.02
"""The learning rate at the end, relative to its peak."""
CLIP = 1.0
"""Largest norm of the gradient."""

StepLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The two functions that take nearly all the time, plain or compiled."""

    chain_step: ChainStep = chain_step
    step_loss: StepLoss = step_loss


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures since the last report.

    `loss` (nats) and `survival` are means per step of the chain. Survival is the share of chains whose draft tokens
    were all right so far, with the target's tokens as input. `coverage` is the share of labels inside the draft
    vocabulary.
    """

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
    """Train `draft` in place until the recipe's steps or minutes are over.

    `draft_rows` are the draft's RoPE rows for one piece of a sequence. `report` is called every `report_every` steps
    and at the end.
    """
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
    """The learning rate relative to its peak.

    It rises linearly over `warmup` steps and then falls as a cosine of `progress` (0 … 1) to LOWEST_RATE.
    """
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return min(1.0, (step + 1) / warmup) * (LOWEST_RATE + (1 - LOWEST_RATE) * cosine)


def make_optimisers(draft: TrainableDraft, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between hidden spaces, AdamW for LM head and norms."""
    muon = torch.optim.Muon(
        draft.matrices, lr=recipe.matrix_rate, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(draft.others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def backward(
    target: FrozenTarget, draft: TrainableDraft, batch: Batch, draft_rows: RopeTable, recipe: Recipe, kernels: Kernels
) -> Tensor:
    """Accumulate the gradients of one batch. Returns [losses, survivals, coverage], 2 · unroll + 1 figures."""
    cut = PieceCutter(recipe.piece)
    with torch.no_grad():
        features, stream = target.features_and_stream(batch.tokens, batch.rows)
        position = torch.arange(batch.tokens.shape[1], device=stream.device).expand(batch.tokens.shape)
        # The label of row q is the token at q + 2, so the first row to count is the one two before `learned_from`.
        counted = cut(position >= batch.learned_from - 2)
        logits = target_logits(target.weights, target.geometry, cut(stream))
        labels = labels_from(logits, draft.target_ids, recipe.label_temperature, counted)
    next_tokens = cut(batch.tokens.roll(-1, dims=1))
    loss, figures = chain_loss(target, draft, draft_rows, cut(features), next_tokens, labels, recipe, kernels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return torch.cat((figures, labels.coverage[None]))


@dataclass(frozen=True, slots=True)
class PieceCutter:
    """Cuts long sequences into pieces of `length` for the draft. Shorter sequences stay whole.

    The draft's attention has a window, so it loses little by the cut.
    """

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
