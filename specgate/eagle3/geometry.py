"""Every size and switch of a target and of an EAGLE-3 draft, translated once from Hugging Face configs.

`hf/target.py`, `hf/draft.py` and `hf/rope.py` translate and are the only files that know Hugging Face config keys;
everything else uses the names below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding in the half-split ("rotate_half") layout. Formulas: `rope.py`."""

    kind: Literal["default", "linear", "llama3", "yarn"]
    base: float
    dim: int
    factor: float = 1.0
    original_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class TargetGeometry:
    """A dense Llama-family decoder."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rms_eps: float
    rope: RopeSpec
    max_positions: int
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


@dataclass(frozen=True, slots=True)
class DraftGeometry:
    """An EAGLE-3 draft: one decoder layer over `[embed, hidden]`, fed by `features` captured target streams.

    `window` limits the draft's attention to the last so many positions (the query's own included). `norm_output`
    feeds the post-norm stream back; `norm_before_residual` adds the normed feature instead of the raw one;
    `fc_norm` norms each captured stream on its own before `fc`, `norm_before_fc` their concatenation. The defaults are
    the layout of the EAGLE authors.
    """

    hidden: int
    target_hidden: int
    features: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    draft_vocab: int
    rms_eps: float
    rope: RopeSpec
    max_positions: int
    window: int | None = None
    own_embedding: bool = False
    own_lm_head: bool = True
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
