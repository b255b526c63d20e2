"""LMDeploy's releases up to 0.18.0, read from `cli/` and `messages.py` of every wheel since 0.8.0."""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

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

SECTION: Final = Table(
    count="num_speculative_tokens dflash_block_size",
    text="method model",
)
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
