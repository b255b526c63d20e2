"""Bounds on how far rounding alone can take two correct engines apart, as a relative error of a row.

Rounding to nearest errs by at most the unit roundoff u = 2^-p of a p-bit significand, and by about u / 2 in root mean
square. Errors of successive operations are nearly independent, so after n roundings the relative error grows with √n.
A product also sums up K terms in float32, which errs by about 2^-24 · √K. With a factor for two engines (√2), and for
layers that amplify what they get:

    tolerance = min(0.2, 8 · (u / 2 + 2^-24 · √K) · √(1 + n)),   n = 11 · layers + what the draft adds

It is for the root mean square over many rows. Of few rows, r, it may be 1 + 3 / √r times as large, and the worst row's
error 8 times, but at most 0.8. The factors were set by bfloat16 and float16 against float32 on a trained pair of 30
layers and on random ones of 4 and 16, whose attention is sharp: rounding comes as far as 0.86 of them. An error of 0.2
is a cosine of 0.98: over many rows, less is never parity; of few it may be. Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., sections 2.2 and 2.8, has the bounds.
"""

from __future__ import annotations

import math
from typing import Final

from specgate.checkpoints.stages.dump import Dtype
from specgate.checkpoints.stages.names import BY_NAME, boundary_of

SIGNIFICAND: Final[dict[Dtype, int]] = {"float32": 24, "bfloat16": 8, "float16": 11}
"""Bits of the significand, the hidden one included."""
ACCUMULATED: Final = 2.0**-24
"""Unit roundoff of the sums, which every engine keeps in float32."""
PER_LAYER: Final = 11
"""Roundings of a layer: two norms, q/k/v, RoPE, attention, its projection, gate and up, their product, down, and both
residuals."""
OF_THE_DRAFT: Final = {
    "features": 0, "fc_out": 1, "attn_out": 6, "ffn_out": 11, "pre_head_hidden": 13, "logits": 14, "hidden": 12
}  # fmt: skip
"""Roundings since the target's hidden states, up to a stage of the draft's pass."""
OF_A_STEP: Final = 12
"""Those of the draft's pass, before a step on its own hidden state begins."""
FACTOR: Final = 8.0
LARGEST: Final = 0.2
"""√(2 · (1 − 0.98)): the relative error of two rows of equal length whose cosine is 0.98."""
FEW_ROWS: Final = 3.0
WORST: Final = 8.0
LARGEST_WORST: Final = 0.8


def coarser(a: Dtype, b: Dtype) -> Dtype:
    """The dtype with the shorter significand."""
    return a if SIGNIFICAND[a] <= SIGNIFICAND[b] else b


def roundings(stage: str, layers: int) -> int:
    """Roundings on the way to a stage, in a target of `layers` layers (0: the draft is looked at alone)."""
    if (boundary := boundary_of(stage)) is not None:
        return PER_LAYER * boundary
    entry = BY_NAME[stage]
    if entry.part == "target":
        return PER_LAYER * layers + 2
    own = OF_THE_DRAFT[entry.short]
    return PER_LAYER * layers + own + (OF_A_STEP if entry.part == "step" and entry.short != "hidden" else 0)


def tolerance(stage: str, layers: int, width: int, dtype: Dtype) -> float:
    """The relative error that rounding explains, in root mean square; `width` terms are summed up by a product."""
    each = 2.0 ** -SIGNIFICAND[dtype] / 2 + ACCUMULATED * math.sqrt(width)
    return min(LARGEST, FACTOR * each * math.sqrt(1 + roundings(stage, layers)))


def of_rows(stage_tolerance: float, rows: int) -> float:
    """Error allowed in root mean square over `rows` rows."""
    return stage_tolerance * (1 + FEW_ROWS / math.sqrt(rows))


def of_the_worst(stage_tolerance: float) -> float:
    """Error allowed in the worst row."""
    return min(LARGEST_WORST, WORST * stage_tolerance)


def step_of(value: float, dtype: Dtype) -> float:
    """One unit in the last place of `value` in `dtype`."""
    exponent = math.frexp(value)[1] if value else -125  # value = m · 2^exponent with 0.5 ≤ |m| < 1
    return math.ldexp(1.0, exponent - SIGNIFICAND[dtype])
