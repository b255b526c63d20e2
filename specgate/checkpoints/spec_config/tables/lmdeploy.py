"""LMDeploy's releases up to 0.18.0, read from `cli/` and `messages.py` of every wheel since 0.8.0."""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

FLAGS: Final = Table("""
speculative_algorithm          text    0.11.0  -
speculative_draft_model        text    0.11.0  -
speculative_num_draft_tokens   count   0.11.0  -
speculative_dflash_block_size  count   0.18.0  -
backend                        text    ?       -
revision                       text    ?       -
tp                             count   ?       -
dp                             count   ?       -
ep                             count   ?       -
cp                             count   0.11.0  -
dtype                          text    ?       -
model_format                   text    ?       -
quant_policy                   any     ?       -
session_len                    count   ?       -
max_batch_size                 count   ?       -
max_prefill_token_num          count   ?       -
enable_prefix_caching          flag    ?       -
eager_mode                     flag    ?       -
empty_init                     flag    0.18.0  -
hf_overrides                   setting 0.9.2   -
""", shortened=True)  # fmt: skip
"""Flags of `lmdeploy serve api_server`."""

SECTION: Final = Table("""
method                  text   0.11.0  -
model                   text   0.11.0  -
num_speculative_tokens  count  0.11.0  -
dflash_block_size       count  0.18.0  -
""")  # fmt: skip
"""Fields of `SpeculativeConfig`."""

CACHES: Final = {"0": "auto", "none": "auto", "4": "int4", "int4": "int4", "8": "int8", "int8": "int8", "16": "fp8",
                 "fp8": "fp8", "fp8_e4m3": "fp8", "17": "fp8_e5m2", "fp8_e5m2": "fp8_e5m2", "42": "turbo_quant",
                 "turbo_quant": "turbo_quant"}  # fmt: skip
"""`--quant-policy` → dtype of the KV cache."""

TURBOMIND: Final = Table("""
method                     text    ?  -
model                      text    ?  -
num_speculative_tokens     count   ?  -
max_path_len               count   ?  -
max_decoding_tokens        count   ?  -
max_non_leaves_per_layer   count   ?  -
capture_layers             list    ?  -
tp                         count   ?  -
eagle_debug                switch  ?  -
eagle_metrics_debug        switch  ?  -
enable_target_tree         switch  ?  -
enable_specpv              switch  ?  -
specpv_block_size          count   ?  -
specpv_n_sink_blocks       count   ?  -
specpv_n_retrieval_blocks  count   ?  -
specpv_n_window_blocks     count   ?  -
specpv_n_spec_tokens_buf   count   ?  -
specpv_partial_threshold   count   ?  -
specpv_full_refresh_steps  count   ?  -
max_matching_ngram_size    count   ?  -
is_public_pool             switch  ?  -
""")  # fmt: skip
"""Keys of forks that put EAGLE-3 into TurboMind."""
