"""SGLang's releases up to 0.5.23, read from `srt/server_args.py` and `srt/arg_groups/` of every wheel since 0.4.1."""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

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
