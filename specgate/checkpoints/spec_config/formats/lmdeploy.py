"""Speculative configs of LMDeploy: its command line, and draft folders of TurboMind.

Released LMDeploy has no drafts in TurboMind. Forks that put EAGLE-3 there take these keys, with these defaults.
Flags of releases up to 0.18.0 are read from `cli/` and `messages.py` of every wheel since 0.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, from_argv, from_mapping, operands
from specgate.checkpoints.spec_config.formats.collect_terms import AS_THE_CHECKPOINT, Reading, layers_of, object_text
from specgate.checkpoints.spec_config.formats.draft_folder import NO_IDS, add_draft, resolve_auto
from specgate.checkpoints.spec_config.tables import Table
from specgate.checkpoints.spec_config.terms import StatedConfig
from specgate.checkpoints.turbomind import CAPTURED, CONFIG, SECTION, read_either
from specgate.errors import CheckpointError, UsageError

FLAGS: Final = Table(
    count="""
        speculative_num_draft_tokens speculative_dflash_block_size tp dp ep cp session_len max_batch_size
        max_prefill_token_num
    """,
    text="speculative_algorithm speculative_draft_model backend revision dtype model_format",
    flag="enable_prefix_caching eager_mode empty_init",
    setting="hf_overrides",
    any="quant_policy",
)
"""Flags of `lmdeploy serve api_server`."""
FIELDS: Final = Table(count="num_speculative_tokens dflash_block_size", text="method model")
"""Fields of `SpeculativeConfig`."""
CACHES: Final = {"0": "auto", "none": "auto", "4": "int4", "int4": "int4", "8": "int8", "int8": "int8", "16": "fp8",
                 "fp8": "fp8", "fp8_e4m3": "fp8", "17": "fp8_e5m2", "fp8_e5m2": "fp8_e5m2", "42": "turbo_quant",
                 "turbo_quant": "turbo_quant"}  # fmt: skip
"""`--quant-policy` → dtype of the KV cache."""
TURBOMIND: Final = Table(
    count="""
        num_speculative_tokens max_path_len max_decoding_tokens max_non_leaves_per_layer tp specpv_block_size
        specpv_n_sink_blocks specpv_n_retrieval_blocks specpv_n_window_blocks specpv_n_spec_tokens_buf
        specpv_partial_threshold specpv_full_refresh_steps max_matching_ngram_size
    """,
    text="method model",
    switch="eagle_debug eagle_metrics_debug enable_target_tree enable_specpv is_public_pool",
    list="capture_layers",
)
"""Keys of forks that put EAGLE-3 into TurboMind."""
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "dtype", "kv_dtype", "quantization", "target_weights", "overrides", "tp",
    "dp", "ep", "cp", "graphs", "prefix_cache", "max_positions", "max_batch", "max_tokens",
})  # fmt: skip
KEYS: Final = {"speculative_algorithm": "method", "speculative_draft_model": "model",
               "speculative_num_draft_tokens": "num_speculative_tokens",
               "speculative_dflash_block_size": "dflash_block_size"}  # fmt: skip
"""Flag → field of `SpeculativeConfig`."""


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, where)
    free = operands(argv, FLAGS, "api_server")
    served = free[0] if "api_server" in argv and free else None
    reading = Reading("lmdeploy", where, {}, EXPRESSES, undecided=flags.undecided, unread=flags.unread)
    around(reading, flags, served)
    fields = {KEYS[key]: flags.get(key) for key in KEYS if key in flags}
    names = {KEYS[key]: name for key, name in flags.names.items() if key in KEYS}
    of(reading, Given(fields, names), served, flags.text("backend"))
    return reading


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a `SpeculativeConfig` alone. Raises UsageError for a value of the wrong type."""
    keys = from_mapping(values, FIELDS, where)
    reading = Reading("lmdeploy", where, {}, EXPRESSES, undecided=keys.undecided, unread=keys.unread)
    of(reading, keys, None, None)
    return reading


def around(reading: Reading, flags: Given, served: str | None) -> None:
    """Take the terms that are not about drafts."""
    if served:
        reading.name("target", served, "api_server", flags.text("revision"))
    reading.take_each(flags, tp="tp", dp="dp", ep="ep", cp="cp", dtype="dtype", enable_prefix_caching="prefix_cache",
            session_len="max_positions", max_batch_size="max_batch", max_prefill_token_num="max_tokens",
            model_format="quantization")  # fmt: skip
    reading.take(flags, "eager_mode", "graphs", lambda eager: not eager)
    reading.take(flags, "quant_policy", "kv_dtype", lambda policy: CACHES.get(str(policy).lower(), str(policy)))
    reading.take(flags, "empty_init", "target_weights", lambda on: "dummy" if on else None)
    reading.take(flags, "hf_overrides", "overrides", object_text)
    reading.default(tp=1, dp=1, ep=1, cp=1, dtype="auto", kv_dtype="auto", prefix_cache=False, graphs=True,
            quantization=AS_THE_CHECKPOINT, overrides=None, target_weights=AS_THE_CHECKPOINT)  # fmt: skip
    resolve_auto(reading.terms, served)


def of(reading: Reading, flags: Given, served: str | None, backend: str | None) -> None:
    """Take the terms about drafts, if the config asks for any."""
    if "method" not in flags:
        return
    if backend == "turbomind":
        reading.notes += (
            "--backend turbomind: LMDeploy 0.16 warns that TurboMind does not speculate, and goes on without",
        )
    reading.take(flags, "method", "method", lambda name: "mtp" if str(name).endswith("_mtp") else name)
    if (draft := flags.text("model")) is not None:
        reading.name("draft_model", draft, flags.names["model"])
    if reading.value("method") == "mtp":
        reading.fixed(draft_model="in the target")
    reading.take(flags, "dflash_block_size", "k", lambda size: int(str(size)) - 1)
    reading.take(flags, "num_speculative_tokens", "k", lambda k: None if "k" in reading.terms else k)
    reading.default(k=1)
    reading.chain()
    reading.fixed(varies="constant", forced=None, draft_sampling="greedy", verification="rejection sampling")
    reading.follow("draft_tp", "tp", "fixed")
    eagle3 = reading.value("method") == "eagle3"
    if eagle3:
        reading.fixed(capture=NO_IDS)
    reading.boundaries = add_draft(reading.terms, draft, served, NO_IDS if eagle3 else None)


TREE_FILE: Final = "eagle_tree.yaml"
"""In a draft's folder: the choices of a tree that TurboMind drafts in the place of a chain."""
TURBOMIND_EXPRESSES: Final = frozenset({
    "method", "draft_model", "k", "path_len", "verified", "non_leaves", "capture", "tp", "tree", "window",
})  # fmt: skip


def read_turbomind(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a mapping. Raises UsageError for a value of the wrong type."""
    keys = from_mapping(values, TURBOMIND, where)
    reading = Reading("turbomind", where, {}, TURBOMIND_EXPRESSES, undecided=keys.undecided)
    reading.take(keys, "method", "method")
    reading.default(method="eagle")
    if (draft := keys.text("model")) is not None:
        reading.name("draft_model", draft, "model")
    reading.take(keys, "num_speculative_tokens", "k")
    reading.default(k=5)
    reading.take_each(keys, max_path_len="path_len", max_decoding_tokens="verified",
            max_non_leaves_per_layer="non_leaves", tp="tp")  # fmt: skip
    reading.default(path_len=5, non_leaves=10, tp=1)
    k, path = reading.value("k"), reading.value("path_len")
    if isinstance(k, int) and isinstance(path, int):
        reading.default(verified=max(2 * k, path))
    reading.take(keys, "capture_layers", "capture", layers_of)
    reading.default(capture="layers [-1]")
    tree_file = Path(draft or "") / TREE_FILE
    if keys.get("enable_target_tree"):
        reading.say("tree", "target tree", "enable_target_tree")
    elif tree_file.is_file():
        reading.say("tree", "static tree", str(tree_file))
    reading.default(tree="chain")
    if keys.get("enable_specpv"):
        reading.say("window", "partial KV in verification (SpecPV)", "enable_specpv")
    reading.fixed(varies="constant", verification="greedy match", draft_sampling="greedy", forced=None)
    add_draft(reading.terms, draft, None, None)
    if (tp := reading.count("tp") or 1) > 1 and (reading.count("k") or 0) > 1:
        reading.notes += (f"tp = {tp}: TurboMind drafts one token per step then, whatever num_speculative_tokens says",)
    reading.others = keys.rest()
    return reading


def read_draft(folder: Path) -> StatedConfig:
    """Read the `config.yaml` of a draft folder. Raises UsageError for sizes that are missing or contradict each other:
    TurboMind then goes on without the draft.
    """
    where = folder / CONFIG
    try:
        config = read_either(folder)
    except CheckpointError as error:
        raise UsageError(error.message, hint=error.hint) from error
    reading = Reading("turbomind", str(where), {}, frozenset(), unclear=True)
    reading.name("draft_model", str(folder), "folder")
    reading.say("capture", layers_of(config.ids(CAPTURED)), f"{SECTION}.{CAPTURED}")
    add_draft(reading.terms, str(folder), None, None)
    reading.expresses = frozenset(reading.terms)
    return reading
