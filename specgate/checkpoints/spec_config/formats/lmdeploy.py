"""Speculative configs of LMDeploy: its command line, and draft folders of TurboMind.

Released LMDeploy has no drafts in TurboMind. Forks that put EAGLE-3 there take these keys, with these defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, Kind, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import (
    Terms,
    after,
    chain,
    default,
    fixed,
    layers_of,
    name_of,
    take,
)
from specgate.checkpoints.spec_config.formats.draft_folder import NO_IDS, add_draft
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError

KEYS: Final[Mapping[str, Kind]] = {"method": "text", "model": "text", "num_speculative_tokens": "count"}
FLAGS: Final[Mapping[str, tuple[str, Kind]]] = {
    "--speculative-algorithm": ("method", "text"),
    "--speculative-draft-model": ("model", "text"),
    "--speculative-num-draft-tokens": ("num_speculative_tokens", "count"),
    "--backend": ("backend", "text"),
    "--tp": ("tp", "count"),
    "--dtype": ("dtype", "text"),
    "--session-len": ("max_positions", "count"),
    "--max-batch-size": ("max_batch", "count"),
    "--enable-prefix-caching": ("prefix_cache", "flag"),
    "--eager-mode": ("eager", "flag"),
}
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "dtype", "tp", "eager", "prefix_cache", "max_positions", "max_batch",
})  # fmt: skip


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, ("--spec",), where)
    return of(flags, where, after(tuple(argv), "api_server"))


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a `SpeculativeConfig`. Raises UsageError for a value of the wrong type."""
    return of(from_mapping(values, KEYS, where), where, None)


def of(flags: Given, where: str, served: str | None) -> StatedConfig:
    terms: Terms = {}
    for key in ("tp", "dtype", "prefix_cache", "eager", "max_positions", "max_batch"):
        take(terms, flags, key, key)
    default(terms, tp=1, dtype="auto", prefix_cache=False, eager=False)
    if served:
        terms["target"] = Said(name_of(served), "stated", "api_server")
    if "method" not in flags:
        return StatedConfig("lmdeploy", where, terms, EXPRESSES, flags.notes)
    notes = flags.notes
    if flags.values.get("backend") == "turbomind":
        notes += ("--backend turbomind: LMDeploy 0.16 warns that TurboMind does not speculate, and goes on without",)
    take(terms, flags, "method", "method")
    take(terms, flags, "model", "draft_model", name_of)
    take(terms, flags, "num_speculative_tokens", "k")
    default(terms, k=1)
    chain(terms)
    fixed(terms, capture=NO_IDS, varies="constant", forced=None, draft_tp=terms["tp"].value, draft_sampling="greedy")
    fixed(terms, verification="rejection sampling")
    draft = str(flags.values["model"]) if "model" in flags else None
    boundaries = add_draft(terms, draft, served, NO_IDS)
    return StatedConfig("lmdeploy", where, terms, EXPRESSES, notes, boundaries)


TURBOMIND_KEYS: Final[Mapping[str, Kind]] = {
    "method": "text", "model": "text", "num_speculative_tokens": "count", "max_path_len": "count",
    "max_decoding_tokens": "count", "max_non_leaves_per_layer": "count", "capture_layers": "list", "tp": "count",
    "eagle_debug": "switch", "eagle_metrics_debug": "switch", "enable_target_tree": "switch", "enable_specpv": "switch",
    "specpv_block_size": "count", "specpv_n_sink_blocks": "count", "specpv_n_retrieval_blocks": "count",
    "specpv_n_window_blocks": "count", "specpv_n_spec_tokens_buf": "count", "specpv_partial_threshold": "count",
    "specpv_full_refresh_steps": "count", "max_matching_ngram_size": "count", "is_public_pool": "switch",
}  # fmt: skip
TURBOMIND_EXPRESSES: Final = frozenset({
    "method", "draft_model", "k", "path_len", "verified", "non_leaves", "capture", "tp", "tree", "window",
})  # fmt: skip
DRAFT_KEYS: Final = ("hidden_units", "vocab_size", "head_num", "size_per_head", "inter_size")
"""Keys of `model_config` in a draft folder's config.yaml without which the draft does not load."""


def read_turbomind(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a mapping. Raises UsageError for a value of the wrong type."""
    keys = from_mapping(values, TURBOMIND_KEYS, where)
    terms: Terms = {}
    take(terms, keys, "method", "method")
    default(terms, method="eagle")
    take(terms, keys, "model", "draft_model", name_of)
    take(terms, keys, "num_speculative_tokens", "k")
    default(terms, k=5)
    take(terms, keys, "max_path_len", "path_len")
    take(terms, keys, "max_decoding_tokens", "verified")
    take(terms, keys, "max_non_leaves_per_layer", "non_leaves")
    take(terms, keys, "tp", "tp")
    k, path = terms["k"].value, terms["path_len"].value if "path_len" in terms else 5
    default(terms, path_len=5, verified=max(2 * int(str(k)), int(str(path))), non_leaves=10, tp=1)
    take(terms, keys, "capture_layers", "capture", layers_of)
    default(terms, capture="layers [-1]")
    if keys.values.get("enable_specpv"):
        terms["window"] = Said("partial KV in verification (SpecPV)", "stated", "enable_specpv")
    fixed(terms, varies="constant", verification="greedy match", draft_sampling="greedy", forced=None)
    notes = keys.notes + single_token(terms, keys)
    return StatedConfig("turbomind", where, terms, TURBOMIND_EXPRESSES, notes)


def single_token(terms: Terms, keys: Given) -> tuple[str, ...]:
    """A note where several draft tokens are asked for on several GPUs, which TurboMind does not do."""
    tp, k = terms["tp"].value, terms["k"].value
    if isinstance(tp, int) and isinstance(k, int) and tp > 1 and k > 1:
        return (f"tp = {tp}: TurboMind drafts one token per step then, whatever num_speculative_tokens says",)
    return ()


def read_draft(values: Mapping[str, object], where: str) -> StatedConfig:
    """Read the `config.yaml` of a draft folder.

    Raises UsageError if a key is missing, or if the heads' sizes do not add up to the width: TurboMind then goes on
    without the draft.
    """
    model = values.get("model_config")
    if not isinstance(model, Mapping):
        raise UsageError(f"{where}: model_config is missing", hint="the config.yaml of a TurboMind draft has it")
    keys = from_mapping(model, dict.fromkeys(DRAFT_KEYS, "count"), f"{where}: model_config")
    if missing := [f"model_config.{key}" for key in DRAFT_KEYS if key not in keys]:
        raise UsageError(f"{where}: {', '.join(missing)} missing", hint="TurboMind goes on without its draft then")
    hidden, heads, size = (int(str(keys.values[key])) for key in ("hidden_units", "head_num", "size_per_head"))
    if hidden != heads * size:
        raise UsageError(
            f"{where}: model_config.hidden_units = {hidden} is not head_num × size_per_head = {heads} × {size}",
            hint="TurboMind goes on without its draft then",
        )
    terms = {"draft_hidden": Said(hidden, "stated", "model_config.hidden_units")}
    return StatedConfig("turbomind", where, terms, frozenset({"draft_hidden"}))
