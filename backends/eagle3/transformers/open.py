"""Load a pair into transformers, after checking that this back end can do what the plan asks for."""

from __future__ import annotations

import torch

from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.reference.drafters import StandIn
from specgate.backends.eagle3.reference.open import DTYPES, own_draft, pick_device, what_drafts
from specgate.backends.eagle3.transformers.engine import TransformersEngine
from specgate.backends.eagle3.transformers.facts import engine_facts
from specgate.backends.eagle3.transformers.loading import load_model, model_config
from specgate.backends.eagle3.transformers.options import Options
from specgate.backends.eagle3.transformers.target import Sizes, TransformersTarget
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.hf.any_target import read_any_target
from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.planted import from_seed
from specgate.contract.protocols import OpenRequest
from specgate.errors import CheckpointError, UsageError


def open_engine(request: OpenRequest) -> TransformersEngine:
    """Load `request.pair`. Options: as `Options` has them, and those of the reference engine's loop.

    Raises UsageError for options, draft lengths, contexts and pairs that make no sense here, CheckpointError for a bad
    pair, EnvironmentRefused where it does not fit into memory, BackendError for a missing draft.
    """
    options, pair = Options.parse(request.options), request.pair
    device = pick_device(options.device)
    instead, playback = what_drafts(request)
    for folder in (pair.target, *([pair.draft] if pair.draft and request.max_k and not instead else [])):
        if from_seed(read_config(folder)):
            raise UsageError(
                f"{folder}: its weights are made from a seed when specgate's own engines load it",
                hint="transformers needs weights in files: `specgate engine export --format hf` writes them",
            )
    known = read_any_target(pair.target)
    config = model_config(pair.target, pair.rope)
    text, dtype = config.get_text_config(decoder=True), DTYPES[request.dtype]
    stated = text.max_position_embeddings if pair.rope else known.max_positions
    positions = request.max_positions if stated is None else stated
    if request.max_positions > positions:
        raise UsageError(
            f"{pair.target / 'config.json'}: the target has {positions} positions, but the plan needs "
            f"{request.max_positions}",
            hint="choose a shorter context, or give the scenario a rope scaling whose factor covers it",
        )
    sha256 = checkpoint_sha256(pair.target, known.files)
    drafts: DraftCheckpoint | StandIn | None = None
    if request.max_k:
        sizes = Sizes(text.num_hidden_layers, text.hidden_size, known.vocab, positions)
        drafts = instead or own_draft(request, sizes, sha256, dtype, device)
    model, warnings = load_model(pair.target, config, dtype, device, options.attention)
    with refusing_overflow(f"{pair.target}: caches", hint="ask for a shorter context or fewer requests"):
        target = TransformersTarget(
            model,
            known.eos_token_ids,
            max_batch=request.max_batch,
            max_positions=request.max_positions,
            device=device,
            prefill_rows=options.prefill_rows,
        )
        try_a_pass(target, drafts.capture.boundaries if isinstance(drafts, DraftCheckpoint) else (), request.max_batch)
        facts = engine_facts(
            model,
            pair,
            known,
            options,
            drafts,
            playback.tape if playback else None,
            dtype=dtype,
            device=device,
            max_positions=positions,
            prefill_rows=target.prefill_rows,
            target_sha256=sha256,
            warnings=warnings,
        )
        return TransformersEngine(
            target,
            drafts,
            facts,
            max_batch=request.max_batch,
            max_positions=request.max_positions,
            playback=playback,
        )


@torch.inference_mode()
def try_a_pass(target: TransformersTarget, boundaries: tuple[int, ...], batch: int) -> None:
    """Allocate the caches, and see that the model gives what a draft needs. Raises CheckpointError if not."""
    tokens = torch.zeros(batch, 1, dtype=torch.long, device=target.device)
    logits, features = target.forward(slice(0, batch), tokens, tokens, boundaries)
    hidden = target.embed.shape[1]
    shape = None if features is None else tuple(features.shape)
    if logits.shape[:2] != (batch, 1) or (shape is not None and shape != (batch, 1, len(boundaries) * hidden)):
        raise CheckpointError(
            f"{target.model.config.model_type}: logits {tuple(logits.shape)}, hidden states {shape} for {batch} rows "
            f"of {hidden}",
            hint="a decoder with one residual stream of its hidden size is needed",
        )
