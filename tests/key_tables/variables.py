"""Environment variables that specgate, its script and its tests read."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES: Mapping[str, Mapping[str, str]] = {
    "specgate": {
        "SPECGATE_CACHE": "folder of fetched packages, converted checkpoints and tuned configurations",
        "HF_HOME": "cache of Hugging Face, where the tokenizer of a served model may lie",
        "SPECGATE_LOAD_PLUGINS": "the only distributions searched for plug-ins, comma separated; unset: all",
        "SPECGATE_PASS_ENV": "names of further variables that an engine's process gets",
        "CUDA_VISIBLE_DEVICES": "the first GPU named is measured; empty or `-1`: no GPU",
        "CUDA_PATH": "folder of the CUDA toolkit that the fingerprint names",
        "CUDA_HOME": "the same, where `CUDA_PATH` is unset",
        "PYTHONPATH": "searched by an engine as a library after `-o pythonpath`",
        "GITHUB_STEP_SUMMARY": "file that `runs report --github` appends the summary to",
        "NO_COLOR": "set: no colour",
        "TERM": "`dumb`: no style",
        "COLUMNS": "width of the terminal",
    },
    "`cupy`": {
        "PYTORCH_ALLOC_CONF": "settings of torch's allocator; one of how it splits blocks replaces the engine's",
        "PYTORCH_CUDA_ALLOC_CONF": "the same, where `PYTORCH_ALLOC_CONF` is unset",
    },
    "TurboMind with EAGLE-3": {
        "LMDEPLOY_EAGLE_PERF_MODE": "`1` in PERF_MODE; set where its files name it and you have not",
        "LMDEPLOY_EAGLE_MICRO_STEPS": "engine steps of a micro block; likewise",
    },
    "`run_suite.sh`": {
        "SCENARIOS": "`--scenario` of each, comma separated; without a command, `suite`: micro gates, then `full`",
        "BACKEND": "`--backend`",
        "MODEL_PATH": "`--target`",
        "SPEC_MODEL_PATH": "`--draft`",
        "WARMUP_RUNS": "`--warmup-runs`",
        "MEASUREMENT_RUNS": "`--measurement-runs`",
        "MICRO_STEPS": "`--steps`, of `micro`",
        "PERF_MODE": "`0`, `1`: `--no-perf-mode`, `--perf-mode`",
        "PYTHON": "the interpreter that makes `.venv`; default `python3`",
        "OMP_WAIT_POLICY": "how torch's threads wait for each other; default without a GPU `passive`",
    },
    "tests": {
        "SPECGATE_LLAMA_SERVER": "llama.cpp's server, for `tests/real`",
        "SPECGATE_DEMO_GGUF": "folder of the demo pair as GGUF, for llama.cpp",
        "SPECGATE_VLLM": "the program `vllm`, for `tests/real` and `run_suite.sh servers`",
        "SPECGATE_TEST_LEAVES": "every so many-th leaf of a stored run is changed; default 5",
        "STAND_IN_FAULT": "`PLACE=FAULT` in the stand-ins of engine libraries",
        "LMDEPLOY_EAGLE_KV_DEBUG": "set: TurboMind's stand-in logs each rewind, as the fork does",
        "TM_EAGLE3_FMHA_KV_TILE": "positions of a tile of TurboMind's attention; its stand-in is slower with fewer",
        "TM_GEMM_TUNE": "set: TurboMind's stand-in tunes its products",
        "TM_GEMM_EXPORT": "the file that it writes then",
        "TM_GEMM_IMPORT": "a file that it reads, and is faster with",
        "TM_EAGLE3_FMHA_TILE_STATS": "set: it logs the tiles of the draft's attention",
        "SPECGATE_ALONE": "`tests`: all tests of the harness run without the engine",
        "OMP_NUM_THREADS": "threads of torch; the tests set 1",
        "HF_HUB_OFFLINE": "`1`, set by the tests: nothing is downloaded",
        "VLLM_CPU_KVCACHE_SPACE": "GiB of vLLM's cache on a CPU, set by `run_suite.sh servers`",
        "NCCL_NVLS_ENABLE": "`0`, set by tests of several GPUs: no multicast over NVLink",
    },
}
"""Reader → variable → what it does."""
