"""vLLM: the JSON of `--speculative-config`, and the flags around it (0.25.1, `vllm/config/speculative.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, Kind, dotted, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import (
    Terms,
    after,
    chain,
    default,
    fixed,
    name_of,
    positions,
    take,
)
from specgate.checkpoints.spec_config.formats.draft_folder import AS_THE_DRAFT_SAYS, BOUNDARIES, add_draft
from specgate.checkpoints.spec_config.terms import StatedConfig
from specgate.errors import UsageError
from specgate.files.json_text import shown

SECTION: Final = "--speculative-config"
KEYS: Final[Mapping[str, Kind]] = {
    "num_speculative_tokens": "count", "model": "text", "method": "text", "draft_tensor_parallel_size": "count",
    "quantization": "text", "moe_backend": "text", "attention_backend": "text", "max_model_len": "count",
    "revision": "text", "code_revision": "text", "enforce_eager": "switch", "disable_padded_drafter_batch": "switch",
    "use_local_argmax_reduction": "switch", "use_heterogeneous_vocab": "switch", "prompt_lookup_max": "count",
    "prompt_lookup_min": "count", "parallel_drafting": "switch", "num_speculative_tokens_per_batch_size": "list",
    "suffix_decoding_max_tree_depth": "count", "suffix_decoding_max_cached_requests": "count",
    "suffix_decoding_max_spec_factor": "number", "suffix_decoding_min_token_prob": "number",
    "draft_load_config": "object", "rejection_sample_method": "text", "synthetic_acceptance_rates": "list",
    "synthetic_acceptance_length": "number", "draft_sample_method": "text",
}  # fmt: skip
FLAGS: Final[Mapping[str, tuple[str, Kind]]] = {
    SECTION: ("speculative_config", "object"),
    "-sc": ("speculative_config", "object"),
    "--model": ("target", "text"),
    "--tensor-parallel-size": ("tp", "count"),
    "-tp": ("tp", "count"),
    "--dtype": ("dtype", "text"),
    "--kv-cache-dtype": ("kv_dtype", "text"),
    "--max-model-len": ("max_positions", "text"),
    "--max-num-seqs": ("max_batch", "count"),
    "--enable-prefix-caching": ("prefix_cache", "flag"),
    "--no-enable-prefix-caching": ("prefix_cache", "off"),
    "--enforce-eager": ("eager", "flag"),
}
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "varies", "verification", "draft_sampling", "forced", "draft_positions",
    "draft_quantization", "dtype", "kv_dtype", "tp", "draft_tp", "eager", "prefix_cache", "max_positions", "max_batch",
})  # fmt: skip
VERIFICATION: Final = {"standard": "rejection sampling", "block": "block verification", "synthetic": "forced"}


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, ("--spec",), where)
    notes = tuple(note for note in flags.notes if f"{SECTION}." not in note)
    section = flags.values.get("speculative_config", {})
    assert isinstance(section, Mapping)
    section = {**section, **dict(dotted(argv, SECTION, where))}
    return of(section, Given(flags.values, flags.names, notes), where, after(tuple(argv), "serve"))


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of the JSON of `--speculative-config` alone. Raises UsageError for a value of the wrong type."""
    return of(values, Given({}, {}), where, None)


def of(section: Mapping[str, object], flags: Given, where: str, served: str | None) -> StatedConfig:
    spec = from_mapping(section, KEYS, f"{where}: {SECTION}" if flags.values else where)
    if section and "num_speculative_tokens" not in spec and spec.values.get("method") not in ("mtp", "suffix"):
        raise UsageError(f"{where}: num_speculative_tokens is missing", hint="the number of draft tokens per step")
    terms: Terms = {}
    target = str(flags.values.get("target", served or "")) or None
    draft = str(spec.values["model"]) if "model" in spec else None
    for key in ("tp", "dtype", "kv_dtype", "prefix_cache", "eager"):
        take(terms, flags, key, key)
    take(terms, flags, "max_positions", "max_positions", positions)
    take(terms, flags, "max_batch", "max_batch")
    default(terms, tp=1, dtype="auto", kv_dtype="auto", prefix_cache=True, eager=False)
    if target is not None:
        default(terms, target=name_of(target))
    if not section:
        return StatedConfig("vllm", where, terms, EXPRESSES, flags.notes)
    take(terms, spec, "num_speculative_tokens", "k")
    take(terms, spec, "method", "method")
    take(terms, spec, "model", "draft_model", name_of)
    default(terms, method=guessed_method(draft))
    take(terms, spec, "draft_tensor_parallel_size", "draft_tp")
    default(terms, draft_tp=terms["tp"].value)
    take(terms, spec, "rejection_sample_method", "verification", lambda name: VERIFICATION.get(str(name), name))
    default(terms, verification=VERIFICATION["standard"])
    take(terms, spec, "draft_sample_method", "draft_sampling")
    default(terms, draft_sampling="greedy")
    take(terms, spec, "synthetic_acceptance_length", "forced")
    take(terms, spec, "synthetic_acceptance_rates", "forced", lambda rates: length_of(rates, where))
    default(terms, forced=None)
    take(terms, spec, "num_speculative_tokens_per_batch_size", "varies", lambda rows: f"by batch size: {rows}")
    default(terms, varies="constant")
    take(terms, spec, "max_model_len", "draft_positions")
    take(terms, spec, "quantization", "draft_quantization")
    take(terms, spec, "draft_load_config", "weights", load_format)
    chain(terms)
    fixed(terms, window=AS_THE_DRAFT_SAYS, capture=BOUNDARIES)
    boundaries = add_draft(terms, draft, target, BOUNDARIES)
    return StatedConfig("vllm", where, terms, EXPRESSES, (*flags.notes, *spec.notes), boundaries)


def length_of(rates: object, where: str) -> float:
    """The acceptance length of rates by position, bonus token included. Raises UsageError where they are no rates."""
    numbers = [float(r) for r in rates if is_rate(r)] if isinstance(rates, list | tuple) else []
    if not isinstance(rates, list | tuple) or len(numbers) < len(rates):
        raise UsageError(
            f"{where}: synthetic_acceptance_rates = {shown(rates)}: a list of numbers from 0 to 1 is needed"
        )
    return 1 + sum(numbers)


def is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def load_format(load: object) -> object:
    """Format in which the draft's weights are loaded, such as `dummy`; None if it is not stated."""
    return load.get("load_format") if isinstance(load, Mapping) else None


def guessed_method(draft: str | None) -> str:
    """The method that vLLM takes where none is named: by the draft's name."""
    name = (draft or "").lower()
    return next((m for sign, m in (("eagle-", "eagle"), ("eagle3", "eagle3")) if sign in name), "draft_model")
