"""llama.cpp up to November 2026: `tools/server/README.md`, and the pull requests 22397 (April 2026: `--draft-…` became
`--spec-draft-…`; K is read of either) and 22964 (May 2026: types of drafts are called `draft-…`).
"""

from typing import Final

from specgate.checkpoints.spec_config.tables import Table

FLAGS: Final = Table(
    count="""
        ctx_size,-c batch_size,-b spec_draft_n_max,--draft,--draft-n,--draft-max
        spec_draft_n_min,--draft-min,--draft-n-min ctx_size_draft,-cd
        spec_draft_threads,-td,--threads-draft spec_draft_threads_batch,-tbd,--threads-batch-draft
        spec_draft_n_cpu_moe,--spec-draft-ncmoe,-ncmoed,--n-cpu-moe-draft spec_ngram_mod_n_min spec_ngram_mod_n_max
        spec_ngram_mod_n_match spec_ngram_simple_size_n spec_ngram_simple_size_m spec_ngram_simple_min_hits
        spec_ngram_map_k_size_n spec_ngram_map_k_size_m spec_ngram_map_k_min_hits spec_ngram_map_k4v_size_n
        spec_ngram_map_k4v_size_m spec_ngram_map_k4v_min_hits
    """,
    number="spec_draft_p_min,--draft-p-min spec_draft_p_split,--draft-p-split spec_synth_len",
    text="""
        model,-m model_url,-mu hf_repo,-hf,-hfr hf_file,-hff docker_repo,-dr cache_type_k,-ctk cache_type_v,-ctv
        split_mode,-sm tensor_split,-ts override_kv spec_type spec_draft_model,-md,--model-draft
        spec_draft_hf,-hfd,-hfrd,--hf-repo-draft spec_draft_sampling spec_synth_rates
        spec_draft_type_k,-ctkd,--cache-type-k-draft spec_draft_type_v,-ctvd,--cache-type-v-draft
        spec_draft_ngl,-ngld,--gpu-layers-draft,--n-gpu-layers-draft spec_draft_device,-devd,--device-draft
        spec_draft_cpu_mask,-Cd,--cpu-mask-draft spec_draft_cpu_range,-Crd,--cpu-range-draft
        spec_draft_cpu_mask_batch,-Cbd,--cpu-mask-batch-draft spec_draft_override_tensor,-otd,--override-tensor-draft
        spec_replace,--spec-replace
    """,
    flag="cache_prompt spec_default spec_draft_backend_sampling spec_draft_cpu_moe,-cmoed,--cpu-moe-draft",
    off="no_cache_prompt no_spec_draft_backend_sampling",
    any="""
        parallel,-np spec_draft_cpu_strict,--cpu-strict-draft spec_draft_prio,--prio-draft
        spec_draft_poll,--poll-draft spec_draft_cpu_strict_batch,--cpu-strict-batch-draft
        spec_draft_prio_batch,--prio-batch-draft spec_draft_poll_batch,--poll-batch-draft
    """,
)
"""Flags of `llama-server`."""

METHODS: Final = {
    "draft-eagle3": "eagle3", "draft-simple": "draft_model", "draft-mtp": "mtp", "draft-dflash": "dflash",
    "draft-dspark": "dspark", "ngram-simple": "ngram", "ngram-map-k": "ngram", "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram", "ngram-cache": "ngram",
}  # fmt: skip
"""`--spec-type` → drafter."""
