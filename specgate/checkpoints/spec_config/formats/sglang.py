"""SGLang: its server's flags, or the same keys in the YAML file of its `--config`.

Flags up to 0.5.23, read from `srt/server_args.py` and `srt/arg_groups/` of every wheel since 0.4.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.spec_config.files import Referred, referred
from specgate.checkpoints.spec_config.flags import Given, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import (
    AS_THE_CHECKPOINT,
    Reading,
    count_of,
    dummy,
    name_of,
    object_text,
)
from specgate.checkpoints.spec_config.formats.draft_folder import NOT_APPLIED, OUTPUTS, add_draft, resolve_auto
from specgate.checkpoints.spec_config.tables import Table
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError

FLAGS: Final = Table(
    count="""
        speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens speculative_dflash_block_size
        speculative_dflash_draft_window_size speculative_draft_window_size speculative_dspark_block_size
        speculative_domino_candidate_pool_size speculative_draft_sink_size speculative_ngram_min_match_window_size
        speculative_ngram_max_match_window_size speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
        speculative_ngram_branch_length speculative_ngram_capacity speculative_ngram_max_trie_depth
        speculative_ngram_external_sam_budget speculative_ngram_external_corpus_max_tokens decoupled_spec_rank
        tp_size,tensor_parallel_size,tp pp_size,pipeline_parallel_size,pp dp_size,data_parallel_size,dp
        ep_size,expert_parallel_size,ep dcp_size,decode_context_parallel_size
        attn_cp_size,attention_context_parallel_size attn_dp_size,attention_data_parallel_size
        moe_dp_size,moe_data_parallel_size dwdp_size context_length max_running_requests
    """,
    number="speculative_accept_threshold_single speculative_accept_threshold_acc",
    text="""
        speculative_algorithm speculative_draft_model_path,speculative_draft_model,speculative_draft
        speculative_draft_model_revision speculative_draft_load_format speculative_token_map
        speculative_attention_mode speculative_moe_runner_backend speculative_moe_a2a_backend
        speculative_draft_attention_backend speculative_draft_model_quantization speculative_adaptive_config
        speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path speculative_draft_kv_cache_dtype
        speculative_dsa_topk_backend uno_lora_path speculative_boundary_reduction speculative_ngram_match_type
        speculative_ngram_external_corpus_path decoupled_spec_role decoupled_spec_bind_endpoint spec_trace_dir
        decrypted_draft_config_file model_path,model revision decrypted_config_file dtype kv_cache_dtype quantization
        load_format config
    """,
    flag="""
        enable_multi_layer_eagle speculative_adaptive speculative_skip_dp_mlp_sync speculative_use_rejection_sampling
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_use_block_verification
        speculative_enable_w4a4_mxfp4_megamoe enable_beta_spec enable_draft_weights_cpu_backup
        enable_linear_replayssm_spec enable_gdn_replayssm_spec enable_linear_replayssm enable_weights_cpu_backup
        enable_dp_attention disable_radix_cache disable_cuda_graph disable_decode_cuda_graph disable_overlap_schedule
    """,
    off="no_speculative_enable_w4a4_mxfp4_megamoe",
    setting="json_model_override_args",
    any="decoupled_spec_connect_endpoints decoupled_spec_ipc_config chunked_prefill_size",
)
"""Flags of the server, and keys of the YAML file of its `--config`."""
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
    reading = of(flags, referred(flags.text("config"), FLAGS), where, lengths[-1] if lengths else None)
    if (
        overlap := [match[1] for word in argv if (match := OVERLAP.match(word))]
    ) and "disable_overlap_schedule" not in flags:
        reading.terms["overlap"] = Said(overlap[-1].lower() in ("1", "true"), "stated")
    return reading


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a YAML file of the same keys. Raises UsageError for a value of the wrong type."""
    return of(from_mapping(values, FLAGS, where, dashes=True), Referred(), where, None)


def of(flags: Given, file: Referred, where: str, forced: float | None) -> Reading:
    flags = flags.over(file.given)
    target, draft = flags.text("model_path"), flags.text("speculative_draft_model_path")
    undecided = (*file.undecided, *flags.undecided)
    reading = Reading("sglang", where, {}, EXPRESSES, undecided=undecided, unread=flags.unread)
    around(reading, flags, target, whole=not file.missing)
    resolve_auto(reading.terms, target)
    if "speculative_algorithm" not in flags or str(flags.values["speculative_algorithm"]).lower() == "none":
        flags.used.add("speculative_algorithm")
        stray = [flags.names[k] for k in ("speculative_num_steps", "speculative_draft_model_path") if k in flags]
        reading.notes += tuple(
            f"{name} without --speculative-algorithm: SGLang does not speculate" for name in stray[:1]
        )
        reading.unclear = file.missing
        return reading
    reading.take(flags, "speculative_algorithm", "method", lambda name: METHODS.get(str(name).upper(), str(name)))
    if draft is None and reading.value("method") == "eagle":
        reading.say("method", "mtp", flags.names["speculative_algorithm"])
    drafted(reading, flags, draft, forced)
    sizes(reading, flags)
    eagle3 = reading.value("method") == "eagle3"
    if eagle3:
        reading.fixed(capture=OUTPUTS)
    reading.boundaries = add_draft(reading.terms, draft, target, OUTPUTS if eagle3 else None)
    reading.others = others(flags)
    return reading


def others(flags: Given) -> dict[str, object]:
    """Keys about speculation that have become no term."""
    return {name: value for name, value in flags.rest().items() if "spec" in name or "eagle" in name or "draft" in name}


def around(reading: Reading, flags: Given, target: str | None, *, whole: bool) -> None:
    """Take the terms that are not about drafts; with their defaults, where the whole config was read."""
    if target is not None:
        reading.name("target", target, "--model-path", flags.text("revision"))
    reading.take_each(flags, tp_size="tp", pp_size="pp", dp_size="dp", ep_size="ep", attn_cp_size="cp", dcp_size="cp",
            dtype="dtype", kv_cache_dtype="kv_dtype", quantization="quantization", context_length="max_positions",
            max_running_requests="max_batch")  # fmt: skip
    if flags.get("enable_dp_attention"):
        reading.say("dp", f"{flags.get('dp_size') or 1}, attention over the same GPUs", "--enable-dp-attention")
    for key in ("disable_cuda_graph", "disable_decode_cuda_graph"):
        reading.take(flags, key, "graphs", lambda off: False if off else None)
    reading.take(flags, "chunked_prefill_size", "max_tokens", count_of)
    reading.take(flags, "disable_radix_cache", "prefix_cache", lambda off: not off)
    reading.take(flags, "disable_overlap_schedule", "overlap", lambda off: not off)
    reading.take(flags, "load_format", "target_weights", dummy)
    reading.take(flags, "json_model_override_args", "overrides", object_text)
    if whole:
        reading.default(tp=1, pp=1, dp=1, ep=1, cp=1, dtype="auto", kv_dtype="auto", prefix_cache=True, graphs=True,
                overlap=True, quantization=AS_THE_CHECKPOINT, overrides=None,
                target_weights=AS_THE_CHECKPOINT)  # fmt: skip


def drafted(reading: Reading, flags: Given, draft: str | None, forced: float | None) -> None:
    """Take the terms about drafts, but for their sizes."""
    method = reading.value("method")
    revision = flags.text("speculative_draft_model_revision")
    if draft is not None:
        reading.name("draft_model", draft, "--speculative-draft-model-path", revision)
    elif method in ("ngram", "mtp"):
        reading.fixed(draft_model="in the target" if method == "mtp" else None)
    rejection = "rejection sampling"
    reading.take(flags, "speculative_use_rejection_sampling", "verification", lambda on: rejection if on else None)
    reading.take(flags, "speculative_use_block_verification", "verification",
         lambda on: "block verification" if on else None)  # fmt: skip
    thresholds = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    if lowered := [key for key in thresholds if key in flags and flags.get(key) != 1.0]:
        reading.take(flags, lowered[0], "threshold")
    reading.take(flags, "speculative_adaptive", "varies", lambda on: "adaptive, by what was accepted" if on else None)
    for key in ("speculative_dflash_draft_window_size", "speculative_draft_window_size"):
        reading.take(flags, key, "window")
    reading.take(flags, "speculative_draft_model_quantization", "draft_quantization")
    reading.take(flags, "speculative_draft_kv_cache_dtype", "draft_kv_dtype")
    reading.take(flags, "speculative_token_map", "vocabulary", lambda file: f"the tokens in {name_of(file)}")
    reading.take(flags, "speculative_draft_load_format", "weights", dummy)
    reading.look_up(flags, (key for key in sorted(FLAGS) if "ngram" in key))
    if forced is not None:
        reading.say("forced", forced, "SGLANG_SIMULATE_ACC_LEN")
    reading.default(verification="target-only sampling", threshold=1.0, varies="constant", window=NOT_APPLIED,
            draft_quantization=AS_THE_CHECKPOINT, weights=AS_THE_CHECKPOINT, lookup=None, forced=None,
            vocabulary="the draft's")  # fmt: skip
    reading.fixed(draft_sampling="greedy")
    reading.follow("draft_tp", "tp", "fixed")
    reading.follow("draft_kv_dtype", "kv_dtype")


def sizes(reading: Reading, flags: Given) -> None:
    """Take the sizes of the tree. Raises UsageError where SGLang would refuse them."""
    steps, topk, tokens = (flags.get(f"speculative_{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    method = reading.value("method")
    block = next((flags.get(k) for k in ("speculative_dflash_block_size", "speculative_dspark_block_size")
                  if k in flags), None)  # fmt: skip
    if method in ("ngram", "dflash", "dspark"):
        verified = tokens if tokens is not None else block
        if verified is None:
            reading.undecided += (f"no number of draft tokens: SGLang chooses one for {method}",)
            return
        reading.say("verified", verified, "--speculative-num-draft-tokens")
        reading.say("k", int(str(verified)) - 1, "--speculative-num-draft-tokens")
        if method != "ngram" or flags.values.get("speculative_ngram_max_bfs_breadth") == 1:
            reading.chain()
        return
    if steps is None and (topk is not None or tokens is not None) and not flags.undecided:
        raise UsageError(
            f"{reading.where}: --speculative-num-steps is missing",
            hint="SGLang takes steps, topk and draft tokens together",
        )
    reading.take(flags, "speculative_num_steps", "k")
    reading.take(flags, "speculative_eagle_topk", "topk")
    if steps is None:
        reading.undecided += (
            "no --speculative-num-steps: SGLang chooses 5, 4, 8 or 3, 1, 4 (steps, topk, tokens) by the target",
        )
        return
    if topk == 1:
        right = int(str(steps)) + 1
        reading.chain()
        if tokens not in (None, right):
            reading.notes += (
                f"--speculative-num-draft-tokens {tokens}: SGLang makes it {right}, num_steps + 1, where topk is 1",
            )
        return
    reading.take(flags, "speculative_num_draft_tokens", "verified")
    reading.fixed(path_len=int(str(steps)) + 1)
    if topk is None:
        reading.undecided += ("no --speculative-eagle-topk: whether chains or trees are drafted is not known",)
    else:
        reading.fixed(tree="dynamic tree", non_leaves=topk)
