"""TensorRT-LLM: keys of `llmapi/llm_args.py` and flags of `commands/serve.py`, read in part from main of 2026 and
an older version. The package index has no wheels of it, so that releases of a key are not known.
"""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

SECTION: Final = Table("""
decoding_type                               text    ?  -
max_draft_len                               count   ?  -
max_total_draft_tokens                      count   ?  -
speculative_model                           text    ?  -
speculative_model_dir                       text    ?  -
pytorch_weights_path                        text    ?  -
load_format                                 text    ?  -
max_concurrency                             count   ?  -
draft_len_schedule                          object  ?  -
acceptance_window                           count   ?  -
acceptance_length_threshold                 number  ?  -
acceptance_rate_window_size                 count   ?  -
acceptance_rate_threshold                   number  ?  -
use_rejection_sampling                      switch  ?  -
allow_advanced_sampling                     switch  ?  -
advanced_sampling_mode                      text    ?  -
enable_penalty                              switch  ?  -
eagle_choices                               any     ?  -
greedy_sampling                             switch  ?  -
posterior_threshold                         number  ?  -
use_dynamic_tree                            switch  ?  -
dynamic_tree_max_topK                       count   ?  -
num_eagle_layers                            count   ?  -
max_non_leaves_per_layer                    count   ?  -
eagle3_one_model                            switch  ?  -
eagle3_layers_to_capture                    list    ?  -
eagle3_model_arch                           text    ?  -
sa_config                                   object  ?  -
medusa_choices                              any     ?  -
num_medusa_heads                            count   ?  -
num_nextn_predict_layers                    count   ?  -
num_nextn_predict_layers_from_model_config  count   ?  -
use_relaxed_acceptance_for_thinking         switch  ?  -
relaxed_topk                                count   ?  -
relaxed_delta                               number  ?  -
use_mtp_vanilla                             switch  ?  -
mtp_eagle_one_model                         switch  ?  -
begin_thinking_phase_token                  count   ?  -
end_thinking_phase_token                    count   ?  -
BEGIN_THINKING_PHASE_TOKEN                  count   ?  -
END_THINKING_PHASE_TOKEN                    count   ?  -
max_matching_ngram_size                     any     ?  -
is_keep_all                                 switch  ?  -
is_use_oldest                               switch  ?  -
is_public_pool                              switch  ?  -
is_auto_heuristic                           switch  ?  -
enable_global_pool                          switch  ?  -
global_pool_size                            count   ?  -
max_window_size                             count   ?  -
max_ngram_size                              count   ?  -
max_verification_set_size                   count   ?  -
mask_token_id                               count   ?  -
target_layer_ids                            list    ?  -
attention_backend                           text    ?  -
output_directory                            text    ?  -
write_interval                              count   ?  -
file_prefix                                 text    ?  -
max_path_len                                count   ?  -
max_decoding_tokens                         count   ?  -
max_decoding_draft_tokens                   count   ?  -
""")  # fmt: skip
"""Keys of `speculative_config`, of all its decoding types and of the former EAGLE builds."""

FLAGS: Final = Table("""
model                                              text     ?  -
backend                                            text     ?  -
revision                                           text     ?  -
tensor_parallel_size,tp_size,tp                    count    ?  -
pipeline_parallel_size,pp_size,pp                  count    ?  -
context_parallel_size,cp_size                      count    ?  -
moe_expert_parallel_size,ep_size,ep                count    ?  -
enable_attention_dp                                flag     ?  -
dtype                                              text     ?  -
max_seq_len                                        count    ?  -
max_batch_size                                     count    ?  -
max_num_tokens                                     count    ?  -
kv_cache_dtype                                     text     ?  -
disable_kv_cache_reuse                             flag     ?  -
load_format                                        text     ?  -
quant_config                                       any      ?  -
model_kwargs                                       any      ?  -
disable_overlap_scheduler                          switch   ?  -
kv_cache_config                                    object   ?  -
cuda_graph_config                                  any      ?  -
use_cuda_graph                                     switch   ?  -
pytorch_backend_config                             object   ?  -
speculative_config                                 object   ?  -
per_request_spec_decode_stats                      switch   ?  -
config,extra_llm_api_options                       text     ?  -
set                                                text     ?  -
""")  # fmt: skip
"""Keys of the YAML file, and flags of `trtllm-serve`."""

METHODS: Final = {
    "eagle3": "eagle3", "eagle": "eagle3", "mtp": "mtp", "draftarget": "draft_model", "drafttarget": "draft_model",
    "draft_target": "draft_model", "ngram": "ngram", "medusa": "medusa", "lookahead": "lookahead", "pard": "pard",
    "dflash": "dflash", "dspark": "dspark", "sa": "suffix", "auto": "auto", "userprovided": "custom_class",
    "user_provided": "custom_class", "savestate": "extract_hidden_states",
}  # fmt: skip
"""`decoding_type`, in small letters → drafter. The PyTorch back end, the default since 1.0, takes `Eagle` as it."""
