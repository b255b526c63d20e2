"""Formats in which single engines write their speculative configs.

    collect_terms.py  terms collected from flags and keys: stated, default, or fixed
    draft_folder.py   what the draft's own config adds: its window, and the layers that an engine makes of its ids
    static_trees.py   the sizes of a tree that is written as paths
    vllm.py           vLLM: `--speculative-config`, the flags around it, and the YAML of its `--config`
    sglang.py         SGLang: `--speculative-…`, or the same keys in a YAML file
    trtllm.py         TensorRT-LLM: `speculative_config`, the keys around it, and those of its former EAGLE builds
    lmdeploy.py       LMDeploy's command line, and TurboMind's draft folders
    llamacpp.py       llama.cpp: `--spec-…`, and the flags that it had before
    spec_config.py    specgate's own `SpecConfig`

What keys mean was read in November 2026 from each project's own sources: `vllm/config/speculative.py`,
`sglang/srt/arg_groups/speculative_hook.py`, `tensorrt_llm/llmapi/llm_args.py`, `lmdeploy/messages.py`, llama.cpp's
`tools/server/README.md`.
"""
