"""vLLM up to 0.33.0, read from `config/speculative.py` and `engine/arg_utils.py` of every wheel since 0.4.0."""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

SECTION: Final = Table(
    count="""
        num_speculative_tokens draft_tensor_parallel_size tensor_parallel_size max_model_len prompt_lookup_max
        prompt_lookup_min disable_by_batch_size suffix_decoding_max_cached_requests suffix_decoding_max_tree_depth
        dspark_draft_topk fly_entropy_top_k fly_window_size xpress_topc
    """,
    number="""
        posterior_threshold posterior_alpha suffix_decoding_max_spec_factor suffix_decoding_min_token_prob
        synthetic_acceptance_rate synthetic_acceptance_length fly_entropy_threshold
    """,
    text="""
        method model quantization revision code_revision acceptance_method speculative_token_tree
        rejection_sample_method moe_backend attention_backend draft_sample_method kv_cache_dtype
        draft_lm_head_quantization
    """,
    switch="""
        disable_mqa_scorer disable_logprobs disable_log_stats enable_chunked_prefill enforce_eager
        disable_padded_drafter_batch parallel_drafting use_local_argmax_reduction use_heterogeneous_vocab
        enable_adaptive_verification index_share_for_mtp_iteration disable_eagle_block_drop
        disable_lookahead_block_hashes
    """,
    object="draft_load_config",
    list="synthetic_acceptance_rates num_speculative_tokens_per_batch_size",
)
"""Keys of `--speculative-config`."""

FLAGS: Final = Table(
    count="""
        spec_tokens tensor_parallel_size,-tp pipeline_parallel_size,-pp data_parallel_size,-dp
        decode_context_parallel_size,-dcp prefill_context_parallel_size,-pcp max_num_seqs num_lookahead_slots
    """,
    number="rope_theta",
    text="""
        spec_method spec_model per_request_spec_decode_metrics model revision dtype kv_cache_dtype quantization,-q
        load_format config
    """,
    flag="""
        specialize_active_lora enable_expert_parallel,-ep enable_prefix_caching enforce_eager async_scheduling
    """,
    off="no_enable_expert_parallel no_enable_prefix_caching no_enforce_eager no_async_scheduling",
    setting="speculative_config,-sc compilation_config,-cc hf_overrides rope_scaling engram_config",
    any="max_model_len max_num_batched_tokens optimization_level,-O",
)
"""Flags of the server, and keys of the YAML file of its `--config`."""

SHORT: Final = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Flag that stands for one key → that key of `--speculative-config`."""

MTP: Final = frozenset({
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp",
    "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp",
    "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "kimi_k3_mtp",
    "pangu_ultra_moe_mtp", "step3p5_mtp", "step5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp",
    "glm5_next_mtp",
})  # fmt: skip
"""Older names of the method `mtp`."""
