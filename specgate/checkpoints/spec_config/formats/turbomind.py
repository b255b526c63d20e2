"""TurboMind with EAGLE-3 in it: its `speculative_config`, and a draft folder's `config.yaml`.

Released LMDeploy has no drafts in TurboMind. Forks that put EAGLE-3 there take these keys, with these defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, Kind, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import Terms, default, fixed, layers_of, name_of, take
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError

KEYS: Final[Mapping[str, Kind]] = {
    "method": "text", "model": "text", "num_speculative_tokens": "count", "max_path_len": "count",
    "max_decoding_tokens": "count", "max_non_leaves_per_layer": "count", "capture_layers": "list", "tp": "count",
    "eagle_debug": "switch", "eagle_metrics_debug": "switch", "enable_target_tree": "switch", "enable_specpv": "switch",
    "specpv_block_size": "count", "specpv_n_sink_blocks": "count", "specpv_n_retrieval_blocks": "count",
    "specpv_n_window_blocks": "count", "specpv_n_spec_tokens_buf": "count", "specpv_partial_threshold": "count",
    "specpv_full_refresh_steps": "count", "max_matching_ngram_size": "count", "is_public_pool": "switch",
}  # fmt: skip
EXPRESSES: Final = frozenset({
    "method", "draft_model", "k", "path_len", "verified", "non_leaves", "capture", "tp", "tree", "window",
})  # fmt: skip
DRAFT_KEYS: Final = ("hidden_units", "vocab_size", "head_num", "size_per_head", "inter_size")
"""Keys of `model_config` in a draft folder's config.yaml without which the draft does not load."""


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a mapping. Raises UsageError for a value of the wrong type."""
    keys = from_mapping(values, KEYS, where)
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
    return StatedConfig("turbomind", where, terms, EXPRESSES, notes)


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
