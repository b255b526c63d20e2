"""Products of more than 16 rows, side by side: `matmul_many.cu` as it is divided usually and in other ways,
`matmul_rows.cu`, and torch (cuBLAS). One GPU.

    python -m bench.kernels.many_rows [--rows 32,64] [--shapes down,o] [--ways [c8s5w1t8 ...]] [--rounds 5]

First, per shape: that both kernels give the same bits. Then microseconds of a product, each over weights that the L2
cache does not hold, in graphs that are replayed in turn; medians, and the share of the bandwidth at which this GPU
reads.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product as product_of
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from specgate.backends.eagle3.cupy.bench.memory_reads import read_memory
from specgate.backends.eagle3.cupy.device import multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_GROUP, ROW_TILE, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import CLUSTERS, ManyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, PreNormRows
from specgate.backends.eagle3.cupy.stream import Stream
from tests.eagle3.cupy.kernels.device import rows_of

SHAPES = {
    "qkv": (6144, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
    "o": (4096, 4096, Epilogue.RESIDUAL, GemmConfig(16, 2)),
    "gate_up": (14336, 4096, Epilogue.SWIGLU, GemmConfig(16, 2)),
    "down": (4096, 14336, Epilogue.RESIDUAL, GemmConfig(8, 4)),
    "lm_head": (128256, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
    "draft_qkv": (6144, 8192, Epilogue.PLAIN, GemmConfig(8, 4)),
    "draft_head": (32000, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
}
"""Those of Llama-3.1-8B and its draft: columns of out, K, epilogue, how k is split on an H200."""
APART = 256 << 20
"""Bytes of weight between two uses of the same: several times what an L2 cache holds."""


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return (scale * torch.randn(shape, generator=generator, device="cuda")).to(dtype)


class Product:
    """Operands of one shape, and launchers for them."""

    def __init__(self, name: str, rows: int) -> None:
        self.n, self.k, self.epilogue, self.config = SHAPES[name]
        self.rows, self.swiglu = rows, self.epilogue is Epilogue.SWIGLU
        self.head, self.scaled = "head" in name, name in ("qkv", "gate_up", "lm_head")
        parts = 1 + self.swiglu
        self.nbytes = parts * self.n * self.k * 2
        self.weights = [
            normal(parts * self.n, self.k, scale=self.k**-0.5, seed=s) for s in range(-(-APART // self.nbytes))
        ]
        x = normal(rows, self.k, dtype=torch.float32)
        self.x = x.bfloat16()
        self.pre_norm = PreNormRows(self.x, x.square().reshape(rows, -1, 8).sum(-1))
        self.norm_weight = normal(self.n, seed=2)
        self.before = normal(rows, self.n, dtype=torch.float32, seed=3)
        self.out = self.before.to(torch.bfloat16 if self.swiglu else torch.float32, copy=True)
        self.left = PreNormRows(self.out.bfloat16(), torch.zeros(rows, self.n // 8, device="cuda"))
        self.choices = torch.zeros(rows, dtype=torch.int64, device="cuda")
        self.all_rows = rows_of(range(rows), 1)

    def launcher(self, many: ManyConfig | None = None) -> MatmulRows:
        feeds = self.epilogue is Epilogue.RESIDUAL
        config = self.config.at(self.rows) if many is None else self.config
        return MatmulRows(
            *(self.n, self.k, self.epilogue, self.rows, config),
            scaled=self.scaled,
            feeds_norm=feeds,
            chooses=self.head,
            many=many,
        )

    def launch(self, kernel: MatmulRows, weight: torch.Tensor, active: int | None = None) -> None:
        feeds = kernel.feeds_norm
        kernel(
            self.out,
            self.pre_norm if self.scaled else self.x,
            weight,
            self.all_rows if active is None else rows_of(range(active), 1, slots=self.rows),
            eps=1e-5,
            norm=(self.left, self.norm_weight) if feeds else None,
            choices=self.choices if self.head else None,
        )

    def results(self, kernel: MatmulRows, active: int) -> list[torch.Tensor]:
        self.out.copy_(self.before)
        self.choices.zero_()
        self.left.rows.zero_()
        self.left.squares.zero_()
        self.launch(kernel, self.weights[0], active)
        torch.cuda.synchronize()
        return [t.clone() for t in (self.out, self.choices, self.left.rows, self.left.squares)]


@contextmanager
def only_few() -> Iterator[None]:
    """Launchers that are made inside use `matmul_rows.cu` for any number of rows."""
    with patch.object(ManyConfig, "of", classmethod(lambda *_, **__: None)):
        yield


def timed(stream: Stream, weights: list[torch.Tensor], launch: Callable[[torch.Tensor], object]) -> Callable[[], float]:
    """Captures a graph of some 40 products, and returns what replays it and gives the microseconds of one."""
    times = max(1, 40 // len(weights))
    graph: Any = torch.cuda.CUDAGraph()
    with stream.current():
        launch(weights[0])
        stream.wait()
        graph.capture_begin()
        for weight in weights * times:
            launch(weight)
        graph.capture_end()
        graph.replay()
        stream.wait()

    def once() -> float:
        events: tuple[Any, Any] = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin, end = events
        with stream.current():
            begin.record()
            graph.replay()
            end.record()
            stream.wait()
        return 1000 * float(begin.elapsed_time(end)) / (len(weights) * times)

    return once


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="32,64")
    parser.add_argument("--ways", nargs="*", help="try these other ways to divide the work, or all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    asked = parser.parse_args()
    stream = Stream()
    reads = read_memory(20)
    bandwidth = reads.size / median(reads.elapsed_ns) / 1e3
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}, reads {bandwidth:.2f} TB/s", flush=True)
    for name in asked.shapes.split(","):
        for rows in map(int, asked.rows.split(",")):
            compare(Product(name, rows), f"{name} {rows} rows", stream, bandwidth, asked)
            torch.cuda.empty_cache()


def compare(product: Product, what: str, stream: Stream, bandwidth: float, asked: argparse.Namespace) -> None:
    with only_few():
        few = product.launcher()
    kernels = {"matmul_rows": few, **{name: product.launcher(way) for name, way in ways(product, asked.ways).items()}}
    actives = sorted({product.rows, product.rows - 3, 1})
    want = {active: product.results(few, active) for active in actives}
    for name, kernel in kernels.items():
        for active in actives:
            got = product.results(kernel, active)
            wrong = [n for n, (a, b) in enumerate(zip(got, want[active], strict=True)) if not torch.equal(a, b)]
            if wrong:
                print(f"WRONG {what} {name}, {active} of them: results {wrong}", flush=True)
    runs = {name: timed(stream, product.weights, partial(product.launch, kernel)) for name, kernel in kernels.items()}
    runs["torch"] = timed(stream, product.weights, lambda weight: torch.mm(product.x, weight.t()))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(asked.rounds):
        for name, once in runs.items():
            found[name].append(once())
    us = {name: median(times) for name, times in found.items()}
    told = (f"{name} {t:.1f} us ({product.nbytes / t / 1e6 / bandwidth:.0%})" for name, t in us.items())
    print(f"{what}: {', '.join(told)}", flush=True)


def ways(product: Product, asked: list[str] | None) -> dict[str, ManyConfig]:
    """What this way is called → how the work is divided: usually, and in those of the ways `asked` for that fit; an
    empty list asks for all.
    """
    room, kernel = shared_memory_limit(), product.launcher()
    usual = ManyConfig.of(product.config, kernel.weight, product.rows, room, multiprocessors())
    found = {} if usual is None else {f"usual {said(usual)}": usual}
    row_groups = -(-product.rows // ROW_GROUP)
    base = usual or ManyConfig(-(-product.rows // (row_groups * ROW_TILE)), row_groups, 1, 4)
    every = product_of((1, *CLUSTERS), (4, 6, 8), (1, 2), (4, 6, 7, 8, 12, 14, 16))
    named = [tuple(map(int, re.findall(r"\d+", name))) for name in asked or ()]
    for cluster, stages, warp_tiles, tiles in named if asked or asked is None else every:
        way = replace(base, cluster=cluster, stages=stages, warp_tiles=warp_tiles, tiles=tiles)
        fits = way.splits(product.config) and way.shared_bytes(product.config) <= room
        if fits and tiles % warp_tiles == 0 and way != usual:
            found[said(way)] = way
    return found


def said(way: ManyConfig) -> str:
    """Blocks of a cluster, stages, and tiles of a warp and of a block."""
    return f"c{way.cluster}s{way.stages}w{way.warp_tiles}t{way.tiles}"


if __name__ == "__main__":
    main()
