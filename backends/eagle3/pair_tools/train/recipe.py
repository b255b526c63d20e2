"""Everything that can be chosen for a training run."""

from __future__ import annotations

from dataclasses import dataclass, field

from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Strand:
    """One kind of training sequence: `length` tokens long, drawn with a probability proportional to `share`.

    With `own_tokens` = 0 it is plain text. Otherwise its last `own_tokens` tokens are the target's greedy continuation:
    `sequences` of them are generated beforehand, and only the continuation is learned from. `yarn` scales the target's
    RoPE by that factor.
    """

    length: int
    share: float
    own_tokens: int = 0
    sequences: int = 0
    yarn: float | None = None

    @property
    def prompt(self) -> int:
        return self.length - self.own_tokens


SHORT = (
    Strand(1024, 0.40),
    Strand(512, 0.42, own_tokens=192, sequences=40_000),
    Strand(2048, 0.08, own_tokens=192, sequences=3_000),
)
LONG = (
    Strand(8192, 0.03),
    Strand(8192, 0.02, own_tokens=192, sequences=400),
    Strand(16384, 0.02, yarn=4.0),
    Strand(16384, 0.03, own_tokens=192, sequences=250, yarn=4.0),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A training run of `steps` optimiser steps, or as many as fit into `minutes`. Exactly one of the two is set.

    Batches have `batch_tokens` tokens, and the draft sees sequences in pieces of `piece` tokens. The draft is unrolled
    over `unroll` steps (training-time test), and the loss of step j is weighted `decay`**j. Labels are softmax(logits /
    `label_temperature`). Continuations in which more than `most_repeated` of the 8-grams repeat are dropped.

    `matrix_rate` (Muon) and `other_rate` (AdamW: LM head and norms) are peak learning rates, reached after `warmup`
    steps.

    Raises UsageError for a run without a length and for sequences that fit neither pieces nor batches.
    """

    draft_vocab: int = 10_240
    window: int | None = 512
    intermediate: int = 2_048
    steps: int | None = None
    minutes: float | None = None
    strands: tuple[Strand, ...] = field(default=SHORT)
    batch_tokens: int = 32_768
    piece: int = 1_024
    unroll: int = 5
    decay: float = 0.9
    label_temperature: float = 1.0
    most_repeated: float = 0.85
    matrix_rate: float = 8e-3
    other_rate: float = 2e-3
    warmup: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise UsageError("the length of the training is not clear", hint="give either --steps or --minutes")
        for strand in self.strands:
            if strand.length > self.piece and strand.length % self.piece:
                raise UsageError(f"sequences of {strand.length} tokens", hint=f"use a multiple of {self.piece}")
            if strand.length > self.batch_tokens:
                raise UsageError(f"sequences of {strand.length} tokens in batches of {self.batch_tokens}")
