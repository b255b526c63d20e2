"""Tuned configurations to look up: what a search on some device might have left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig
from specgate.backends.eagle3.cupy.tuned.lookup import KERNEL_OF_WGMMA, KERNELS_OF_EXPERTS, code_sha256
from specgate.backends.eagle3.nouns.gemms import GemmShape, TunedGemm, TunedGemms, TunedWgmma, write_tuned

DEVICE = "NVIDIA T4"


def gemm(n: int, k: int, config: GemmConfig | None = None, **changes: Any) -> TunedGemm:
    """A configuration of the weight [n, k], current unless `changes` say otherwise."""
    tuned_gemm = TunedGemm(
        n=n,
        k=k,
        tags=("TARGET_O",),
        config=(config or GemmConfig()).stored(),
        tried=2,
        left_out={},
        us={1: 2.0, 8: 2.5},
        default_us={1: 2.2, 8: 2.5},
        share=0.8,
        bandwidth=4e12,
        measured="2026-11-21T12:00:00+00:00",
        source_sha256=code_sha256(),
        versions={},
    )
    return replace(tuned_gemm, **changes)


def wgmma(from_rows: int = 64, config: WgmmaConfig | None = None, **changes: Any) -> TunedWgmma:
    """Products by a warpgroup, current unless `changes` say otherwise."""
    current = TunedWgmma(
        config=(config or WgmmaConfig()).stored(),
        from_rows=from_rows,
        us={24: 2.0, 64: 2.5},
        mma_us={24: 1.9, 64: 4.5},
        cublas_us={24: 1.6, 64: 2.5},
        tried=4,
        measured="2026-11-21T12:00:00+00:00",
        source_sha256=code_sha256(KERNEL_OF_WGMMA),
    )
    return replace(current, **changes)


def experts(shape: GemmShape, config: ExpertConfig | None = None, **changes: Any) -> TunedGemm:
    """A configuration of the product of experts `shape`, current unless `changes` say otherwise."""
    chosen = config or ExpertConfig.usual(shape.k, shape.n // TILE, 2)
    changed = replace(
        gemm(shape.n, shape.k),
        tags=(shape.tag,),
        config=chosen.stored(),
        source_sha256=code_sha256(KERNELS_OF_EXPERTS[shape.tag]),
        experts=shape.experts,
        per_token=shape.per_token,
    )
    return replace(changed, **changes)


def written(file: Path, *gemms: TunedGemm, device: str = DEVICE) -> Path:
    write_tuned(file, TunedGemms(device, "9.0", gemms))
    return file
