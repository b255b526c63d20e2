"""The tensors that a geometry implies: canonical names and shapes.

Target tensors have Hugging Face's names. Draft tensors have those of the EAGLE authors (`fc`, `midlayer.*`, `norm`,
`lm_head`, `embed_tokens`, `input_norm`, `fc_norm.i`, each followed by `.weight`).
"""

from __future__ import annotations

from specgate.eagle3.checkpoint import Wanted
from specgate.eagle3.geometry import DraftGeometry, TargetGeometry


def target_tensors(g: TargetGeometry) -> dict[str, Wanted]:
    """Every tensor of the target with its shape."""
    wanted = {"model.embed_tokens.weight": Wanted((g.vocab, g.hidden)), "model.norm.weight": Wanted((g.hidden,))}
    if not g.tied_embeddings:
        wanted["lm_head.weight"] = Wanted((g.vocab, g.hidden))
    for i in range(g.layers):
        wanted |= layer_tensors(f"model.layers.{i}.", g, g.hidden)
    return wanted


def draft_tensors(g: DraftGeometry, has_d2t: bool, has_t2d: bool) -> dict[str, Wanted]:
    """Every tensor of the draft with its shape.

    `d2t` is required where the draft vocabulary is smaller than the target's. `t2d` is never required. `has_d2t` and
    `has_t2d` say whether the checkpoint holds them.
    """
    width = g.features * g.target_hidden
    streams = f"{g.features} captured streams of the target's hidden size {g.target_hidden}"
    wanted = {"fc.weight": Wanted((g.hidden, width), streams), "norm.weight": Wanted((g.hidden,))}
    wanted |= layer_tensors("midlayer.", g, 2 * g.hidden, "the attention input is [embedding, feature]")
    wanted["midlayer.hidden_norm.weight"] = Wanted((g.hidden,))
    if g.norm_before_fc:
        wanted["input_norm.weight"] = Wanted((width,), streams)
    if g.fc_norm:
        wanted |= {f"fc_norm.{i}.weight": Wanted((g.target_hidden,), streams) for i in range(g.features)}
    if g.own_embedding:
        wanted["embed_tokens.weight"] = Wanted((g.vocab, g.hidden), "one row per target token")
    if g.own_lm_head:
        wanted["lm_head.weight"] = Wanted((g.draft_vocab, g.hidden), f"draft_vocab_size {g.draft_vocab} rows")
    if has_d2t or g.draft_vocab != g.vocab:
        wanted["d2t"] = Wanted((g.draft_vocab,), "one offset per row of lm_head.weight", "I64")
    if has_t2d:
        wanted["t2d"] = Wanted((g.vocab,), "one mark per target token", "BOOL")
    return wanted


def layer_tensors(
    prefix: str, g: TargetGeometry | DraftGeometry, attention_input: int, meaning: str = ""
) -> dict[str, Wanted]:
    """The tensors of one decoder layer; its query, key and value projections read rows of width `attention_input`."""
    norm, up = Wanted((g.hidden,)), Wanted((g.intermediate, g.hidden))
    q, kv = (Wanted((n * g.head_dim, attention_input), meaning) for n in (g.heads, g.kv_heads))
    parts = {
        "input_layernorm": norm,
        "self_attn.q_proj": q,
        "self_attn.k_proj": kv,
        "self_attn.v_proj": kv,
        "self_attn.o_proj": Wanted((g.hidden, g.heads * g.head_dim)),
        "post_attention_layernorm": norm,
        "mlp.gate_proj": up,
        "mlp.up_proj": up,
        "mlp.down_proj": Wanted((g.hidden, g.intermediate)),
    }
    return {f"{prefix}{name}.weight": want for name, want in parts.items()}
