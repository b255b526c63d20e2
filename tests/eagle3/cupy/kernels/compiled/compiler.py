"""NVRTC, and a cache of what it made of each source."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.files.writing import write_text


def with_constant(spec: Spec, name: str, value: int) -> Spec:
    return replace(spec, constants=tuple((n, str(value) if n == name else was) for n, was in spec.constants))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the compiler made of one source; `log` holds its messages and, of machine code, its use of registers."""

    compiled: bool
    log: str

    @property
    def registers(self) -> int:
        """Of a thread, in the function that takes most."""
        return max(int(count) for count in re.findall(r"Used (\d+) registers", self.log))

    @property
    def shared_bytes(self) -> int:
        """Of a block, as its source declares them, in the function that declares most."""
        return max(int(count) for count in re.findall(r"(\d+) bytes smem", self.log))

    @property
    def spilled(self) -> bool:
        return any(int(size) for size in re.findall(r"(\d+) bytes spill stores", self.log))


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles as the loader does, and what it has compiled before it reads from `cache`, where there is one."""

    cache: Path | None

    def compile_all(self, architecture: str, specs: Sequence[Spec]) -> list[Outcome]:
        options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
        sources = [{"name": f"{s.stem}.cu", "text": s.source, "options": [*s.options, *options]} for s in specs]
        files = [self.file_of(source) for source in sources]
        known = {n: json.loads(file.read_text()) for n, file in enumerate(files) if file is not None and file.exists()}
        new = [n for n in range(len(sources)) if n not in known]
        for n, outcome in zip(new, compiled(architecture, [sources[n] for n in new]), strict=True):
            known[n] = outcome
            if (file := files[n]) is not None:
                write_text(file, json.dumps(outcome))
        return [Outcome(**known[n]) for n in range(len(sources))]

    def file_of(self, source: Mapping[str, object]) -> Path | None:
        """Everything that the outcome depends on gives its name."""
        asked = json.dumps([version("nvidia-cuda-nvrtc"), source], sort_keys=True)
        return self.cache and self.cache / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"


def compiled(architecture: str, sources: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    if not sources:
        return []
    command = [sys.executable, str(Path(__file__).with_name("nvrtc.py"))]
    done = subprocess.run(command, input=json.dumps(sources), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{architecture}: the compiler ended with {done.returncode}: {done.stderr[-2000:]}"
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes
