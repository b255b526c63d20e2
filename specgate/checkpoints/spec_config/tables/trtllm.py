"""TensorRT-LLM: keys of `llmapi/llm_args.py` and flags of `commands/serve.py`, read in part from main of 2026 and
an older version. The package index has no wheels of it, so that releases of a key are not known.
"""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

SECTION: Final = Table(
    count="""
        max_draft_len max_total_draft_tokens max_concurrency acceptance_window acceptance_rate_window_size
        dynamic_tree_max_topK num_eagle_layers max_non_leaves_per_layer num_medusa_heads num_nextn_predict_layers
        num_nextn_predict_layers_from_model_config relaxed_topk begin_thinking_phase_token end_thinking_phase_token
        BEGIN_THINKING_PHASE_TOKEN END_THINKING_PHASE_TOKEN global_pool_size max_window_size max_ngram_size
        max_verification_set_size mask_token_id write_interval max_path_len max_decoding_tokens
        max_decoding_draft_tokens
    """,
    number="acceptance_length_threshold acceptance_rate_threshold posterior_threshold relaxed_delta",
    text="""
        decoding_type speculative_model speculative_model_dir pytorch_weights_path load_format advanced_sampling_mode
        eagle3_model_arch attention_backend output_directory file_prefix
    """,
    switch="""
        use_rejection_sampling allow_advanced_sampling enable_penalty greedy_sampling use_dynamic_tree
        eagle3_one_model use_relaxed_acceptance_for_thinking use_mtp_vanilla mtp_eagle_one_model is_keep_all
        is_use_oldest is_public_pool is_auto_heuristic enable_global_pool
    """,
    object="draft_len_schedule sa_config",
    list="eagle3_layers_to_capture target_layer_ids",
    any="eagle_choices medusa_choices max_matching_ngram_size",
)
"""Keys of `speculative_config`, of all its decoding types and of the former EAGLE builds."""

FLAGS: Final = Table(
    count="""
        tensor_parallel_size,tp_size,tp pipeline_parallel_size,pp_size,pp context_parallel_size,cp_size
        moe_expert_parallel_size,ep_size,ep max_seq_len max_batch_size max_num_tokens
    """,
    text="model backend revision dtype kv_cache_dtype load_format config,extra_llm_api_options set",
    switch="disable_overlap_scheduler use_cuda_graph per_request_spec_decode_stats",
    flag="enable_attention_dp disable_kv_cache_reuse",
    object="kv_cache_config pytorch_backend_config speculative_config",
    any="quant_config model_kwargs cuda_graph_config",
)
"""Keys of the YAML file, and flags of `trtllm-serve`."""

METHODS: Final = {
    "eagle3": "eagle3", "eagle": "eagle3", "mtp": "mtp", "draftarget": "draft_model", "drafttarget": "draft_model",
    "draft_target": "draft_model", "ngram": "ngram", "medusa": "medusa", "lookahead": "lookahead", "pard": "pard",
    "dflash": "dflash", "dspark": "dspark", "sa": "suffix", "auto": "auto", "userprovided": "custom_class",
    "user_provided": "custom_class", "savestate": "extract_hidden_states",
}  # fmt: skip
"""`decoding_type`, in small letters → drafter. The PyTorch back end, the default since 1.0, takes `Eagle` as it."""
