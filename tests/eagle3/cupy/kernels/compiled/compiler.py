"""NVRTC, and the record of what it made of every kernel.

`registers.json` has a line for each source with its options and the compiler's version: a hash of them, and what the
code for each architecture takes. A line is there only if that source compiled and spilled no register. Tests read it
and compile nothing; `./run_suite.sh kernels` compiles what is not in it, and writes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.tuned.lookup import NOT_CODE
from specgate.files.writing import write_text

COMMAND = "./run_suite.sh kernels"
TOLERATED: Final[Mapping[str, int]] = {"sm_89": 16, "sm_90": 4, "sm_100": 20, "sm_120": 4}
"""Architecture → bytes of a thread that may spill. NVRTC 13.0 spills so many at most: of sm_90 in attention of normed
heads in E4M3 or of 62 rows, of sm_100 in the down product of eight rows, cuts at top-p, a product of 32 rows and
attention over heads of 128, of the others in attention over heads of 64 with short rings. What that costs was never
measured.
"""


def with_constant(spec: Spec, name: str, value: int) -> Spec:
    return replace(spec, constants=tuple((n, str(value) if n == name else was) for n, was in spec.constants))


class Use(NamedTuple):
    """Registers of a thread, and bytes of shared memory that a block declares, each of the function with most."""

    registers: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Messages of the compiler for one source, with the use of registers if it became machine code."""

    compiled: bool
    log: str

    @property
    def use(self) -> Use:
        registers = re.findall(r"Used (\d+) registers", self.log)
        shared = re.findall(r"(\d+) bytes smem", self.log)
        return Use(max(map(int, registers)), max(map(int, shared), default=0))

    @property
    def spill(self) -> int:
        """Bytes of registers that a thread stores in local memory, of the function with most."""
        return max(map(int, re.findall(r"(\d+) bytes spill stores", self.log)), default=0)


def outcomes(architecture: str, specs: Sequence[Spec]) -> list[Outcome]:
    """Compile `specs` as the loader does, on all CPUs."""
    options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    sources = [{"name": f"{s.stem}.cu", "text": s.source, "options": [*s.options, *options]} for s in specs]
    parts = min(len(sources), os.cpu_count() or 1)
    made: dict[int, Outcome] = {}
    with ThreadPoolExecutor(max(1, parts)) as pool:
        for first, part in enumerate(pool.map(run_compiler, (sources[first::parts] for first in range(parts)))):
            made |= zip(range(first, len(sources), parts), part, strict=True)
    return [made[n] for n in range(len(sources))]


def run_compiler(sources: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    command = [sys.executable, str(Path(__file__).with_name("nvrtc.py"))]
    done = subprocess.run(command, input=json.dumps(sources), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the compiler ended with {done.returncode}: {done.stderr[-2000:]}"
    return [Outcome(**outcome) for outcome in json.loads(done.stdout)]


def nvrtc_version() -> str:
    """Major and minor: releases between them bring no other code."""
    return ".".join(version("nvidia-cuda-nvrtc").split(".")[:2])


def key_of(spec: Spec) -> str:
    """Return the kernel's name, and a hash of its source with all headers, its options and the compiler's version.
    Comments and white space do not count, because they change no machine code.
    """
    text = json.dumps([nvrtc_version(), *NOT_CODE.sub(" ", spec.source).split(), spec.options])
    return f"{spec.stem} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(slots=True)
class Compiler:
    """The record, `file`. `writes`: compile what is not in it, and add it; `anew`: what is in it, too."""

    file: Path
    writes: bool = False
    anew: bool = False
    uses: dict[str, dict[str, Use]] = field(init=False)
    key_of: Callable[[Spec], str] = field(init=False, default_factory=lambda: cache(key_of))
    needed: dict[str, set[str]] = field(init=False, default_factory=dict)
    """Key → the architectures that tests have read or compiled so far."""

    def __post_init__(self) -> None:
        stored = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.uses = {key: {name: Use(*use) for name, use in by_name.items()} for key, by_name in stored.items()}

    def uses_of(self, architecture: str, specs: Sequence[Spec]) -> list[Use]:
        """Return what the code of each of `specs` takes. Fails if one is not recorded, does not compile or spills."""
        keys = [self.key_of(spec) for spec in specs]
        new = {key: spec for key, spec in zip(keys, specs, strict=True) if self.is_missing(architecture, key)}
        for key in keys:
            self.needed.setdefault(key, set()).add(architecture)
        if new and not self.writes:
            kernels = ", ".join(f"{stem} ({n})" for stem, n in Counter(s.stem for s in new.values()).most_common())
            pytest.fail(
                f"not in {self.file.name} for {architecture} with NVRTC {nvrtc_version()}, as they are now: {kernels}. "
                f"Run `{COMMAND}` and commit the file."
            )
        if new:
            self.compile(architecture, new)
        return [self.uses[key][architecture] for key in keys]

    def is_missing(self, architecture: str, key: str) -> bool:
        known = architecture in self.uses.get(key, ())
        return not known or (self.anew and architecture not in self.needed.get(key, ()))

    def compile(self, architecture: str, new: Mapping[str, Spec]) -> None:
        made = outcomes(architecture, [*new.values()])
        for key, outcome in zip(new, made, strict=True):
            if outcome.compiled and outcome.spill <= TOLERATED.get(architecture, 0):
                self.uses.setdefault(key, {})[architecture] = outcome.use
        self.write(self.uses)
        check(architecture, [*new.values()], made)

    def forget_others(self) -> None:
        """Keep in the record what tests have needed."""
        self.write({key: {name: self.uses[key][name] for name in names} for key, names in self.needed.items()})

    def write(self, uses: Mapping[str, Mapping[str, Use]]) -> None:
        lines = (f'"{key}": {json.dumps(dict(sorted(uses[key].items())))}' for key in sorted(uses))
        write_text(self.file, "{\n" + ",\n".join(lines) + "\n}\n")


def check(architecture: str, specs: Sequence[Spec], made: Sequence[Outcome]) -> None:
    """Fail if a source did not become machine code, or spills more registers than are tolerated."""
    most = TOLERATED.get(architecture, 0)
    wrong = [(s, o.log) for s, o in zip(specs, made, strict=True) if not o.compiled or o.spill > most]
    assert not wrong, f"{architecture}: refused, or registers spilled"
