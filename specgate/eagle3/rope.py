"""Inverse frequencies and cos/sin tables of rotary position embedding.

Sources: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), Llama 3.1's frequency smoothing; where a paper leaves a
choice (clamping, truncation, default attention factor) it is made as in Hugging Face transformers. All of it is
float32, in transformers' order of operations: at position 32768 the last bit of a frequency is worth 1e-3 rad, and
models are trained with the rounded one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specgate.eagle3.geometry import RopeSpec


def cos_sin_table(spec: RopeSpec, length: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0 … length − 1, each float32 [length, dim/2], already times the attention scale."""
    frequencies, scale = inverse_frequencies(spec)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return (angles.cos() * scale).to(device), (angles.sin() * scale).to(device)


def inverse_frequencies(spec: RopeSpec) -> tuple[Tensor, float]:
    """Radians per position of every rotated pair, float32 [dim/2], and the factor on cos and sin."""
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
    """Waves that turn often over the original positions are kept, rare ones stretched, those between blended."""
    low, high = needed(spec.low_freq_factor), needed(spec.high_freq_factor)
    turns = needed(spec.original_positions) / (2 * math.pi / plain)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * plain / spec.factor + keep * plain


def yarn_frequencies(radian_length: Tensor, spec: RopeSpec) -> Tensor:
    """A linear ramp over the pair index, from kept (turns ≥ beta_fast) to stretched (turns ≤ beta_slow)."""
    low, high = yarn_index(spec.beta_fast, spec), yarn_index(spec.beta_slow, spec)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    width = high - low or 0.001
    keep = 1 - ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return (1 / (spec.factor * radian_length)) * (1 - keep) + (1 / radian_length) * keep


def yarn_index(turns: float, spec: RopeSpec) -> float:
    """The (fractional) index of the pair that turns so often over the original positions."""
    wavelength = needed(spec.original_positions) / turns
    return spec.dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(spec.base))


def yarn_attention_scale(spec: RopeSpec) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return yarn_mscale(spec.factor, spec.mscale) / yarn_mscale(spec.factor, spec.mscale_all_dim)
    return yarn_mscale(spec.factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def needed(value: float | None) -> float:
    """A field that `hf.rope.parse` always sets for the kind at hand."""
    assert value is not None
    return value
