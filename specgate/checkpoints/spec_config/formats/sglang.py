"""SGLang: its server's flags, or the same keys in the YAML file of its `--config`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate.checkpoints.spec_config.files import Referred, referred
from specgate.checkpoints.spec_config.flags import Given, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import (
    AS_THE_CHECKPOINT,
    Terms,
    chain,
    count_of,
    default,
    fixed,
    follow,
    name_of,
    object_text,
    take,
)
from specgate.checkpoints.spec_config.formats.draft_folder import NOT_APPLIED, OUTPUTS, add_draft, resolve_auto
from specgate.checkpoints.spec_config.tables.sglang import FLAGS
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError

EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "path_len", "verified", "topk", "tree", "non_leaves", "varies",
    "verification", "threshold", "window", "draft_quantization", "draft_kv_dtype", "vocabulary", "weights", "lookup",
    "dtype", "kv_dtype", "quantization", "target_weights", "overrides", "tp", "pp", "dp", "ep", "cp", "graphs",
    "overlap", "prefix_cache", "max_positions", "max_batch", "max_tokens",
})  # fmt: skip
METHODS: Final = {"EAGLE3": "eagle3", "EAGLE": "eagle", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram",
                  "FROZEN_KV_MTP": "mtp", "DFLASH": "dflash", "DSPARK": "dspark", "UNO": "uno"}  # fmt: skip
LENGTH: Final = re.compile(r"SGLANG_SIMULATE_ACC_LEN=(\d+(?:\.\d+)?)$")
"""The variable that makes acceptance up, with its length."""
OVERLAP: Final = re.compile(r"SGLANG_ENABLE_SPEC_V2=(\w+)$")
"""The variable that lets speculation overlap with scheduling, or not."""
OF_A_TRAINER: Final = re.compile("^--sglang-")
"""What trainers that start SGLang put before its flags."""


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv([OF_A_TRAINER.sub("--", word) for word in argv], FLAGS, where)
    lengths = [float(match[1]) for word in argv if (match := LENGTH.match(word)) and float(match[1]) > 0]
    config = of(flags, referred(flags.text("config"), FLAGS), where, lengths[-1] if lengths else None)
    if (
        overlap := [match[1] for word in argv if (match := OVERLAP.match(word))]
    ) and "disable_overlap_schedule" not in flags:
        return replace(config, terms={**config.terms, "overlap": Said(overlap[-1].lower() in ("1", "true"), "stated")})
    return config


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a YAML file of the same keys. Raises UsageError for a value of the wrong type."""
    return of(from_mapping(values, FLAGS, where, dashes=True), Referred(), where, None)


def of(flags: Given, file: Referred, where: str, forced: float | None) -> StatedConfig:
    flags = flags.over(file.given)
    target, draft = flags.text("model_path"), flags.text("speculative_draft_model_path")
    terms = around(flags, target, whole=not file.missing)
    resolve_auto(terms, target)
    undecided = (*file.undecided, *flags.undecided)
    places = {"target": target} if target else {}
    if "speculative_algorithm" not in flags or str(flags.values["speculative_algorithm"]).lower() == "none":
        flags.used.add("speculative_algorithm")
        stray = [flags.names[k] for k in ("speculative_num_steps", "speculative_draft_model_path") if k in flags]
        notes = tuple(f"{name} without --speculative-algorithm: SGLang does not speculate" for name in stray[:1])
        return StatedConfig(
            "sglang", where, terms, EXPRESSES, notes, None, undecided, file.missing, places, unread=flags.unread
        )
    take(terms, flags, "speculative_algorithm", "method", lambda name: METHODS.get(str(name).upper(), str(name)))
    if draft is None and terms["method"].value == "eagle":
        terms["method"] = Said("mtp", "stated", flags.names["speculative_algorithm"])
    drafted(terms, flags, draft, forced)
    notes, open_sizes = sizes(terms, flags, where)
    if draft is not None:
        places["draft_model"] = draft
    eagle3 = terms["method"].value == "eagle3"
    if eagle3:
        fixed(terms, capture=OUTPUTS)
    boundaries = add_draft(terms, draft, target, OUTPUTS if eagle3 else None)
    undecided += open_sizes
    return StatedConfig(
        "sglang", where, terms, EXPRESSES, notes, boundaries, undecided, False, places, others(flags), flags.unread
    )


def others(flags: Given) -> dict[str, object]:
    """Keys about speculation that have become no term."""
    return {name: value for name, value in flags.rest().items() if "spec" in name or "eagle" in name or "draft" in name}


def around(flags: Given, target: str | None, *, whole: bool) -> Terms:
    """The terms that are not about drafts; with their defaults, where the whole config was read."""
    terms: Terms = {}
    if target is not None:
        revision = flags.text("revision")
        terms["target"] = Said(name_of(target) + (f"@{revision}" if revision else ""), "stated", "--model-path")
    for key, term in (
        ("tp_size", "tp"), ("pp_size", "pp"), ("dp_size", "dp"), ("ep_size", "ep"), ("attn_cp_size", "cp"),
        ("dcp_size", "cp"), ("dtype", "dtype"), ("kv_cache_dtype", "kv_dtype"), ("quantization", "quantization"),
        ("context_length", "max_positions"), ("max_running_requests", "max_batch"),
    ):  # fmt: skip
        take(terms, flags, key, term)
    if flags.get("enable_dp_attention"):
        terms["dp"] = Said(
            f"{flags.get('dp_size') or 1}, attention over the same GPUs", "stated", "--enable-dp-attention"
        )
    for key in ("disable_cuda_graph", "disable_decode_cuda_graph"):
        take(terms, flags, key, "graphs", lambda off: False if off else None)
    take(terms, flags, "chunked_prefill_size", "max_tokens", count_of)
    take(terms, flags, "disable_radix_cache", "prefix_cache", lambda off: not off)
    take(terms, flags, "disable_overlap_schedule", "overlap", lambda off: not off)
    take(terms, flags, "load_format", "target_weights", lambda form: "dummy" if form == "dummy" else None)
    take(terms, flags, "json_model_override_args", "overrides", object_text)
    if whole:
        default(terms, tp=1, pp=1, dp=1, ep=1, cp=1, dtype="auto", kv_dtype="auto", prefix_cache=True, graphs=True,
                overlap=True, quantization=AS_THE_CHECKPOINT, overrides=None,
                target_weights=AS_THE_CHECKPOINT)  # fmt: skip
    return terms


def drafted(terms: Terms, flags: Given, draft: str | None, forced: float | None) -> None:
    """Put the terms about drafts into `terms`, but for their sizes."""
    method = terms["method"].value
    revision = flags.text("speculative_draft_model_revision")
    if draft is not None:
        terms["draft_model"] = Said(name_of(draft) + (f"@{revision}" if revision else ""), "stated",
                                    "--speculative-draft-model-path")  # fmt: skip
    elif method in ("ngram", "mtp"):
        fixed(terms, draft_model="in the target" if method == "mtp" else None)
    rejection = "rejection sampling"
    take(terms, flags, "speculative_use_rejection_sampling", "verification", lambda on: rejection if on else None)
    take(terms, flags, "speculative_use_block_verification", "verification",
         lambda on: "block verification" if on else None)  # fmt: skip
    thresholds = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    if lowered := [key for key in thresholds if key in flags and flags.get(key) != 1.0]:
        terms["threshold"] = Said(flags.get(lowered[0]), "stated", flags.names[lowered[0]])
    take(terms, flags, "speculative_adaptive", "varies", lambda on: "adaptive, by what was accepted" if on else None)
    for key in ("speculative_dflash_draft_window_size", "speculative_draft_window_size"):
        take(terms, flags, key, "window")
    take(terms, flags, "speculative_draft_model_quantization", "draft_quantization")
    take(terms, flags, "speculative_draft_kv_cache_dtype", "draft_kv_dtype")
    take(terms, flags, "speculative_token_map", "vocabulary", lambda file: f"the tokens in {name_of(file)}")
    take(terms, flags, "speculative_draft_load_format", "weights", lambda form: "dummy" if form == "dummy" else None)
    lookups = {key: flags.get(key) for key in sorted(FLAGS.rows) if "ngram" in key and key in flags}
    if lookups:
        terms["lookup"] = Said(object_text(lookups), "stated", next(iter(lookups)))
    if forced is not None:
        terms["forced"] = Said(forced, "stated", "SGLANG_SIMULATE_ACC_LEN")
    default(terms, verification="target-only sampling", threshold=1.0, varies="constant", window=NOT_APPLIED,
            draft_quantization=AS_THE_CHECKPOINT, weights=AS_THE_CHECKPOINT, lookup=None, forced=None,
            vocabulary="the draft's")  # fmt: skip
    fixed(terms, draft_sampling="greedy")
    follow(terms, "draft_tp", "tp", "fixed")
    follow(terms, "draft_kv_dtype", "kv_dtype")


def sizes(terms: Terms, flags: Given, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Put the sizes of the tree into `terms`. Returns notes, and what is not known of the sizes.

    Raises UsageError where SGLang would refuse them.
    """
    steps, topk, tokens = (flags.get(f"speculative_{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    method = terms["method"].value
    block = next((flags.get(k) for k in ("speculative_dflash_block_size", "speculative_dspark_block_size")
                  if k in flags), None)  # fmt: skip
    if method in ("ngram", "dflash", "dspark"):
        verified = tokens if tokens is not None else block
        if verified is None:
            return (), (f"no number of draft tokens: SGLang chooses one for {method}",)
        terms["verified"] = Said(verified, "stated", "--speculative-num-draft-tokens")
        if method != "ngram" or flags.values.get("speculative_ngram_max_bfs_breadth") == 1:
            terms["k"] = Said(int(str(verified)) - 1, "stated", "--speculative-num-draft-tokens")
            chain(terms)
        else:
            terms["k"] = Said(int(str(verified)) - 1, "stated", "--speculative-num-draft-tokens")
        return (), ()
    if steps is None and (topk is not None or tokens is not None) and not flags.undecided:
        raise UsageError(
            f"{where}: --speculative-num-steps is missing", hint="SGLang takes steps, topk and draft tokens together"
        )
    take(terms, flags, "speculative_num_steps", "k")
    take(terms, flags, "speculative_eagle_topk", "topk")
    if steps is None:
        return (), (
            "no --speculative-num-steps: SGLang chooses 5, 4, 8 or 3, 1, 4 (steps, topk, tokens) by the target",
        )
    if topk == 1:
        right = int(str(steps)) + 1
        chain(terms)
        if tokens in (None, right):
            return (), ()
        return (
            f"--speculative-num-draft-tokens {tokens}: SGLang makes it {right}, num_steps + 1, where topk is 1",
        ), ()
    take(terms, flags, "speculative_num_draft_tokens", "verified")
    terms["path_len"] = Said(int(str(steps)) + 1, "fixed")
    if topk is not None:
        terms["tree"] = Said("dynamic tree", "fixed")
        terms["non_leaves"] = Said(topk, "fixed")
        return (), ()
    return (), ("no --speculative-eagle-topk: whether chains or trees are drafted is not known",)
