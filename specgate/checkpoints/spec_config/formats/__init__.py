"""Formats in which single engines write their speculative configs.

    collect_terms.py  terms collected from flags and keys: stated, default, or fixed
    draft_folder.py   what the draft's own config adds: its window, and the layers that an engine makes of its ids
    vllm.py           vLLM 0.25.1: `--speculative-config`, and its flags
    sglang.py         SGLang 0.5.17: `--speculative-…`, or the same keys in a YAML file
    trtllm.py         TensorRT-LLM 1.2 and main of 2026: `speculative_config`; and the keys of its former EAGLE builds
    lmdeploy.py       LMDeploy's command line, and TurboMind's draft folders
    llamacpp.py       llama.cpp of 2026: `--spec-…`
    spec_config.py    specgate's own `SpecConfig`
    stored_run.py     a run folder

Read in November 2026 from each project's own sources: `vllm/config/speculative.py`, `sglang/srt/server_args.py` with
`arg_groups/speculative_hook.py`, `tensorrt_llm/llmapi/llm_args.py`, `lmdeploy/messages.py` with
`lmdeploy/cli/utils.py`, llama.cpp's `tools/server/README.md`.
"""
