"""Start of an engine's process: its surroundings, its command line, and the first answer.

A name is passed if it is in NAMES or begins with one of PREFIXES, unless it looks like the name of a credential. Any
name is passed that the user lists in SPECGATE_PASS_ENV, or that the option `api_key_env` names.

IMPORT_PATH is the harness's `sys.path` as JSON, so that both import the same code, installed or not; or an object with
the folders that come before and after the interpreter's own, for another build than the harness's. SOCKET carries the
messages. LIFE_LINE is the reading end of a pipe whose other end only the harness has: nothing is ever written to it,
and it closes however the harness ends, SIGKILL included. The engine may then hang in a call and never read the socket,
so a thread of its own waits for that.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Final

import specgate

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


def main(arguments: Sequence[str]) -> None:
    """Answer requests until one asks to close, or the harness ends."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the harness handles Ctrl-C: it saves, then closes this process
    path, connection, life_line = arguments
    for descriptor in (int(connection), int(life_line)):
        os.set_inheritable(descriptor, False)  # programs that the engine starts must not hold them open
    threading.Thread(target=_end_with_harness, args=(int(life_line),), daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # a killed process leaves whole lines
    sys.path[:] = import_path(json.loads(path), sys.path)
    with socket.socket(fileno=int(connection)) as harness:
        _serve(harness)


def import_path(folders: list[str] | dict[str, list[str]], own: Sequence[str]) -> list[str]:
    """The import path of this process: what was `folders`, with the interpreter's `own` folders where they belong."""
    if isinstance(folders, list):
        return folders
    return list(dict.fromkeys([*folders["first"], *own, *folders["last"]]))


def _serve(harness: socket.socket) -> None:
    # The import path was not known before.
    from specgate.run.engine_process.frames import Closed, receive, send
    from specgate.run.engine_process.service import Service

    service = Service()
    while True:
        try:
            request = receive(harness)
        except Closed:
            service.close()
            return
        answer = service.answer(request)
        if answer is None:
            return
        send(harness, answer)


def _end_with_harness(life_line: int) -> None:
    os.read(life_line, 1)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])


HARNESS: Final = Path(specgate.__file__).parent.parent
"""The folder that the harness imports specgate from."""
OF_THE_HARNESS: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that lead an interpreter to the harness's packages."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Without `python` and `first`, the process imports exactly what the harness imports.

    `python`: the interpreter that runs it; None for the harness's own.
    `first`: folders that it imports from before anything else. Behind them stand the interpreter's own packages, and
        the harness's specgate last, for a build that does not bring one.
    """

    python: Path | None = None
    first: Sequence[Path] = ()

    @property
    def own(self) -> bool:
        """True if the process has an import path of its own."""
        return self.python is not None or bool(self.first)

    def command(self, connection: int, life_line: int) -> list[str]:
        """The command line of the process. It is given the two file descriptors."""
        python = str(self.python) if self.python is not None else sys.executable
        return [python, "-P", __file__, self._import_path(), str(connection), str(life_line)]

    def environment(self, options: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process; `options` are those of its back end."""
        chosen = passed(os.environ, options)
        if self.python is not None:
            chosen = {name: value for name, value in chosen.items() if name not in OF_THE_HARNESS}
        return chosen

    def _import_path(self) -> str:
        if not self.own:
            return json.dumps([os.path.abspath(folder) for folder in sys.path])
        # With the harness's interpreter, its packages are this process's, too: they may lie on PYTHONPATH alone.
        last = [] if self.python is not None else [os.path.abspath(folder) for folder in sys.path]
        return json.dumps({"first": [str(folder) for folder in self.first], "last": [*last, str(HARNESS)]})


AS_THE_HARNESS: Final = Launch()
