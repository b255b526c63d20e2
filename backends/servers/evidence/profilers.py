"""Asking a server to profile itself: flags at its start, endpoints, and the folder of the file.

vLLM (0.25.1: `config/profiler.py`, `entrypoints/serve/profile/api_router.py`) has its endpoints only if it was started
with `--profiler-config`. SGLang (0.5.17: `ProfileReq` in `managers/io_struct.py`) always has them, and is told the
folder when it begins. Both write when they are asked to stop, before they answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.backends.servers.exchange import Json
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

START: Final = "/start_profile"
STOP: Final = "/stop_profile"
WRITING_S: Final = 240.0
"""Seconds that a server may take to answer: it writes its trace before it does."""
APPEARING_S: Final = 20.0
"""Seconds after its answer until the file must be there, and have stopped growing."""
POLL_S: Final = 0.1

Files = Mapping[Path, tuple[int, int]]
"""Trace file → its size, and the time of its last change in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """A server's own profiler.

    `flags`: command-line flags of a server that is to write its traces into a folder; () where it needs none.
    `body`: what is posted to begin; None for nothing.
    `needs_flags`: whether a server that was started without them cannot be profiled.
    `folder_key`: what the server calls the folder.
    """

    name: str
    flags: Callable[[Path], tuple[str, ...]]
    body: Callable[[Path], Json | None]
    needs_flags: bool
    folder_key: str

    def start(self, client: Client, folder: Path) -> str | None:
        """Begin a profile. Returns the reason if the server refuses, else None."""
        status, answer = client.post(START, self.body(folder), WRITING_S)
        if status == 200:
            return None
        hint = " (it has to be started with --profiler-config)" if self.needs_flags else ""
        return f"{self.name} refuses {START}: HTTP {status}: {answer}{hint}"

    def stop(self, client: Client) -> str | None:
        """End the profile; the server writes it. Returns the reason if that fails, else None."""
        status, answer = client.post(STOP, None, WRITING_S)
        return None if status == 200 else f"{self.name} refuses {STOP}: HTTP {status}: {answer}"


def vllm_flags(folder: Path) -> tuple[str, ...]:
    """The front end is left out: its own trace has no kernels. So are stacks and tables, which take minutes."""
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    return "--profiler-config", json.dumps(config)


def sglang_body(folder: Path) -> Json:
    return {"output_dir": str(folder), "activities": ["CPU", "GPU"], "with_stack": False, "record_shapes": False}


PROFILERS: Final[Mapping[str, Profiler]] = {
    "vllm": Profiler("vLLM's own torch profiler", vllm_flags, lambda folder: None, True, "torch_profiler_dir"),
    "sglang": Profiler("SGLang's own torch profiler", lambda folder: (), sglang_body, False, "output_dir"),
}
"""Adapter name → its server's profiler, for those that have one."""


def traces_in(folder: Path) -> Files:
    """The trace files of a folder."""
    files = {}
    for file in sorted(folder.glob("*.json*")):
        try:
            stat = file.stat()
        except OSError:  # it has just been renamed
            continue
        files[file] = stat.st_size, stat.st_mtime_ns
    return files


def new_trace(folder: Path, before: Files) -> tuple[Path, int]:
    """The trace that has been written to `folder` since `before`, and how many there are of it: one per rank.

    The first rank's is taken. A front end's own (vLLM's `async_llm`) counts for nothing. Raises BackendError where none
    appears in time.
    """
    deadline = time.monotonic() + APPEARING_S
    last: Files = {}
    while True:
        written = {file: state for file, state in traces_in(folder).items() if before.get(file) != state}
        ranks = [file for file in written if "async_llm" not in file.name]
        if ranks and written == last:
            return ranks[0], len(ranks)
        if time.monotonic() > deadline:
            raise BackendError(f"{folder}: no trace came within {APPEARING_S:g} s of {STOP}")
        last = written
        time.sleep(POLL_S)
