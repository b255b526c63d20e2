"""The kernels of a prefill on a CPU: their own sources, compiled by a C++ compiler with `host.hpp` in place of CUDA.

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
    *("-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-pthread"),
    # Shared memory becomes static variables of inline functions, of which a process would have one for all kernels.
    "-fno-gnu-unique",
)
HEADER: Final = Path(__file__).with_name("host.hpp")
ROUNDINGS: Final = (
    (r'asm\("cvt\.rn\.bf16\.f32 %0, %1;".*', "rounded = rounded_bits(value);"),
    (r'asm\("cvt\.rn\.bf16x2\.f32 %0, %1, %2;".*', "packed = rounded_bits(high) << 16 | rounded_bits(low);"),
)
"""What `bf16.cuh` says in PTX, and the same in C++."""
PRODUCT: Final = (r'asm\("fma\.rn\.bf16x2 %0, %1, %2, %3;".*', "product = product_bits(a, b);")
"""What `prefill_decode.cu` says besides."""


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
        for ptx, plain in ROUNDINGS:
            text, found = re.subn(ptx, plain, text)
            assert found == 1, f"bf16.cuh does not say {ptx} once"
        text = re.sub(*PRODUCT, text)
        (struct,) = set(re.findall(r"struct (\w+Arguments)", text))
        run = f'extern "C" void run(const {struct}* args, unsigned columns, unsigned rows, unsigned threads) {{\n'
        body = f"    launched([=] {{ {spec.stem}(*args); }}, columns, rows, threads);\n}}\n"
        return f'#include "{HEADER}"\n{constants}{text}\n{run}{body}'
