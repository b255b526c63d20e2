"""The part of the environment that an engine's process gets: what engines and their libraries read, and no credentials.

A name is passed if it is in NAMES or begins with one of PREFIXES, unless it looks like the name of a credential. Any
name is passed that the user lists in SPECGATE_PASS_ENV, or that the option `api_key_env` names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

LISTED: Final = "SPECGATE_PASS_ENV"
"""The variable with further names, separated by commas."""
NAMES: Final = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "CC", "CXX", "VIRTUAL_ENV", "CONDA_PREFIX", "NO_COLOR",
    "GLIBC_TUNABLES", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "SPECGATE_CACHE", "SPECGATE_LOAD_PLUGINS",
))  # fmt: skip
PREFIXES: Final = (
    "LC_", "XDG_", "PYTHON", "MALLOC_",
    # CUDA and what is built on it
    "CUDA", "NVIDIA_", "NCCL_", "CUBLAS", "CUDNN_", "CUPY_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_",
    # threads and kernels of the CPU
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_",
    # checkpoints and tokenizers
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_",
    # other people's engines
    "VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "TLLM_", "LMDEPLOY_", "TM_", "LLAMA_", "GGML_",
)  # fmt: skip
CREDENTIAL: Final = re.compile(r"(TOKEN|(KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?)(_|$)", re.IGNORECASE)
"""What the name of a credential ends with, or a part of it: HF_TOKEN, but not VLLM_MAX_TOKENS."""


def passed(environment: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """The environment of an engine's process; `options` are those of its back end."""
    listed = {name.strip() for name in environment.get(LISTED, "").split(",")} | {options.get("api_key_env", "")}
    return {name: value for name, value in environment.items() if name in listed or _known(name)}


def _known(name: str) -> bool:
    return (name in NAMES or name.startswith(PREFIXES)) and CREDENTIAL.search(name) is None
