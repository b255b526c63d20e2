"""Every size and switch of a target and of an EAGLE-3 draft.

`hf/target.py`, `hf/draft.py` and `hf/rope.py` translate Hugging Face configs into these classes; the
engine translates back. All other code uses the names below, not config keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of the half-split ("rotate_half") layout.

    `dim` is the head size, `factor` the ratio by which the context is lengthened, `original_positions` the positions
    before that. The remaining fields belong to one `kind` each. `rope.py` has the formulas.
    """

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
class ExpertGeometry:
    """A mixture of experts in the place of a layer's feed-forward part, as gpt-oss has it.

    The router's `per_token` largest logits of `count` choose a token's experts, and their softmax weighs them. An
    expert's width is the target's `intermediate`. Its rows alternate, gate and up; with both clamped at `limit` (up on
    both sides), it passes on gate · σ(alpha · gate) · (up + 1). `mxfp4` says how the checkpoint stores their matrices:
    in blocks of 32 four-bit values with a common scale, or as floats.
    """

    count: int
    per_token: int
    mxfp4: bool
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True, slots=True)
class TargetGeometry:
    """A decoder of the Llama family, of Qwen3 or of gpt-oss, whose variants are the fields with defaults.

    head_norms  queries and keys of every head have an RMSNorm of their own, with `rms_eps`, before they are rotated
    experts     a mixture of experts in every layer, in the place of the dense feed-forward part
    windows     for every layer, how many positions a query sees, its own included; None: all. (): all in every layer
    biases      the projections to queries, keys, values and of the attention's output have biases
    sinks       every query head has a learnt logit that takes a share of the softmax, and has no value
    """

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
    head_norms: bool = False
    experts: ExpertGeometry | None = None
    windows: tuple[int | None, ...] = ()
    biases: bool = False
    sinks: bool = False

    def window(self, layer: int) -> int | None:
        """Number of positions that a query of `layer` sees; None: all."""
        return self.windows[layer] if self.windows else None


class TargetSizes(Protocol):
    """Sizes of a target that its draft must know: `TargetGeometry` has them for a dense Llama."""

    @property
    def layers(self) -> int: ...

    @property
    def hidden(self) -> int: ...

    @property
    def vocab(self) -> int: ...

    @property
    def max_positions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DraftGeometry:
    """An EAGLE-3 draft: one decoder layer whose attention reads `[embedding, hidden]`, each of width `hidden`.

    `features` is the number of the target's auxiliary hidden states that feed the draft, each of width `target_hidden`.
    `window` limits the draft's attention to that many positions, the query's own included; None means all.

    The four switches at the end describe variants. With all of them false, the draft has the layout of the EAGLE
    authors.

        fc_norm               an RMSNorm on each auxiliary hidden state before `fc`
        norm_before_fc        one RMSNorm on their concatenation instead
        norm_output           the next draft step gets the hidden state after the final norm, not before it
        norm_before_residual  the residual connection carries the normed hidden state, not the raw one
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
