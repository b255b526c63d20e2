"""The tensors that a target's geometry implies, with Hugging Face's names; and a geometry in words."""

from __future__ import annotations

from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.heads.tensors import Wanted, attention_tensors, feed_forward_tensors
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
        if g.head_norms:
            norm = Wanted((g.head_dim,), "one weight for each element of a head")
            tensors |= {f"{prefix}self_attn.{part}_norm.weight": norm for part in "qk"}
        if g.biases:
            tensors |= bias_tensors(prefix, g)
        if g.sinks:
            tensors[f"{prefix}self_attn.sinks"] = Wanted((g.heads,), "one logit per query head")
    return tensors


def bias_tensors(prefix: str, g: TargetGeometry) -> dict[str, Wanted]:
    """The biases of a layer's projections around its attention."""
    rows = {"q": g.heads * g.head_dim, "k": g.kv_heads * g.head_dim, "v": g.kv_heads * g.head_dim, "o": g.hidden}
    return {f"{prefix}self_attn.{name}_proj.bias": Wanted((count,)) for name, count in rows.items()}


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
