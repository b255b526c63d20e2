"""Kernels without tensor cores on a CPU: their own sources, compiled as C++ with `host.hpp` in the place of CUDA.

It shows that a kernel computes what it should, not that a GPU does: the GPU tests do that.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specgate.backends.cupy_eagle3.kernels.loader import ARGUMENT, Kernel, Spec, packed

COMPILER: Final = shutil.which("g++")
OPTIONS: Final = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC"),
    # Shared memory becomes static variables of inline functions, of which a process would have one for all kernels.
    "-fno-gnu-unique",
    # A kernel may be called what a function of the C library is called, such as accept.
    "-Wl,-Bsymbolic",
)
HEADER: Final = Path(__file__).with_name("host.hpp")
PTX: Final = (
    (r'asm\("cvt\.rn\.bf16\.f32 %0, %1;".*', "rounded = rounded_bits(value);"),
    (r'asm\("cvt\.rn\.bf16x2\.f32 %0, %1, %2;".*', "packed = rounded_bits(high) << 16 | rounded_bits(low);"),
    (r'asm volatile\("mov\.u64 %0, %globaltimer;".*', "now = 0;"),
)
"""What headers say in PTX, and the same in C++, where the time stands still."""


class Host:
    """Compiles into `folder`, each kernel once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiled: dict[Spec, Any] = {}

    def enqueue(
        self,
        kernel: Kernel,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Mapping[str, ARGUMENT],
        shared_bytes: int | None = None,
    ) -> None:
        """In place of `Kernel.enqueue`: runs the kernel, and returns when it has ended."""
        columns, rows = (*grid, 1)[:2]
        self.library(kernel.spec).run(ctypes.byref(packed(arguments)), columns, rows, block[0])

    def library(self, spec: Spec) -> Any:
        if spec not in self.compiled:
            file = self.folder / f"{spec.stem}_{len(self.compiled)}.cpp"
            file.write_text(self.source(spec), encoding="utf-8")
            done = subprocess.run(
                [str(COMPILER), *OPTIONS, file, "-o", file.with_suffix(".so")],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-2000:]
            self.compiled[spec] = ctypes.CDLL(str(file.with_suffix(".so")))
        return self.compiled[spec]

    def source(self, spec: Spec) -> str:
        constants = "".join(f"#define {name} {value}\n" for name, value in spec.constants)
        text = spec.source
        for ptx, plain in PTX:
            text = re.sub(ptx, plain, text)
        left = re.sub(r"#if __CUDA_ARCH__.*?#endif", "", text, flags=re.DOTALL)
        assert "asm" not in re.sub(r"//[^\n]*", "", left), f"{spec.stem}.cu: PTX that has no C++ here"
        (struct,) = set(re.findall(r"struct (\w+Arguments)", text))
        run = f'extern "C" void run(const {struct}* args, unsigned columns, unsigned rows, unsigned threads) {{\n'
        body = f"    launched([=] {{ {spec.stem}(*args); }}, columns, rows, threads);\n}}\n"
        return f'#include "{HEADER}"\n{constants}{text}\n{run}{body}'
