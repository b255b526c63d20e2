"""From the products that were asked for to the weights behind them: one configuration belongs to each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import check_experts
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.tuned.gemms import EPILOGUES, parts
from specgate.backends.eagle3.cupy.tuned.lookup import KERNELS_OF_EXPERTS
from specgate.backends.eagle3.cupy.tuning.expert_product import geometry_of
from specgate.backends.eagle3.cupy.tuning.expert_weight import ExpertWeight
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight
from specgate.backends.eagle3.cupy.tuning.product import MOST
from specgate.backends.eagle3.cupy.tuning.weight import Weight
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key
from specgate.errors import UsageError

CHUNK: Final = 32
"""Columns of a weight that a tensor core takes at a time, and numbers of a block of MXFP4."""


def weights_of(shapes: Sequence[GemmShape]) -> tuple[Weight[Any], ...]:
    """The weights of `shapes`, the largest first: of a mixture, what one row reads counts.

    Raises UsageError for a tag or size that the engine does not have.
    """
    tags: dict[Key, set[str]] = {}
    some: dict[Key, GemmShape] = {}
    for shape in sorted(shapes, key=lambda shape: shape.m):  # the most rows last
        check(shape)
        tags.setdefault(shape.key, set()).add(shape.tag)
        some[shape.key] = shape
    weights = (weight_of(some[key], tuple(sorted(used))) for key, used in tags.items())
    return tuple(sorted(weights, key=lambda weight: (-weight.size, weight.key)))


def weight_of(shape: GemmShape, tags: tuple[str, ...]) -> Weight[Any]:
    if shape.experts:
        return ExpertWeight(shape.n, shape.k, tags, shape.experts, shape.per_token)
    return GemmWeight(shape.n, shape.k, tags, shape.m)


def check(shape: GemmShape) -> None:
    known = tuple(KERNELS_OF_EXPERTS if shape.experts else EPILOGUES)
    if shape.tag in KERNELS_OF_EXPERTS and not shape.experts:
        raise UsageError(
            f"shape {shape.tag}: experts and per_token are missing", hint="how many there are, and of a row"
        )
    if shape.tag not in known:
        whose = "no product of experts" if shape.experts else "no product"
        raise UsageError(f"shape {shape.tag}: {whose} of back end cupy", hint=f"known: {', '.join(known)}")
    if shape.k % CHUNK:
        raise UsageError(f"shape {shape}: k must be a multiple of {CHUNK}")
    if not shape.experts:
        if shape.n % parts(EPILOGUES[shape.tag]):
            raise UsageError(f"shape {shape}: n counts gate and up rows: an even number")
        return
    if shape.n % TILE:
        raise UsageError(f"shape {shape}: n must be a multiple of {TILE}")
    try:
        check_experts(geometry_of(shape), MOST)
    except ValueError as error:
        raise UsageError(f"shape {shape}: {error}") from error
