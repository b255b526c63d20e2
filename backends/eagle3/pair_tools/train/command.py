"""A whole training run: from folders and package names to an exported draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.weights import pack_target
from specgate.backends.eagle3.pair_tools.train.data import (
    Corpora,
    Source,
    TextCorpus,
    mixed_batches,
    own_sequences,
    texts,
    token_stream,
)
from specgate.backends.eagle3.pair_tools.train.draft import (
    TrainableDraft,
    channel_spread,
    coverage,
    draft_vocabulary,
    export,
    preferred_counts,
)
from specgate.backends.eagle3.pair_tools.train.loop import Kernels, Progress, step_loss, train
from specgate.backends.eagle3.pair_tools.train.recipe import Recipe, Strand
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget, decoder_layer, rope_rows_upto
from specgate.backends.eagle3.pair_tools.train.unroll import chain_step
from specgate.backends.eagle3.reference.target import RopeTable
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.hf.target import require_dense, target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

COUNTED_BATCHES = 100
"""Batches over which the target's preferred tokens are counted, to choose the draft vocabulary."""
DRAFT_ROPE_BASE = 10_000.0
POSITIONS_PER_TARGET_POSITION = 8
"""How many positions a windowed draft claims per position of the target.

Such a draft sees only relative positions within its window. So it also serves the contexts that the target reaches by
RoPE scaling.
"""


def train_draft(
    target_folder: Path,
    out: Path,
    corpora: Sequence[TextCorpus],
    recipe: Recipe,
    device: str,
    say: Callable[[str], None],
    start: Path | None = None,
) -> None:
    """Train a draft of the target in `target_folder` on the `train` pool of `corpora`, and export it to `out`.

    `start` is a draft to continue from; its sizes, vocabulary and auxiliary hidden-state layers are kept. Computes in
    bfloat16 on CUDA and in float32 elsewhere. Raises UsageError and CheckpointError.
    """
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = read_config(target_folder)
    require_dense(target_geometry(config), config.file, "the training")
    checkpoint = load_target(target_folder, dtype, device)
    previous = None if start is None else load_draft(start, checkpoint.geometry, torch.float32, device)
    boundaries = previous.capture.boundaries if previous else default_boundaries(checkpoint.geometry.layers)
    plain = FrozenTarget(pack_target(checkpoint), checkpoint.geometry, boundaries)
    compiled = replace(plain, layer=fast(decoder_layer, device))
    kernels = Kernels(fast(chain_step, device), fast(step_loss, device))

    streams = tokenise(target_folder, corpora, checkpoint.geometry, device, say)
    sources = [make_source(plain, target_folder, streams, strand, recipe, device, say) for strand in recipe.strands]
    scale = calibrate(plain, sources, recipe.seed)
    if previous is None:
        target_ids = choose_vocabulary(plain, sources, recipe, say)
        geometry = draft_geometry(checkpoint.geometry, recipe, len(boundaries))
        draft = TrainableDraft.initialise(geometry, plain.weights, target_ids, scale, recipe.seed)
    else:
        draft = TrainableDraft.resume(previous, scale)
    rows = rope_rows_upto(draft.geometry.rope, recipe.piece, device)

    def report(progress: Progress) -> None:
        say(str(progress))

    train(compiled, draft, mixed_batches(sources, recipe.seed), rows, recipe, report, kernels=kernels)
    export(draft, out, checkpoint, boundaries)


def default_boundaries(layers: int) -> tuple[int, int, int]:
    """The boundaries that engines use where a config names none: 2, n // 2 and n − 3.

    A target of fewer than 7 layers gets 1, n // 2 and n − 1. Raises UsageError where the three would not be distinct.
    """
    low, middle, high = (2, layers // 2, layers - 3) if layers >= 7 else (1, layers // 2, layers - 1)
    if not low < middle < high:
        raise UsageError(f"the target has {layers} layers", hint="an EAGLE-3 draft reads three: at least 4 are needed")
    return low, middle, high


def calibrate(target: FrozenTarget, sources: Sequence[Source], seed: int) -> Tensor:
    """The spread of every channel of the auxiliary hidden states, [n·H], over one batch."""
    sample = next(mixed_batches(sources, seed + 2))
    features, _ = target.features_and_stream(sample.tokens, sample.rows)
    return channel_spread(features)


def choose_vocabulary(
    target: FrozenTarget, sources: Sequence[Source], recipe: Recipe, say: Callable[[str], None]
) -> Tensor:
    """The target ids that the draft can propose, int64 [W], ascending: those that the target prefers most often."""
    counts = preferred_counts(target, mixed_batches(sources, recipe.seed + 1), COUNTED_BATCHES)
    target_ids = draft_vocabulary(counts, recipe.draft_vocab)
    say(f"draft vocabulary: {len(target_ids)} tokens, {coverage(counts, target_ids):.2%} of what the target prefers")
    return target_ids


def draft_geometry(target: TargetGeometry, recipe: Recipe, features: int) -> DraftGeometry:
    """The plain EAGLE-3 layout with the target's attention sizes."""
    return DraftGeometry(
        hidden=target.hidden,
        target_hidden=target.hidden,
        features=features,
        intermediate=recipe.intermediate,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab=target.vocab,
        draft_vocab=recipe.draft_vocab,
        rms_eps=target.rms_eps,
        rope=RopeSpec("default", DRAFT_ROPE_BASE, target.head_dim),
        max_positions=target.max_positions * (POSITIONS_PER_TARGET_POSITION if recipe.window else 1),
        window=recipe.window,
    )


def tokenise(
    target_folder: Path, corpora: Sequence[TextCorpus], target: TargetGeometry, device: str, say: Callable[[str], None]
) -> Corpora:
    """The `train` pool of every corpus as a token stream on `device`; the target's EOS follows each document."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    streams: list[Tensor] = []
    for corpus in corpora:
        stream = token_stream(texts(corpus, "train"), tokenizer, target.eos_token_ids[0])
        say(f"corpus {corpus.name}: {len(stream) / 1e6:.2f} M tokens, share {corpus.share:g}")
        streams.append(stream.to(device))
    return Corpora(tuple(streams), tuple(c.share for c in corpora))


def make_source(
    target: FrozenTarget,
    target_folder: Path,
    corpora: Corpora,
    strand: Strand,
    recipe: Recipe,
    device: str,
    say: Callable[[str], None],
) -> Source:
    """The source of batches for one strand. The target's own continuations are generated here."""
    rows = target_rows(target_folder, target.geometry, strand, device)
    pool: Corpora | Tensor = corpora
    if strand.own_tokens:
        pool = own_sequences(target, corpora, strand, rows, recipe.most_repeated, recipe.seed + strand.length)
        say(f"own text of {strand.length} tokens: {len(pool)} of {strand.sequences} sequences kept")
        if not len(pool):
            raise UsageError(f"every continuation repeats more than {recipe.most_repeated:.0%} of its 8-grams")
    learned_from = strand.prompt if strand.own_tokens else 0
    count = recipe.batch_tokens // strand.length
    return Source(strand.share, pool, count, strand.length, learned_from, rows)


def target_rows(folder: Path, target: TargetGeometry, strand: Strand, device: str) -> RopeTable:
    """The target's RoPE rows for the positions of `strand`, with YaRN where the strand asks for it."""
    if strand.yarn is None:
        return rope_rows_upto(target.rope, strand.length, device)
    stretched = target_geometry(read_config(folder), {"rope_type": "yarn", "factor": strand.yarn})
    return rope_rows_upto(stretched.rope, strand.length, device)


def fast(function: Callable[P, R], device: str) -> Callable[P, R]:
    """`function`, compiled for CUDA. Elsewhere it is returned as it is, because compiling takes too long.

    A run has few shapes, and all are static.
    """
    if device != "cuda":
        return function
    # There is a variant per strand length. The chain step also has one per step of the chain.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(function, dynamic=False)
