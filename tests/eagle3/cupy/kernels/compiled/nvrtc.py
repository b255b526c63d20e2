"""Compiles CUDA sources with NVRTC: a program of its own, because NVRTC can crash the process that it runs in.

stdin: a JSON list of sources, {"name": …, "text": …, "options": […]}; stdout: one of {"compiled": …, "log": …}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from cuda.bindings import nvrtc


def compile_cubin(name: str, text: str, options: Sequence[str]) -> dict[str, bool | str]:
    """Compile to machine code; return the success and the compiler's output."""
    program = checked(*nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = b" " * checked(*nvrtc.nvrtcGetProgramLogSize(program))
    checked(*nvrtc.nvrtcGetProgramLog(program, log))
    compiled = status == nvrtc.nvrtcResult.NVRTC_SUCCESS and checked(*nvrtc.nvrtcGetCUBINSize(program)) > 0
    checked(*nvrtc.nvrtcDestroyProgram(program))
    return {"compiled": compiled, "log": log.rstrip(b"\0 ").decode()}


def checked(status: Any, value: Any = None) -> Any:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(nvrtc.nvrtcGetErrorString(status))
    return value


if __name__ == "__main__":
    json.dump([compile_cubin(**source) for source in json.load(sys.stdin)], sys.stdout)
