"""One process in a sandbox: its private home folder, its start, and its end with all that it started."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.errors import EnvironmentRefused
from specgate.files.cache import CACHE_VARIABLE, cache_path
from specgate.sandbox.bubblewrap import bubblewrap
from specgate.sandbox.view import View

KERNEL_CACHES: Final[Mapping[str, str]] = {
    "TRITON_CACHE_DIR": ".triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": ".cache/torchinductor",
    "TORCH_EXTENSIONS_DIR": ".cache/torch_extensions",
    "VLLM_CACHE_ROOT": ".cache/vllm",
    "CUDA_CACHE_PATH": ".nv/ComputeCache",
    "CUPY_CACHE_DIR": ".cupy/kernel_cache",
    "FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer",
    "SGLANG_CACHE_DIR": ".cache/sglang",
}
"""Variable → the folder below the home folder that it names by default. Engines write compiled kernels there. Each
process gets a copy of its own, which is thrown away.
"""
MODEL_CACHE: Final = ("HF_HOME", ".cache/huggingface")
"""The same of downloaded models. It is read in its place."""
END_S: Final = 10.0


class Box:
    """A process in a sandbox, which is started by `subprocess.Popen` with what this object says."""

    def __init__(self, view: View) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="specgate-home-")).resolve()
        self.view = replace(view, writable=(*view.writable, self.home))
        self._inside: list[int] = []

    def environment(self, outside: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the process for those that it would have outside.

        Its home folder is private and holds copies of kernel caches; caches of models are read where they are.
        """
        home, inside = Path.home(), dict(outside)
        for variable, place in KERNEL_CACHES.items():
            theirs = Path(outside.get(variable) or home / place)
            mine = self.home / place
            if theirs.is_dir():
                shutil.copytree(theirs, mine, symlinks=True, ignore_dangling_symlinks=True, dirs_exist_ok=True)
            inside[variable] = str(mine)
        variable, place = MODEL_CACHE
        inside.setdefault(variable, str(home / place))
        inside[CACHE_VARIABLE] = str(cache_path())
        unset = ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        inside = {key: value for key, value in inside.items() if key not in unset}
        return {**inside, "HOME": str(self.home)}

    def command(self, command: Sequence[str], folder: Path) -> list[str]:
        """Return the command line that runs `command` in the sandbox, in `folder` if it is to be seen there."""
        return bubblewrap(self.view, folder, command)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Remember the first process in the sandbox, now that the sandbox has started."""
        with contextlib.suppress(ProcessLookupError):
            self._inside += [os.pidfd_open(pid) for pid in children(process.pid)]

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill everything in the sandbox and wait until nothing of it is left. Remove its home folder.

        Raises EnvironmentRefused if something is left after END_S seconds.
        """
        if not self._inside and process.poll() is None:
            self.watch(process)
        if process.poll() is None:
            process.kill()
        process.wait()
        while self._inside:
            with open(self._inside.pop(), "rb") as first:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first.fileno(), signal.SIGKILL)
                if not select.select([first], [], [], END_S)[0]:
                    raise EnvironmentRefused(f"bubblewrap: a process in the sandbox did not end within {END_S:g} s")
        shutil.rmtree(self.home, ignore_errors=True)


def children(pid: int) -> list[int]:
    """Return the processes that process `pid` has started: of a sandbox the first one in it. All others end with it."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
