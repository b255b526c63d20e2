"""A pair of any geometry with random weights: enough to time and check its kernels, without reading a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import limits
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint, open_draft
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.checkpoints.heads.tensors import Wanted, draft_tensors
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.mxfp4 import BIAS, BLOCK, VALUES
from specgate.contract import PairRef
from specgate.errors import BackendError

BIAS_SCALE = 0.02
"""Of biases: small beside what they are added to. What all rows have in common would else decide which experts they
choose, and all would choose the same.
"""


@dataclass(frozen=True, slots=True)
class Geometry:
    """`draft` is None where no step drafts; `boundaries`: the target's streams that the draft reads."""

    target: TargetGeometry
    draft: DraftGeometry | None
    boundaries: tuple[int, ...]

    @classmethod
    def of(cls, pair: PairRef, *, drafts: bool) -> Geometry:
        """From the configs alone, and the headers of the draft's files. Raises CheckpointError, and
        BackendError for a missing draft.
        """
        config = read_config(pair.target)
        target = target_geometry(config, pair.rope)
        limits.check_geometry(target, config.file)
        if not drafts:
            return cls(target, None, ())
        if pair.draft is None:
            raise BackendError(f"pair {pair.name!r} has no draft, but a step that drafts was asked for")
        files = open_draft(pair.draft, target)
        limits.check_geometry(files.geometry, files.config.file)
        limits.check_window(files.geometry, files.config.file)
        return cls(target, files.geometry, files.capture.boundaries)


def random_pair(geometry: Geometry, positions: int, device: torch.device | str) -> tuple[Target, Draft | None]:
    """Normal weights that keep a stream's variance (1/√fan-in), bfloat16; none at all on the `meta` device."""
    target = Target.of(
        TargetCheckpoint(geometry.target, random_tensors(target_tensors(geometry.target), device), "", Path()),
        positions,
    )
    g = geometry.draft
    if g is None:
        return target, None
    tensors = {name: want for name, want in draft_tensors(g, False, False).items() if name != "d2t"}
    spread = torch.arange(g.draft_vocab, device=device) * (g.vocab // g.draft_vocab - 1)
    d2t = None if g.draft_vocab == g.vocab else spread
    capture = AuxiliaryLayers(geometry.boundaries, "random weights")
    draft = DraftCheckpoint(g, random_tensors(tensors, device), d2t, capture, "", ())
    return target, Draft.of(draft, target, positions)


def random_tensors(tensors: Mapping[str, Wanted], device: torch.device | str) -> dict[str, Tensor]:
    return {name: random_tensor(name, want, device) for name, want in tensors.items()}


def random_tensor(name: str, want: Wanted, device: torch.device | str) -> Tensor:
    if want.dtype == "U8":
        return random_mxfp4(name, want.shape, device)
    if name.endswith("bias"):
        return normal(want.shape, 0.0, BIAS_SCALE, device)
    return random_weight(want.shape, device)


def random_mxfp4(name: str, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Four-bit numbers as random bits, or scales for them, with which a matrix [out, in] has the variance of a
    `random_weight`, but for a power of two.
    """
    if not name.endswith("_scales"):
        return torch.empty(shape, dtype=torch.uint8, device=device).random_(256)
    energy = sum(value * value for value in VALUES) / len(VALUES)
    usual = round(BIAS - math.log2(energy * shape[-1] * BLOCK) / 2)
    return torch.full(shape, usual, dtype=torch.uint8, device=device)


def random_weight(shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """A matrix [out, in], or the weight of a norm [H], about one."""
    mean, deviation = (1.0, 0.1) if len(shape) == 1 else (0.0, shape[-1] ** -0.5)
    return normal(shape, mean, deviation, device)


def normal(shape: tuple[int, ...], mean: float, deviation: float, device: torch.device | str) -> Tensor:
    """Normal numbers, bfloat16. The `meta` device has none to draw, but torch takes 0.2 ms for it."""
    numbers = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return numbers if numbers.is_meta else numbers.normal_(mean, deviation)
