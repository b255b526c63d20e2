"""The search for products of many rows by a warpgroup: which configuration, and from how many rows on it is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product as product_of
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.timing import inputs_to_rotate, time_launches
from specgate.backends.eagle3.cupy.device import l2_bytes, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.compiling import Compiler
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import CLUSTERS, PIECE, WgmmaConfig
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import KERNEL_OF_WGMMA, WeightConfig, code_sha256
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight
from specgate.backends.eagle3.cupy.tuning.product import Product, same
from specgate.backends.eagle3.nouns.gemms import TunedGemm, TunedWgmma
from specgate.errors import BackendError

ROWS: Final = (24, 32, 48, 64)
"""Numbers of rows that are timed."""
MOST: Final = max(ROWS)
FROM: Final = min(ROWS)
"""The fewest rows of a largest step for which it is tried."""
SHORTLIST: Final = 4
TURNS: Final = 8
NEVER: Final = MAX_ROWS + 1
"""More rows than a step may have."""
SHAPES: Final = ((2, 4), (2, 9), (4, 3), (4, 5))
"""Boxes and stages: two blocks for an SM, or one that has all of its memory."""

Times = Mapping[int, float]
"""Rows → microseconds per launch."""


def candidates(n: int, k: int, processors: int) -> tuple[WgmmaConfig, ...]:
    """Return the configurations worth trying for a weight [n, k] on so many SMs: clusters of up to `TURNS` blocks for
    each. Where 1.7 blocks fall to an SM, one that has two keeps the others waiting; of seven shorter ones, one does.
    """
    most = shared_memory_limit()
    return tuple(
        config
        for (boxes, stages), cluster in product_of(SHAPES, CLUSTERS)
        for config in (WgmmaConfig(boxes, stages, cluster),)
        if config.possible(n, k) and config.shared_bytes(8) <= most
        if cluster == 1 or cluster * -(-n // (PIECE * boxes)) <= TURNS * processors
    )


def searched(
    weight: GemmWeight, known: TunedGemm, compiler: Compiler, stream: Stream, processors: int
) -> TunedWgmma | None:
    """Return the fastest of the `candidates` that compute what they should, and compare it with `known`; None for a
    weight that has none. `stream` must be current.

    Raises BackendError where one computes something else: that is no matter of speed.
    """
    configs = candidates(weight.n, weight.k, processors)
    if not configs:
        return None
    products = weight.products(inputs_to_rotate(weight.size, l2_bytes()), MOST)
    by_mma = WeightConfig.of(known)
    compiled([(config, rows) for rows in ROWS for config in (*configs, by_mma.at(rows))], products, compiler)
    for product in products:
        for config in configs:
            if (fault := fault_of(product, config)) is not None:
                raise BackendError(f"{weight}: {config} {fault}")

    def us(config: AnyConfig, rows: int) -> float:
        return fmean(latency_us(product.part(0, rows), config, stream) for product in products)

    shortlist = sorted(configs, key=lambda config: us(config, MOST))[:SHORTLIST]
    cublas = {rows: fmean(cublas_us(product.part(0, rows), stream) for product in products) for rows in ROWS}
    times = {config: {rows: us(config, rows) for rows in ROWS} for config in shortlist}
    best = min(times, key=lambda config: sum(times[config].values()))
    others = {rows: us(by_mma.at(rows), rows) for rows in ROWS}
    return TunedWgmma(
        config=best.stored(),
        from_rows=first_faster(times[best], others),
        us={rows: round(value, 3) for rows, value in times[best].items()},
        mma_us={rows: round(value, 3) for rows, value in others.items()},
        cublas_us={rows: round(value, 3) for rows, value in cublas.items()},
        tried=len(configs),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        source_sha256=code_sha256(KERNEL_OF_WGMMA),
    )


def compiled(launches: Iterable[tuple[AnyConfig, int]], products: Sequence[Product], compiler: Compiler) -> None:
    """Compile the configurations for so many rows of `products`, all at once: what is not there is compiled when it is
    launched, while the GPU waits. Raises BackendError for one that does not compile.
    """
    launchers = [of.part(0, rows).launcher(config) for config, rows in launches for of in products]
    complaints = compiler.compile(launcher.spec for launcher in launchers)
    if wrong := [f"{spec.stem}.cu: {why}" for spec, why in complaints.items() if why]:
        raise BackendError(wrong[0])


def fault_of(product: Product, config: WgmmaConfig) -> str | None:
    """Return what is wrong: with the sums, or with their bits where a step has other rows."""
    if (fault := product.fault(config)) is not None:
        return fault
    whole = product.first_rows(config, product.rows)
    for rows in ROWS:
        if not same(product.part(0, rows).first_rows(config, rows), whole):
            return f"gives rows 1 to {rows} other bits than among {product.rows}"
    return None


def latency_us(product: Product, config: AnyConfig, stream: Stream) -> float:
    """Microseconds per launch on all rows of `product`."""
    return time_launches(product.launching(config, product.rows), product.inputs, stream).latency_us


def cublas_us(product: Product, stream: Stream) -> float:
    """The same of cuBLAS, in bfloat16 and without an epilogue."""
    x, weights = product.x, product.weights
    out = torch.empty(len(x), weights.shape[1], dtype=x.dtype, device=x.device)

    def launch(i: int) -> Tensor:
        return torch.mm(x, weights[i].t(), out=out)

    launch(0)
    return time_launches(launch, product.inputs, stream).latency_us


def first_faster(us: Times, others: Times) -> int:
    """Return the fewest rows from which on `us` are less than `others`; NEVER without any."""
    slower = [rows for rows in us if us[rows] >= others[rows]]
    return min((rows for rows in us if rows > max(slower, default=0)), default=NEVER)
