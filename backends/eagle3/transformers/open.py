"""Load a pair into transformers: options, the target as `AutoModelForCausalLM` loads it, checks before, and facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
import transformers

from specgate.backends.eagle3.lib.hf_write import rope_keys
from specgate.backends.eagle3.lib.layout import draft_details
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.playback import details_of
from specgate.backends.eagle3.lib.refusals import refuse_pairs
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.reference.drafters import StandIn
from specgate.backends.eagle3.reference.facts import not_the_pairs
from specgate.backends.eagle3.reference.open import DTYPES, own_draft, pick_device, what_drafts
from specgate.backends.eagle3.transformers.engine import TransformersEngine
from specgate.backends.eagle3.transformers.target import Sizes, TransformersTarget
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.geometry import DraftGeometry
from specgate.checkpoints.hf.any_target import AnyTarget, read_any_target
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.planted import from_seed
from specgate.contract import EngineFacts, EngineIdentity, PairRef, Traffic
from specgate.contract.protocols import OpenRequest
from specgate.contract.protocols.option_values import build_of, choice
from specgate.contract.tape import Tape
from specgate.errors import CheckpointError, SpecgateError, UsageError

Attention = Literal["sdpa", "eager"]
DEVICES: Final = ("auto", "cpu", "cuda")
OF_THE_LOOP: Final = ("capture", "drafter", "spec_config", "tape")
"""Options that the loop has with the reference engine in common."""
KNOWN: Final = ("device", "attention", "prefill_rows", "build", *OF_THE_LOOP)


@dataclass(frozen=True, slots=True)
class Options:
    """The options, as docs/engines.md explains them.

    `attention`: None for what transformers takes for this model. `prefill_rows`: rows of a prompt in one pass; None for
    the whole prompt, where its masks stay small.
    """

    device: str = "auto"
    attention: Attention | None = None
    prefill_rows: int | None = None
    build: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Options:
        """Parse the options. Raises UsageError for unknown and bad ones."""
        if unknown := [key for key in raw if key not in KNOWN]:
            hint = f"the back end transformers knows: {', '.join(KNOWN)}"
            raise UsageError(f"option {', '.join(unknown)}: not known", hint=hint)
        return cls(
            device=choice(raw, "device", DEVICES),
            attention=attention_of(raw["attention"]) if "attention" in raw else None,
            prefill_rows=rows_of(raw["prefill_rows"]) if "prefill_rows" in raw else None,
            build=build_of(raw["build"]) if "build" in raw else None,
        )


def attention_of(text: str) -> Attention:
    for known in get_args(Attention):
        if text == known:
            return "eager" if known == "eager" else "sdpa"
    raise UsageError(
        f"option attention = {text!r}",
        hint="sdpa or eager: other kernels of transformers take no mask for slots at different positions",
    )


def rows_of(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"option prefill_rows = {text!r}: a number of rows, 1 or more, is needed")
    return int(text)


SHOWN = 5
"""Names of tensors in one message."""
LONGEST = 300
"""Characters of a message of transformers."""


def model_config(folder: Path, rope: Mapping[str, float | str] | None) -> Any:
    """The model's config, of transformers' class. `rope` replaces the RoPE scaling, as `eagle3.pair.load_target` says.

    Raises CheckpointError for a config that transformers does not take; with `rope`, for one that specgate cannot read.
    """
    with refusals(folder):
        if rope is None:
            return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = read_config(folder)
        geometry = target_geometry(config, rope)
        values = {k: v for k, v in config.values.items() if k not in ("rope_scaling", "rope_parameters", "rope_theta")}
        values |= {**rope_keys(geometry.rope), "max_position_embeddings": geometry.max_positions}
        return transformers.AutoConfig.for_model(**json.loads(json.dumps(values)))


def load_model(
    folder: Path, config: Any, dtype: torch.dtype, device: str, attention: Attention | None
) -> tuple[Any, tuple[str, ...]]:
    """(the model, on `device` and ready to decode; warnings about its checkpoint).

    transformers makes up random weights for what a checkpoint lacks. Here that is refused.

    Raises CheckpointError for a checkpoint that does not fit its config, or that transformers cannot load.
    EnvironmentRefused: it does not fit into memory.
    """
    transformers.utils.logging.disable_progress_bar()
    with refusing_overflow(f"{folder}: weights", hint="a smaller target or a device with more memory is needed"):
        with refusals(folder):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        for kind in ("missing_keys", "mismatched_keys"):
            if names := sorted(map(str, info.get(kind) or ())):
                raise CheckpointError(
                    f"{folder}: {kind.partition('_')[0]} tensors: {listed(names)}",
                    hint="config and weights must be of one model: transformers would make up random ones",
                )
        return model.to(device).eval(), left_over(folder, info)


def left_over(folder: Path, info: Mapping[str, Any]) -> tuple[str, ...]:
    names = sorted(map(str, info.get("unexpected_keys") or ()))
    return (f"{folder.name}: transformers leaves tensors unused: {listed(names)}",) if names else ()


def listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Turn whatever transformers raises over a checkpoint into CheckpointError; exhausted memory passes."""
    try:
        yield
    except (SpecgateError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise CheckpointError(
            f"{folder}: transformers {transformers.__version__} cannot load it: {reason}",
            hint="a causal language model of an architecture that this version has, without code of its own",
        ) from error


def engine_facts(
    model: Any,
    pair: PairRef,
    sizes: AnyTarget,
    options: Options,
    drafts: DraftCheckpoint | StandIn | None,
    tape: Tape | None,
    *,
    dtype: torch.dtype,
    device: str,
    max_positions: int,
    prefill_rows: int,
    target_sha256: str,
    warnings: tuple[str, ...],
) -> EngineFacts:
    """The facts. `tape` is the source of the accept counts where these are forced."""
    draft = drafts if isinstance(drafts, DraftCheckpoint) else None
    details: dict[str, str | int | float] = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": type(model).__name__,
        "prefill": f"at most {prefill_rows} rows a pass",
    }
    if draft is not None:
        details |= draft_details(draft.geometry)
    elif isinstance(drafts, str):
        details["drafter"] = drafts
    details |= details_of(tape)
    return EngineFacts(
        backend="transformers",
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=name_of(dtype),
        vocab=sizes.vocab,
        max_positions=max_positions,
        eos_token_ids=sizes.eos_token_ids,
        target_sha256=target_sha256,
        draft_sha256=draft.sha256 if draft else None,
        capture_rule=draft.capture.rule if draft else None,
        has_draft=drafts is not None,
        details=details,
        acceptance="forced" if tape else "stand-in" if isinstance(drafts, str) else None,
        tape_sha256=tape.sha256 if tape else None,
        traffic=traffic_of(pair, draft.geometry if draft else None, dtype),
        engine_version=transformers.__version__,
        warnings=(*warnings, *(draft.warnings if draft else ()), *not_the_pairs(drafts, tape)),
        identity=identity_of(model, options, dtype),
    )


def identity_of(model: Any, options: Options, dtype: torch.dtype) -> EngineIdentity:
    """Return the version of transformers and the model's settings. It captures no CUDA graphs here."""
    config = model.config
    experts = getattr(config, "_experts_implementation", None) if has_experts(config) else None
    quantized = getattr(config, "quantization_config", None)
    method = quantized.get("quant_method") if isinstance(quantized, dict) else getattr(quantized, "quant_method", None)
    return EngineIdentity(
        engine="transformers",
        version=transformers.__version__,
        build=options.build,
        told_by="option" if options.build else None,
        settings={
            "attention": str(config._attn_implementation),
            "moe": str(experts or "none"),
            "cuda_graphs": "none",
            "dtype": name_of(dtype),
            "quantization": str(getattr(method, "value", method) or "none"),
            "kv_cache_dtype": name_of(dtype),
        },
    )


def has_experts(config: Any) -> bool:
    text = config.get_text_config(decoder=True)
    return any(getattr(text, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts"))


def traffic_of(pair: PairRef, draft: DraftGeometry | None, dtype: torch.dtype) -> Traffic | None:
    """Return the memory traffic of a pass, if the target is one that specgate's own engines know."""
    try:
        return pair_traffic(target_geometry(read_config(pair.target), pair.rope), draft, dtype)
    except CheckpointError:
        return None


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_engine(request: OpenRequest) -> TransformersEngine:
    """Load `request.pair`. Options: as `Options` has them, and those of the reference engine's loop.

    Raises UsageError for options, draft lengths, contexts and pairs that make no sense here, CheckpointError for a bad
    pair, EnvironmentRefused where it does not fit into memory, BackendError for a missing draft.
    """
    options, pair = Options.parse(request.options), request.pair
    device = pick_device(options.device)
    refuse_pairs(request.options, "transformers", request.sampling)
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
