"""Kernels on a CPU: their own sources, compiled as C++ with `in_place_of_cuda/`.

It shows that a kernel computes what it should, not that a GPU does: the GPU tests do that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT, TENSOR_MAP
from tests.eagle3.cupy.kernels.launches import compiled_text

COMPILER: Final = shutil.which("g++")
OPTIONS: Final = (
    *("-std=c++20", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-Wno-multichar"),
    # A check of longjmp that refuses to go from one fiber to another; some systems' compilers have it by default.
    "-U_FORTIFY_SOURCE",
    # Shared memory becomes static variables of inline functions, of which a process would have one for all kernels.
    "-fno-gnu-unique",
)
OF_KERNELS: Final = (
    "-O1",
    # A kernel runs for milliseconds: without these it is as fast, and compiled in a seventh less time.
    *("-fno-if-conversion", "-fno-ipa-modref", "-fno-ivopts", "-fno-tree-dominator-opts", "-fno-tree-loop-optimize"),
    "-fno-tree-pta",
)
LINKED: Final = (
    # A kernel may be called what a function of the C library is called, such as accept.
    *("-shared", "-Wl,-Bsymbolic"),
    # To read the C++ library's symbols for each took half of the time of linking: those of the process are used.
    "-nostdlib",
    # Hundreds of small libraries are linked, and where it is there, gold takes a third of the other linker's time.
    *(("-fuse-ld=gold",) if shutil.which("ld.gold") else ()),
)
HEADER: Final = Path(__file__).parent / "in_place_of_cuda" / "host.hpp"
COMMON: Final = HEADER.with_suffix(".cpp")
STATEMENT: Final = re.compile(
    r'asm(?: volatile)?\(\s*"(?:\{ \.reg \.pred p; )?([\w.]+)[^;]*;(?:"| selp).*?\);', re.DOTALL
)
INSTRUCTIONS: Final[Mapping[str, str]] = {
    "atom.acq_rel.gpu.global.add.s32": "before = atomicAdd(count, 1);",
    "atom.release.gpu.global.add.s32": "before = atomicAdd(count, 1);",
    "barrier.cluster.arrive.release.aligned": "",  # left out where there are no clusters, as what needs them is
    "barrier.cluster.wait.acquire.aligned": "",
    "cp.async.cg.shared.global.L2": "begun(shared, global);",
    "cp.async.bulk.tensor.2d.shared": "box_begun(shared, &map, row, column, barrier);",
    "cp.async.commit_group": "grouped();",
    "cp.async.wait_group": "arrived(Pending);",
    "createpolicy.fractional.L2": "policy = 0;",
    "cvt.rn.bf16.f32": "rounded = rounded_bits(value);",
    "cvt.rn.bf16x2.f32": "packed = rounded_bits(high) << 16 | rounded_bits(low);",
    "cvt.rn.f16.f32": "rounded = half_bits(value);",
    "cvt.rn.f16x2.f32": "packed = half_bits(high) << 16 | half_bits(low);",
    "cvt.rn.satfinite.e4m3x2.f32": "",  # left out where there is no __CUDA_ARCH__
    "ex2.approx.ftz.f32": "y = __builtin_exp2f(x);",
    "fence.acq_rel.gpu": "",  # blocks run one after the other
    "fence.mbarrier_init.release.cluster": "",
    "fence.proxy.async.shared": "",
    "fma.rn.bf16x2": "product = product_bits(a, b);",
    "griddepcontrol.launch_dependents": "",
    "griddepcontrol.wait": "",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": (
        "multiplied_brain(c, a0, a1, a2, a3, b0, b1, c[0], c[1], c[2], c[3]);"
    ),
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "multiplied_half(d, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3);",
    "ld.relaxed.sys.global.v2.b64": "mail.first = arrived_word(at); mail.second = arrived_word(at + 1);",
    "mapa.u64": "",
    "mbarrier.arrive.expect_tx.shared": "arrived_at(barrier, bytes);",
    "mbarrier.arrive.shared": "arrived_at(barrier, 0);",
    "mbarrier.init.shared": "barrier_made(barrier, arrivals);",
    "mbarrier.try_wait.parity.shared": "ended = phase_has_ended(barrier, parity);",
    "mov.b32": "both = value << 16 | value;",
    "mov.b64": "time = nanoseconds();",  # of whoever waits for another GPU
    "mov.u32": "lanes_before = 0;",
    "mul.rn.f16x2": "product = half_product_bits(a, b);",
    "mov.u64": "now = 0;",  # the time stands still
    "prefetch.global.L2": "",
    "prefetch.tensormap": "",
    "st.relaxed.sys.global.v2.b64": "sent_word(to, low), sent_word(to + 1, high);",
    "wgmma.commit_group.sync.aligned": "",
    "wgmma.fence.sync.aligned": "",
    **{
        f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.bf16.bf16": "group_begun(&sums[0][0], ROW_TILES, a, b);"
        for rows in (16, 32, 48, 64)
    },
    **{
        f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.f16.f16": (
            "group_begun(&sums[0][0], Columns, a0, a1, a2, a3, b);"
        )
        for rows in range(8, 49, 8)
    },
    "wgmma.wait_group.sync.aligned": "groups_multiplied();",
}
"""What the sources say in PTX, and the same in C++, with the names that stand around it."""


class Host:
    """Compiles each kernel once. `kept` holds the libraries, for others too, and `folder` what compiling needs."""

    def __init__(self, folder: Path, kept: Path | None = None) -> None:
        ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)
        self.folder = folder
        self.kept = kept or folder
        self.loaded: dict[Spec, Any] = {}

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
        columns, rows, layers = (*grid, 1, 1)[:3]
        shared = kernel.shared_bytes if shared_bytes is None else shared_bytes
        run = getattr(self.library(kernel.spec), f"run_{name}")
        run(ctypes.byref(kernel.operands_of(name).packed(arguments)), columns, rows, layers, block[0], shared)

    def library(self, spec: Spec) -> Any:
        if spec not in self.loaded:
            text = source(spec)
            file = self.kept / f"{spec.stem}_{hashlib.sha256((self.surroundings + text).encode()).hexdigest()}.so"
            if not file.exists():
                self.compile(text, file)
            self.loaded[spec] = ctypes.CDLL(str(file))
        return self.loaded[spec]

    def compile(self, text: str, library: Path) -> None:
        """Under a name of this process first: others may compile the same."""
        written = self.folder / f"{library.stem}.cpp"
        written.write_text(text, encoding="utf-8")
        new = library.with_suffix(f".{os.getpid()}")
        run_compiler(*OF_KERNELS, *LINKED, "-I", self.header.parent, written, self.common, "-lm", "-o", new)
        new.replace(library)

    @cached_property
    def surroundings(self) -> str:
        """What a library depends on beside its source."""
        texts = [file.read_text(encoding="utf-8") for file in (HEADER, COMMON)]
        return "\n".join((platform.machine(), run_compiler("--version"), *OPTIONS, *OF_KERNELS, *LINKED, *texts))

    @cached_property
    def header(self) -> Path:
        """A copy of `host.hpp`, precompiled: a kernel is often shorter than what it includes."""
        copy = Path(shutil.copy(HEADER, self.folder))
        run_compiler(*OF_KERNELS, "-x", "c++-header", copy, "-o", f"{copy}.gch")
        return copy

    @cached_property
    def common(self) -> Path:
        """`host.cpp`, compiled: every library has one of its own."""
        compiled = self.folder / f"{COMMON.stem}.o"
        run_compiler("-O2", "-c", COMMON, "-o", compiled)
        return compiled


def host_map(matrix: Tensor, box: tuple[int, int]) -> ctypes.Array[ctypes.c_uint64]:
    """In place of `operands.tensor_map`: as `Matrix` of host.cpp has it."""
    return TENSOR_MAP(matrix.data_ptr(), *matrix.shape, *box)


def run_compiler(*arguments: str | Path) -> str:
    command = [str(COMPILER), *OPTIONS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def source(spec: Spec) -> str:
    """The source of a kernel as C++, with a function `run_NAME` for each of its functions that launches it."""
    constants = "".join(f"#define {name} {value}\n" for name, value in spec.constants)
    text = STATEMENT.sub(lambda result: INSTRUCTIONS[result[1]], spec.source)
    text = re.sub(r"extern __shared__ (?:__align__\(1024\) )?uint4 memory\[\];", "#define memory dynamic_memory", text)
    # An address within shared memory is one within the memory that a block has been given.
    text = re.sub(r"\(unsigned\)__cvta_generic_to_shared\(memory\)", "0u", text)
    taken = re.findall(r"__global__ [^{;]*?void (\w+)\(const (?:__grid_constant__ )?(\w+) \w+\)", compiled_text(spec))
    runs = "".join(
        f"""
static {struct} {name}_given;
extern "C" void run_{name}(const {struct}* args, unsigned columns, unsigned rows, unsigned layers, unsigned threads,
                           unsigned shared_bytes) {{
    {name}_given = *args;
    launched([] {{ {name}({name}_given); }}, columns, rows, layers, threads, shared_bytes);
}}
"""
        for name, struct in taken
    )
    return f'#include "{HEADER.name}"\n{constants}{text}{runs}'
