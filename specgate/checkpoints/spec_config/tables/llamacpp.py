"""llama.cpp up to November 2026: `tools/server/README.md`, and the pull requests 22397 (April 2026: `--draft-…` became
`--spec-draft-…`) and 22964 (May 2026: types of drafts are called `draft-…`). Releases are months.
"""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

FLAGS: Final = Table("""
model,-m                                                   text    ?        -
model_url,-mu                                              text    ?        -
hf_repo,-hf,-hfr                                           text    ?        -
hf_file,-hff                                               text    ?        -
docker_repo,-dr                                            text    ?        -
ctx_size,-c                                                count   ?        -
parallel,-np                                               any     ?        -
batch_size,-b                                              count   ?        -
cache_type_k,-ctk                                          text    ?        -
cache_type_v,-ctv                                          text    ?        -
cache_prompt                                               flag    ?        -
no_cache_prompt                                            off     ?        -
split_mode,-sm                                             text    ?        -
tensor_split,-ts                                           text    ?        -
override_kv                                                text    ?        -
spec_type                                                  text    ?  -
spec_default                                               flag    ?  -
spec_draft_model,-md,--model-draft                         text    ?        -
spec_draft_hf,-hfd,-hfrd,--hf-repo-draft                   text    ?        -
spec_draft_n_max                                           count   2026-04  -
spec_draft_n_min                                           count   2026-04  -
draft,--draft-n,--draft-max                                count   ?        2026-04
draft_min,--draft-n-min                                    count   ?        2026-04
spec_draft_p_min,--draft-p-min                             number  ?        -
spec_draft_p_split,--draft-p-split                         number  ?        -
spec_draft_sampling                                        text    ?  -
spec_draft_backend_sampling                                flag    ?  -
no_spec_draft_backend_sampling                             off     ?  -
spec_synth_len                                             number  ?  -
spec_synth_rates                                           text    ?  -
spec_draft_type_k,-ctkd,--cache-type-k-draft               text    ?        -
spec_draft_type_v,-ctvd,--cache-type-v-draft               text    ?        -
ctx_size_draft,-cd                                         count   ?        -
spec_draft_ngl,-ngld,--gpu-layers-draft,--n-gpu-layers-draft  text  ?       -
spec_draft_device,-devd,--device-draft                     text    ?        -
spec_draft_threads,-td,--threads-draft                     count   ?        -
spec_draft_threads_batch,-tbd,--threads-batch-draft        count   ?        -
spec_draft_cpu_mask,-Cd,--cpu-mask-draft                   text    ?        -
spec_draft_cpu_range,-Crd,--cpu-range-draft                text    ?        -
spec_draft_cpu_strict,--cpu-strict-draft                   any     ?        -
spec_draft_prio,--prio-draft                               any     ?        -
spec_draft_poll,--poll-draft                               any     ?        -
spec_draft_cpu_mask_batch,-Cbd,--cpu-mask-batch-draft      text    ?        -
spec_draft_cpu_strict_batch,--cpu-strict-batch-draft       any     ?        -
spec_draft_prio_batch,--prio-batch-draft                   any     ?        -
spec_draft_poll_batch,--poll-batch-draft                   any     ?        -
spec_draft_override_tensor,-otd,--override-tensor-draft    text    ?        -
spec_draft_cpu_moe,-cmoed,--cpu-moe-draft                  flag    ?        -
spec_draft_n_cpu_moe,--spec-draft-ncmoe,-ncmoed,--n-cpu-moe-draft  count  ?  -
spec_replace,--spec-replace                                text    ?        -
spec_ngram_size_n                                          count   ?  2026-04
spec_ngram_size_m                                          count   ?  2026-04
spec_ngram_min_hits                                        count   ?  2026-04
spec_ngram_mod_n_min                                       count   2026-04  -
spec_ngram_mod_n_max                                       count   2026-04  -
spec_ngram_mod_n_match                                     count   2026-04  -
spec_ngram_simple_size_n                                   count   2026-04  -
spec_ngram_simple_size_m                                   count   2026-04  -
spec_ngram_simple_min_hits                                 count   2026-04  -
spec_ngram_map_k_size_n                                    count   2026-04  -
spec_ngram_map_k_size_m                                    count   2026-04  -
spec_ngram_map_k_min_hits                                  count   2026-04  -
spec_ngram_map_k4v_size_n                                  count   2026-04  -
spec_ngram_map_k4v_size_m                                  count   2026-04  -
spec_ngram_map_k4v_min_hits                                count   2026-04  -
""")  # fmt: skip
"""Flags of `llama-server`."""

METHODS: Final = {
    "draft-eagle3": "eagle3", "draft-simple": "draft_model", "draft-mtp": "mtp", "draft-dflash": "dflash",
    "draft-dspark": "dspark", "ngram-simple": "ngram", "ngram-map-k": "ngram", "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram", "ngram-cache": "ngram",
}  # fmt: skip
"""`--spec-type` → drafter."""
NAMED: Final = "2026-05"
"""Month in which the types of drafts became `draft-…`."""
