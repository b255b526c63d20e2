"""Inverse frequencies and cos/sin tables of rotary position embedding.

Sources: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), and the frequency smoothing of Llama 3.1. Where a paper
leaves a choice open (clamping, truncation, default attention factor), Hugging Face transformers decides.

All of it is computed in float32 and in transformers' order of operations. At position 32768 the last bit of a frequency
is worth 1e-3 rad, and models were trained with the rounded value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from specgate.checkpoints.geometry import RopeSpec


class RopeTable(NamedTuple):
    """cos and sin of positions 0 …, each float32 [positions, dim/2]."""

    cosine: Tensor
    sine: Tensor


def cos_sin_table(spec: RopeSpec, length: int, device: torch.device | str = "cpu") -> RopeTable:
    """cos and sin of positions 0 … length − 1, each float32 [length, dim/2], multiplied by the attention scale."""
    frequencies, scale = inverse_frequencies(spec)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return RopeTable((angles.cos() * scale).to(device), (angles.sin() * scale).to(device))


def inverse_frequencies(spec: RopeSpec) -> tuple[Tensor, float]:
    """(radians per position of every rotated pair, float32 [dim/2]; factor to multiply cos and sin by)."""
    radian_length = spec.base ** (torch.arange(0, spec.dim, 2, dtype=torch.float32) / spec.dim)
    match spec.kind:
        case "default":
            return 1 / radian_length, 1.0
        case "linear":
            return 1 / radian_length / spec.factor, 1.0
        case "llama3":
            return llama3_frequencies(1 / radian_length, spec), 1.0
        case "yarn":
            return yarn_frequencies(radian_length, spec), yarn_attention_scale(spec)


def llama3_frequencies(plain: Tensor, spec: RopeSpec) -> Tensor:
    """Llama 3.1's smoothing of the `plain` frequencies [dim/2].

    Pairs that turn at least `high_freq_factor` times over the original positions are kept. Pairs that turn at most
    `low_freq_factor` times are slowed down by `factor`. Those between are blended linearly.
    """
    low, high = needed(spec.low_freq_factor), needed(spec.high_freq_factor)
    turns = needed(spec.original_positions) / (2 * math.pi / plain)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * plain / spec.factor + keep * plain


def yarn_frequencies(radian_length: Tensor, spec: RopeSpec) -> Tensor:
    """YaRN's frequencies: a linear ramp over the pair index between kept and slowed-down pairs.

    Pairs that turn at least `beta_fast` times over the original positions are kept, and pairs that turn at most
    `beta_slow` times are slowed down by `factor`.
    """
    low, high = yarn_index(spec.beta_fast, spec), yarn_index(spec.beta_slow, spec)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    width = high - low or 0.001
    keep = 1 - ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return (1 / (spec.factor * radian_length)) * (1 - keep) + (1 / radian_length) * keep


def yarn_index(turns: float, spec: RopeSpec) -> float:
    """The (fractional) index of the rotated pair that turns `turns` times over the original positions."""
    wavelength = needed(spec.original_positions) / turns
    return spec.dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(spec.base))


def yarn_attention_scale(spec: RopeSpec) -> float:
    """The factor on cos and sin: as the config states it, or from `mscale` and `mscale_all_dim`, or YaRN's 0.1 ·
    ln(factor) + 1.
    """
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return yarn_mscale(spec.factor, spec.mscale) / yarn_mscale(spec.factor, spec.mscale_all_dim)
    return yarn_mscale(spec.factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def needed(value: float | None) -> float:
    """The value of a field that `hf.rope.parse` always sets for this kind of RoPE."""
    assert value is not None
    return value
