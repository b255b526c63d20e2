"""The real engines that `run_suite.sh servers` installs, where the environment names them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specgate.backends.eagle3.pairs.shipped import demo_pair
from specgate.contract import Sampling
from specgate.contract.protocols import Engine, OpenRequest
from specgate.plugins import backend

LLAMA_SERVER, VLLM, GGUF = "SPECGATE_LLAMA_SERVER", "SPECGATE_VLLM", "SPECGATE_DEMO_GGUF"
"""Environment variables: two programs, and a folder of `specgate engine export --format gguf --dtype float32`."""
NAMES = ("llamacpp", "vllm")


@dataclass(frozen=True)
class RealEngine:
    """A back end with the options that start it here."""

    name: str
    options: Mapping[str, str]

    @contextmanager
    def opened(
        self, logs: Path, options: Mapping[str, str] | None = None, max_batch: int = 1, sampling: Sampling | None = None
    ) -> Iterator[Engine]:
        """With `options` beside those that start it."""
        engine = backend(self.name).open(
            OpenRequest(
                demo_pair(),
                "float32",
                max_batch,
                max_positions=1024,
                max_k=3,
                perf_mode=False,
                options={**self.options, **(options or {})},
                logs=logs,
                sampling=sampling,
            )
        )
        try:
            yield engine
        finally:
            engine.close()


def engine_here(name: str) -> RealEngine | str:
    """The engine, or why there is none."""
    needed = (LLAMA_SERVER, GGUF) if name == "llamacpp" else (VLLM,)
    if missing := [variable for variable in needed if not os.environ.get(variable)]:
        return f"the real engines are not here: {', '.join(missing)} not set (run_suite.sh servers installs them)"
    if name == "vllm":
        return RealEngine(name, {"program": os.environ[VLLM], "args": "--enforce-eager"})
    folder = os.environ[GGUF]
    files = {f"{part}_gguf": f"{folder}/{part}.gguf" for part in ("target", "draft")}
    return RealEngine(name, {"program": os.environ[LLAMA_SERVER], "args": "-t 1 -fa off", **files})
