"""vLLM up to 0.33.0, read from `config/speculative.py` and `engine/arg_utils.py` of every wheel since 0.4.0."""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

SECTION: Final = Table("""
num_speculative_tokens                 count   0.8.2   -
method                                 text    0.8.2   -
model                                  text    0.8.2   -
draft_tensor_parallel_size             count   0.8.2   -
tensor_parallel_size                   count   0.15.0  -
quantization                           text    0.8.2   -
max_model_len                          count   0.8.2   -
revision                               text    0.8.2   -
code_revision                          text    0.8.2   -
prompt_lookup_max                      count   0.8.2   -
prompt_lookup_min                      count   0.8.2   -
acceptance_method                      text    0.8.2   0.9.2
posterior_threshold                    number  0.8.2   0.9.2
posterior_alpha                        number  0.8.2   0.9.2
disable_mqa_scorer                     switch  0.8.2   0.9.2
disable_by_batch_size                  count   0.8.2   0.16.0
disable_logprobs                       switch  0.8.2   0.11.0
disable_log_stats                      switch  0.8.2   0.11.0
enable_chunked_prefill                 switch  0.8.2   0.11.0
speculative_token_tree                 text    0.9.0   0.20.2
enforce_eager                          switch  0.11.0  -
disable_padded_drafter_batch           switch  0.11.0  -
suffix_decoding_max_cached_requests    count   0.11.1  -
suffix_decoding_max_spec_factor        number  0.11.1  -
suffix_decoding_max_tree_depth         count   0.11.1  -
suffix_decoding_min_token_prob         number  0.11.1  -
parallel_drafting                      switch  0.16.0  -
draft_load_config                      object  0.17.0  -
use_local_argmax_reduction             switch  0.17.0  -
rejection_sample_method                text    0.18.0  -
synthetic_acceptance_rate              number  0.19.0  0.19.1
moe_backend                            text    0.19.0  -
synthetic_acceptance_length            number  0.20.0  -
synthetic_acceptance_rates             list    0.20.0  -
attention_backend                      text    0.21.0  -
draft_sample_method                    text    0.21.0  -
num_speculative_tokens_per_batch_size  list    0.24.0  -
use_heterogeneous_vocab                switch  0.25.0  -
kv_cache_dtype                         text    0.26.0  -
dspark_draft_topk                      count   0.28.0  -
enable_adaptive_verification           switch  0.28.0  -
index_share_for_mtp_iteration          switch  0.29.0  -
disable_eagle_block_drop               switch  0.30.0  -
disable_lookahead_block_hashes         switch  0.33.0  -
draft_lm_head_quantization             text    0.33.0  -
fly_entropy_threshold                  number  0.33.0  -
fly_entropy_top_k                      count   0.33.0  -
fly_window_size                        count   0.33.0  -
xpress_topc                            count   0.33.0  -
""")  # fmt: skip
"""Keys of `--speculative-config`."""

FLAGS: Final = Table("""
speculative_config,-sc                                     setting  0.8.2   -
spec_method                                                text     0.22.0  -
spec_model                                                 text     0.22.0  -
spec_tokens                                                count    0.22.0  -
speculative_model                                          text     0.4.1   0.8.2
num_speculative_tokens                                     count    0.4.1   0.8.2
speculative_draft_tensor_parallel_size,-spec-draft-tp      count    0.5.1   0.8.2
speculative_model_quantization                             text     0.5.5   0.8.2
speculative_max_model_len                                  count    0.4.1   0.8.2
speculative_disable_by_batch_size                          count    0.4.3   0.8.2
speculative_disable_mqa_scorer                             flag     0.6.3   0.8.2
spec_decoding_acceptance_method                            text     0.5.1   0.8.2
typical_acceptance_sampler_posterior_threshold             number   0.5.1   0.8.2
typical_acceptance_sampler_posterior_alpha                 number   0.5.1   0.8.2
disable_logprobs_during_spec_decoding                      switch   0.5.3   0.8.2
ngram_prompt_lookup_max                                    count    0.4.2   0.8.2
ngram_prompt_lookup_min                                    count    0.4.2   0.8.2
per_request_spec_decode_metrics                            text     0.29.0  -
specialize_active_lora                                     flag     0.16.0  -
model                                                      text     ?       -
revision                                                   text     ?       -
tensor_parallel_size,-tp                                   count    ?       -
pipeline_parallel_size,-pp                                 count    ?       -
data_parallel_size,-dp                                     count    0.8.3   -
decode_context_parallel_size,-dcp                          count    0.10.2  -
prefill_context_parallel_size,-pcp                         count    0.12.0  -
enable_expert_parallel,-ep                                 flag     0.8.0   -
no_enable_expert_parallel                                  off      0.8.0   -
dtype                                                      text     ?       -
kv_cache_dtype                                             text     ?       -
quantization,-q                                            text     ?       -
load_format                                                text     ?       -
max_model_len                                              any      ?       -
max_num_seqs                                               count    ?       -
max_num_batched_tokens                                     any      ?       -
enable_prefix_caching                                      flag     0.4.0   -
no_enable_prefix_caching                                   off      0.4.0   -
enforce_eager                                              flag     ?       -
no_enforce_eager                                           off      0.8.2   -
async_scheduling                                           flag     0.10.0  -
no_async_scheduling                                        off      0.10.0  -
compilation_config,-cc                                     setting  0.6.5   -
optimization_level,-O                                      any      ?       -
hf_overrides                                               setting  0.6.4   -
rope_scaling                                               setting  0.4.3   0.11.0
rope_theta                                                 number   0.5.0   0.11.0
engram_config                                              setting  0.30.0  -
num_lookahead_slots                                        count    ?       0.11.2
config                                                     text     ?       -
""", shortened=True)  # fmt: skip
"""Flags of the server, and keys of the YAML file of its `--config`."""

FALSE_COUNTS: Final = "0.28.0"
"""The first release in which `key: false` in the file of `--config` switches something off. Older ones pass over it."""

REMOVED: Final = {
    "speculative_model": "model", "num_speculative_tokens": "num_speculative_tokens",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_model_quantization": "quantization", "speculative_max_model_len": "max_model_len",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "speculative_disable_mqa_scorer": "disable_mqa_scorer",
    "spec_decoding_acceptance_method": "acceptance_method",
    "typical_acceptance_sampler_posterior_threshold": "posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha": "posterior_alpha",
    "disable_logprobs_during_spec_decoding": "disable_logprobs",
    "ngram_prompt_lookup_max": "prompt_lookup_max", "ngram_prompt_lookup_min": "prompt_lookup_min",
    "spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens",
}  # fmt: skip
"""Flag that stands for one key → that key of `--speculative-config`."""

MTP: Final = frozenset({
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp",
    "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp",
    "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "kimi_k3_mtp",
    "pangu_ultra_moe_mtp", "step3p5_mtp", "step5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp",
    "glm5_next_mtp",
})  # fmt: skip
"""Older names of the method `mtp`."""
