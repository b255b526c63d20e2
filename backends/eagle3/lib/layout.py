"""The tensors that a geometry implies: canonical names and shapes; and a geometry in words.

Target tensors have Hugging Face's names. Draft tensors have those of the EAGLE authors (`fc`, `midlayer.*`, `norm`,
`lm_head`, `embed_tokens`, `input_norm`, `fc_norm.i`, each followed by `.weight`).
"""

from __future__ import annotations

from specgate.backends.eagle3.lib.checkpoint import Wanted
from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.mxfp4 import BLOCK, BYTES


def target_tensors(g: TargetGeometry) -> dict[str, Wanted]:
    """Every tensor of the target with its shape."""
    tensors = {"model.embed_tokens.weight": Wanted((g.vocab, g.hidden)), "model.norm.weight": Wanted((g.hidden,))}
    if not g.tied_embeddings:
        tensors["lm_head.weight"] = Wanted((g.vocab, g.hidden))
    for i in range(g.layers):
        prefix = f"model.layers.{i}."
        tensors |= attention_tensors(prefix, g, g.hidden)
        tensors |= feed_forward_tensors(prefix, g) if g.experts is None else expert_tensors(prefix, g, g.experts)
        if g.biases:
            tensors |= bias_tensors(prefix, g)
        if g.sinks:
            tensors[f"{prefix}self_attn.sinks"] = Wanted((g.heads,), "one logit per query head")
    return tensors


def draft_tensors(g: DraftGeometry, has_d2t: bool, has_t2d: bool) -> dict[str, Wanted]:
    """Every tensor of the draft with its shape.

    `d2t` is required where the draft vocabulary is smaller than the target's. `t2d` is never required. `has_d2t` and
    `has_t2d` say whether the checkpoint holds them.
    """
    width = g.features * g.target_hidden
    streams = f"{g.features} captured streams of the target's hidden size {g.target_hidden}"
    tensors = {"fc.weight": Wanted((g.hidden, width), streams), "norm.weight": Wanted((g.hidden,))}
    tensors |= layer_tensors("midlayer.", g, 2 * g.hidden, "the attention input is [embedding, feature]")
    tensors["midlayer.hidden_norm.weight"] = Wanted((g.hidden,))
    if g.norm_before_fc:
        tensors["input_norm.weight"] = Wanted((width,), streams)
    if g.fc_norm:
        tensors |= {f"fc_norm.{i}.weight": Wanted((g.target_hidden,), streams) for i in range(g.features)}
    if g.own_embedding:
        tensors["embed_tokens.weight"] = Wanted((g.vocab, g.hidden), "one row per target token")
    if g.own_lm_head:
        tensors["lm_head.weight"] = Wanted((g.draft_vocab, g.hidden), f"draft_vocab_size {g.draft_vocab} rows")
    if has_d2t or g.draft_vocab != g.vocab:
        tensors["d2t"] = Wanted((g.draft_vocab,), "one offset per row of lm_head.weight", "I64")
    if has_t2d:
        tensors["t2d"] = Wanted((g.vocab,), "one mark per target token", "BOOL")
    return tensors


def layer_tensors(prefix: str, g: DraftGeometry, attention_input: int, meaning: str) -> dict[str, Wanted]:
    """The tensors of the draft's decoder layer; see `attention_tensors`."""
    return attention_tensors(prefix, g, attention_input, meaning) | feed_forward_tensors(prefix, g)


def attention_tensors(
    prefix: str, g: TargetGeometry | DraftGeometry, attention_input: int, meaning: str = ""
) -> dict[str, Wanted]:
    """The norms and projections of one layer. Queries, keys and values come from rows of width `attention_input`."""
    norm = Wanted((g.hidden,))
    q, kv = (Wanted((n * g.head_dim, attention_input), meaning) for n in (g.heads, g.kv_heads))
    parts = {
        "input_layernorm": norm,
        "self_attn.q_proj": q,
        "self_attn.k_proj": kv,
        "self_attn.v_proj": kv,
        "self_attn.o_proj": Wanted((g.hidden, g.heads * g.head_dim)),
        "post_attention_layernorm": norm,
    }
    return {f"{prefix}{name}.weight": want for name, want in parts.items()}


def bias_tensors(prefix: str, g: TargetGeometry) -> dict[str, Wanted]:
    """The biases of a layer's projections around its attention."""
    rows = {"q": g.heads * g.head_dim, "k": g.kv_heads * g.head_dim, "v": g.kv_heads * g.head_dim, "o": g.hidden}
    return {f"{prefix}self_attn.{name}_proj.bias": Wanted((count,)) for name, count in rows.items()}


def feed_forward_tensors(prefix: str, g: TargetGeometry | DraftGeometry) -> dict[str, Wanted]:
    """A dense feed-forward part."""
    up = Wanted((g.intermediate, g.hidden))
    parts = {"gate_proj": up, "up_proj": up, "down_proj": Wanted((g.hidden, g.intermediate))}
    return {f"{prefix}mlp.{name}.weight": want for name, want in parts.items()}


def expert_tensors(prefix: str, g: TargetGeometry, experts: ExpertGeometry) -> dict[str, Wanted]:
    """A router and its experts. Float matrices are stored transposed, as transformers multiplies with them."""
    tensors = {
        "router.weight": Wanted((experts.count, g.hidden), f"{experts.count} experts"),
        "router.bias": Wanted((experts.count,), f"{experts.count} experts"),
    }
    for name, rows, columns in (
        ("gate_up_proj", 2 * g.intermediate, g.hidden),
        ("down_proj", g.hidden, g.intermediate),
    ):
        matrix, of = f"experts.{name}", f"{experts.count} experts of {rows} x {columns}"
        tensors[f"{matrix}_bias"] = Wanted((experts.count, rows), of)
        if experts.mxfp4:
            count = columns // BLOCK
            tensors[f"{matrix}_blocks"] = Wanted((experts.count, rows, count, BYTES), of, "U8")
            tensors[f"{matrix}_scales"] = Wanted((experts.count, rows, count), of, "U8")
        else:
            tensors[matrix] = Wanted((experts.count, columns, rows), of)
    return {f"{prefix}mlp.{name}": want for name, want in tensors.items()}


def draft_details(geometry: DraftGeometry) -> dict[str, str | int | float]:
    return {
        "draft vocabulary": geometry.draft_vocab,
        "draft window": geometry.window or "none",
        "draft rope": describe_rope(geometry.rope),
    }


def describe_rope(spec: RopeSpec) -> str:
    scaled = "" if spec.kind == "default" else f", {spec.kind} x{spec.factor:g}"
    return f"base {spec.base:g}{scaled}"
