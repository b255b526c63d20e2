"""Speculative configs of LMDeploy: its command line, and draft folders of TurboMind.

Released LMDeploy has no drafts in TurboMind. Forks that put EAGLE-3 there take these keys, with these defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, from_argv, from_mapping, operands
from specgate.checkpoints.spec_config.formats.collect_terms import (
    AS_THE_CHECKPOINT,
    Terms,
    chain,
    default,
    fixed,
    follow,
    layers_of,
    name_of,
    object_text,
    take,
)
from specgate.checkpoints.spec_config.formats.draft_folder import NO_IDS, add_draft, resolve_auto
from specgate.checkpoints.spec_config.tables.lmdeploy import CACHES, FLAGS, TURBOMIND
from specgate.checkpoints.spec_config.tables.lmdeploy import SECTION as FIELDS
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.checkpoints.turbomind import CAPTURED, CONFIG, SECTION, read_either
from specgate.errors import CheckpointError, UsageError

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
    terms = around(flags, served)
    fields = {KEYS[key]: flags.get(key) for key in KEYS if key in flags}
    names = {KEYS[key]: name for key, name in flags.names.items() if key in KEYS}
    given = Given(fields, names, flags.undecided, unread=flags.unread)
    return of(given, terms, where, served, flags.text("backend"))


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a `SpeculativeConfig` alone. Raises UsageError for a value of the wrong type."""
    return of(from_mapping(values, FIELDS, where), {}, where, None, None)


def around(flags: Given, served: str | None) -> Terms:
    """The terms that are not about drafts."""
    terms: Terms = {}
    if served:
        revision = flags.text("revision")
        terms["target"] = Said(name_of(served) + (f"@{revision}" if revision else ""), "stated", "api_server")
    for key, term in (
        ("tp", "tp"), ("dp", "dp"), ("ep", "ep"), ("cp", "cp"), ("dtype", "dtype"),
        ("enable_prefix_caching", "prefix_cache"), ("session_len", "max_positions"), ("max_batch_size", "max_batch"),
        ("max_prefill_token_num", "max_tokens"), ("model_format", "quantization"),
    ):  # fmt: skip
        take(terms, flags, key, term)
    take(terms, flags, "eager_mode", "graphs", lambda eager: not eager)
    take(terms, flags, "quant_policy", "kv_dtype", lambda policy: CACHES.get(str(policy).lower(), str(policy)))
    take(terms, flags, "empty_init", "target_weights", lambda on: "dummy" if on else None)
    take(terms, flags, "hf_overrides", "overrides", object_text)
    default(terms, tp=1, dp=1, ep=1, cp=1, dtype="auto", kv_dtype="auto", prefix_cache=False, graphs=True,
            quantization=AS_THE_CHECKPOINT, overrides=None, target_weights=AS_THE_CHECKPOINT)  # fmt: skip
    resolve_auto(terms, served)
    return terms


def of(flags: Given, terms: Terms, where: str, served: str | None, backend: str | None) -> StatedConfig:
    places = {"target": served} if served else {}
    if "method" not in flags:
        return StatedConfig(
            "lmdeploy", where, terms, EXPRESSES, undecided=flags.undecided, places=places, unread=flags.unread
        )
    notes: tuple[str, ...] = ()
    if backend == "turbomind":
        notes += ("--backend turbomind: LMDeploy 0.16 warns that TurboMind does not speculate, and goes on without",)
    take(terms, flags, "method", "method", lambda name: "mtp" if str(name).endswith("_mtp") else name)
    take(terms, flags, "model", "draft_model", name_of)
    if terms["method"].value == "mtp":
        fixed(terms, draft_model="in the target")
    take(terms, flags, "dflash_block_size", "k", lambda size: int(str(size)) - 1)
    take(terms, flags, "num_speculative_tokens", "k", lambda k: None if "k" in terms else k)
    default(terms, k=1)
    chain(terms)
    fixed(terms, varies="constant", forced=None, draft_sampling="greedy", verification="rejection sampling")
    follow(terms, "draft_tp", "tp", "fixed")
    draft = flags.text("model")
    if draft:
        places["draft_model"] = draft
    eagle3 = terms["method"].value == "eagle3"
    if eagle3:
        fixed(terms, capture=NO_IDS)
    boundaries = add_draft(terms, draft, served, NO_IDS if eagle3 else None)
    return StatedConfig(
        "lmdeploy", where, terms, EXPRESSES, notes, boundaries, flags.undecided, places=places, unread=flags.unread
    )


TREE_FILE: Final = "eagle_tree.yaml"
"""In a draft's folder: the choices of a tree that TurboMind drafts in the place of a chain."""
TURBOMIND_EXPRESSES: Final = frozenset({
    "method", "draft_model", "k", "path_len", "verified", "non_leaves", "capture", "tp", "tree", "window",
})  # fmt: skip


def read_turbomind(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a mapping. Raises UsageError for a value of the wrong type."""
    keys = from_mapping(values, TURBOMIND, where)
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
    default(terms, path_len=5, non_leaves=10, tp=1)
    k, path = terms["k"].value, terms["path_len"].value
    if isinstance(k, int) and isinstance(path, int):
        default(terms, verified=max(2 * k, path))
    take(terms, keys, "capture_layers", "capture", layers_of)
    default(terms, capture="layers [-1]")
    tree_file = Path(keys.text("model") or "") / TREE_FILE
    if keys.get("enable_target_tree"):
        terms["tree"] = Said("target tree", "stated", "enable_target_tree")
    elif tree_file.is_file():
        terms["tree"] = Said("static tree", "stated", str(tree_file))
    default(terms, tree="chain")
    if keys.get("enable_specpv"):
        terms["window"] = Said("partial KV in verification (SpecPV)", "stated", "enable_specpv")
    fixed(terms, varies="constant", verification="greedy match", draft_sampling="greedy", forced=None)
    draft = keys.text("model")
    add_draft(terms, draft, None, None)
    return StatedConfig(
        "turbomind", where, terms, TURBOMIND_EXPRESSES, single_token(terms), None, keys.undecided,
        places={"draft_model": draft} if draft else {}, others=keys.rest(),
    )  # fmt: skip


def single_token(terms: Terms) -> tuple[str, ...]:
    """A note where several draft tokens are asked for on several GPUs, which TurboMind does not do."""
    tp, k = terms["tp"].value, terms["k"].value
    if isinstance(tp, int) and isinstance(k, int) and tp > 1 and k > 1:
        return (f"tp = {tp}: TurboMind drafts one token per step then, whatever num_speculative_tokens says",)
    return ()


def read_draft(folder: Path) -> StatedConfig:
    """Read the `config.yaml` of a draft folder. Raises UsageError for sizes that are missing or contradict each other:
    TurboMind then goes on without the draft.
    """
    where = folder / CONFIG
    try:
        config = read_either(folder)
    except CheckpointError as error:
        raise UsageError(error.message, hint=error.hint) from error
    terms: Terms = {
        "draft_model": Said(folder.name, "stated", "folder"),
        "capture": Said(layers_of(config.ids(CAPTURED)), "stated", f"{SECTION}.{CAPTURED}"),
    }
    add_draft(terms, str(folder), None, None)
    places = {"draft_model": str(folder)}
    return StatedConfig("turbomind", str(where), terms, frozenset(terms), unclear=True, places=places)
