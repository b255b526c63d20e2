"""SGLang: `--speculative-…` flags, or these keys in its YAML file (0.5.17: `server_args.py`, `speculative_hook.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, Kind, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import Terms, chain, default, fixed, name_of, take
from specgate.checkpoints.spec_config.formats.draft_folder import NOT_APPLIED, OUTPUTS, add_draft
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError

KEYS: Final[Mapping[str, Kind]] = {
    "speculative_algorithm": "text", "speculative_draft_model_path": "text", "speculative_draft_model": "text",
    "speculative_draft_model_revision": "text", "speculative_draft_load_format": "text",
    "speculative_num_steps": "count", "speculative_eagle_topk": "count", "speculative_num_draft_tokens": "count",
    "speculative_accept_threshold_single": "number", "speculative_accept_threshold_acc": "number",
    "speculative_use_rejection_sampling": "flag", "speculative_token_map": "text",
    "speculative_attention_mode": "text", "speculative_draft_attention_backend": "text",
    "speculative_draft_window_size": "count", "speculative_moe_runner_backend": "text",
    "speculative_moe_a2a_backend": "text", "speculative_draft_model_quantization": "text",
    "speculative_skip_dp_mlp_sync": "flag", "speculative_adaptive": "flag", "speculative_adaptive_config": "text",
    "speculative_dflash_block_size": "count", "speculative_dspark_block_size": "count",
    "speculative_ngram_min_bfs_breadth": "count", "speculative_ngram_max_bfs_breadth": "count",
    "speculative_ngram_match_type": "text", "speculative_ngram_max_trie_depth": "count",
    "speculative_ngram_capacity": "count", "speculative_ngram_external_corpus_path": "text",
    "speculative_ngram_external_sam_budget": "count", "speculative_ngram_external_corpus_max_tokens": "count",
    "enable_multi_layer_eagle": "flag", "model_path": "text", "tp_size": "count", "dtype": "text",
    "kv_cache_dtype": "text", "context_length": "count", "max_running_requests": "count",
    "disable_radix_cache": "flag", "disable_cuda_graph": "flag", "disable_overlap_schedule": "flag",
}  # fmt: skip
ALIASES: Final = {
    "--model": "model_path", "--tensor-parallel-size": "tp_size", "--tp": "tp_size",
    "--speculative-draft-model": "speculative_draft_model_path",
}  # fmt: skip
FLAGS: Final[Mapping[str, tuple[str, Kind]]] = {
    **{f"--{key.replace('_', '-')}": (key, kind) for key, kind in KEYS.items()},
    **{flag: (key, KEYS[key]) for flag, key in ALIASES.items()},
}
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "verified", "topk", "tree", "varies", "verification", "threshold",
    "window", "draft_quantization", "weights", "dtype", "kv_dtype", "tp", "eager", "overlap", "prefix_cache",
    "max_positions", "max_batch",
})  # fmt: skip
METHODS: Final = {"EAGLE3": "eagle3", "EAGLE": "eagle", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram"}


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    return of(from_argv(argv, FLAGS, ("--spec",), where), where)


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a YAML file of the same keys. Raises UsageError for a value of the wrong type."""
    kinds: dict[str, Kind] = {key: "switch" if kind == "flag" else kind for key, kind in KEYS.items()}
    names = {key.replace("-", "_"): value for key, value in values.items()}
    keys = from_mapping(names, kinds, where)
    return of(Given(keys.values, keys.names, tuple(n for n in keys.notes if "speculative" in n)), where)


def of(flags: Given, where: str) -> StatedConfig:
    terms: Terms = {}
    target, draft = (flags.values.get(key) for key in ("model_path", "speculative_draft_model_path"))
    take(terms, flags, "model_path", "target", name_of)
    take(terms, flags, "tp_size", "tp")
    take(terms, flags, "dtype", "dtype")
    take(terms, flags, "kv_cache_dtype", "kv_dtype")
    take(terms, flags, "context_length", "max_positions")
    take(terms, flags, "max_running_requests", "max_batch")
    take(terms, flags, "disable_radix_cache", "prefix_cache", lambda off: not off)
    take(terms, flags, "disable_cuda_graph", "eager")
    take(terms, flags, "disable_overlap_schedule", "overlap", lambda off: not off)
    default(terms, tp=1, dtype="auto", kv_dtype="auto", prefix_cache=True, eager=False, overlap=True)
    if "speculative_algorithm" not in flags:
        if stray := [flags.names[k] for k in ("speculative_num_steps", "speculative_draft_model_path") if k in flags]:
            note = f"{stray[0]} without --speculative-algorithm: SGLang does not speculate"
            return StatedConfig("sglang", where, terms, EXPRESSES, (*flags.notes, note))
        return StatedConfig("sglang", where, terms, EXPRESSES, flags.notes)
    take(terms, flags, "speculative_algorithm", "method", lambda name: METHODS.get(str(name).upper(), str(name)))
    take(terms, flags, "speculative_draft_model_path", "draft_model", name_of)
    notes = sizes(terms, flags, where)
    take(
        terms,
        flags,
        "speculative_use_rejection_sampling",
        "verification",
        lambda on: "rejection sampling" if on else None,
    )
    default(terms, verification="target-only sampling")
    thresholds = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    if lowered := [flags.values[key] for key in thresholds if key in flags and flags.values[key] != 1.0]:
        terms["threshold"] = Said(lowered[0], "stated", flags.names[next(k for k in thresholds if k in flags)])
    default(terms, threshold=1.0)
    take(terms, flags, "speculative_adaptive", "varies", lambda on: "adaptive, by what was accepted" if on else None)
    default(terms, varies="constant")
    take(terms, flags, "speculative_draft_window_size", "window")
    default(terms, window=NOT_APPLIED)
    take(terms, flags, "speculative_draft_model_quantization", "draft_quantization")
    take(terms, flags, "speculative_draft_load_format", "weights", lambda form: form if form == "dummy" else None)
    fixed(terms, capture=OUTPUTS, draft_sampling="greedy", draft_tp=terms["tp"].value)
    drafts, targets = (str(path) if path else None for path in (draft, target))
    boundaries = add_draft(terms, drafts, targets, OUTPUTS)
    return StatedConfig("sglang", where, terms, EXPRESSES, (*flags.notes, *notes), boundaries)


def sizes(terms: Terms, flags: Given, where: str) -> tuple[str, ...]:
    """Put the sizes of the tree into `terms`. Returns notes. Raises UsageError where SGLang would refuse them."""
    steps, topk, tokens = (
        flags.values.get(f"speculative_{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens")
    )
    if steps is None and (topk is not None or tokens is not None) and terms["method"].value not in ("ngram", "DFLASH"):
        raise UsageError(
            f"{where}: --speculative-num-steps is missing", hint="SGLang takes steps, topk and draft tokens together"
        )
    take(terms, flags, "speculative_num_steps", "k")
    take(terms, flags, "speculative_eagle_topk", "topk")
    if terms["method"].value == "ngram":
        take(terms, flags, "speculative_num_draft_tokens", "k", lambda tokens: int(str(tokens)) - 1)
        return ()
    if steps is None:
        return ("no --speculative-num-steps: SGLang chooses 5, 4, 8 or 3, 1, 4 (steps, topk, tokens) by the target",)
    if topk == 1:
        if tokens not in (None, int(str(steps)) + 1):
            terms["verified"] = Said(int(str(steps)) + 1, "fixed")
            chain(terms)
            note = f"--speculative-num-draft-tokens {tokens}: SGLang makes it {int(str(steps)) + 1}"
            return (f"{note}, num_steps + 1, where topk is 1",)
        chain(terms)
        return ()
    take(terms, flags, "speculative_num_draft_tokens", "verified")
    terms["path_len"] = Said(int(str(steps)) + 1, "fixed")
    if topk is not None:
        terms["tree"] = Said("dynamic tree", "fixed")
        terms["non_leaves"] = Said(topk, "fixed")
    return ()
