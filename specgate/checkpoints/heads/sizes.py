"""Sizes of a head that its tensors show, and a config that is put right by them.

A size is taken from the tensors if more than half of those that show it agree: one misshapen tensor is then named as
what it is, and does not bend the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from specgate.checkpoints.geometry import TargetSizes
from specgate.checkpoints.hf.draft import DraftKeys
from specgate.checkpoints.hf.rope import two_bases
from specgate.checkpoints.hf_keys import Keys
from specgate.files.json_text import shown as as_json

Shapes = Mapping[str, tuple[int, ...]]
"""Canonical name → shape."""
LAYER: Final = "midlayer."
LM_HEAD: Final = "lm_head.weight"
SHOWN_BY: Final[Mapping[str, tuple[tuple[str, int, int], ...]]] = {
    "hidden_size": (
        ("norm.weight", 0, 1), ("fc.weight", 0, 1), (f"{LAYER}hidden_norm.weight", 0, 1),
        (f"{LAYER}input_layernorm.weight", 0, 1), (f"{LAYER}post_attention_layernorm.weight", 0, 1),
        (f"{LAYER}self_attn.q_proj.weight", 1, 2), (f"{LAYER}self_attn.k_proj.weight", 1, 2),
        (f"{LAYER}self_attn.v_proj.weight", 1, 2), (f"{LAYER}self_attn.o_proj.weight", 0, 1),
        (f"{LAYER}mlp.gate_proj.weight", 1, 1), (f"{LAYER}mlp.up_proj.weight", 1, 1),
        (f"{LAYER}mlp.down_proj.weight", 0, 1), (LM_HEAD, 1, 1),
    ),
    "intermediate_size": (
        (f"{LAYER}mlp.gate_proj.weight", 0, 1), (f"{LAYER}mlp.up_proj.weight", 0, 1),
        (f"{LAYER}mlp.down_proj.weight", 1, 1),
    ),
    "draft_vocab_size": ((LM_HEAD, 0, 1), ("d2t", 0, 1)),
    "vocab_size": (("embed_tokens.weight", 0, 1), ("t2d", 0, 1)),
    "query_rows": ((f"{LAYER}self_attn.q_proj.weight", 0, 1), (f"{LAYER}self_attn.o_proj.weight", 1, 1)),
    "key_rows": ((f"{LAYER}self_attn.k_proj.weight", 0, 1), (f"{LAYER}self_attn.v_proj.weight", 0, 1)),
}  # fmt: skip
"""Size → (tensor, axis, how many times the size that axis is long)."""
SWITCHES: Final[Mapping[str, str]] = {"fc_norm": "fc_norm.0.weight", "norm_before_fc": "input_norm.weight"}
"""Switch → a tensor that is there only if it is on."""
BIASES: Final = ("attention_bias", "mlp_bias")
"""Switches of projections' biases. A head that has such tensors is refused by their names."""
TWO_SPELLINGS: Final = (("torch_dtype", "dtype"),)
"""Keys that mean the same."""


def shown(shapes: Shapes, size: str) -> int | None:
    """The value of `size` that more than half of the tensors agree on that show it; None if there is none."""
    votes = [
        shapes[name][axis] // times
        for name, axis, times in SHOWN_BY[size]
        if name in shapes and axis < len(shapes[name]) and shapes[name][axis] % times == 0
    ]
    value, count = Counter(votes).most_common(1)[0] if votes else (0, 0)
    return value if 2 * count > len(votes) and value > 0 else None


def put_right(config: Keys, shapes: Shapes, layers: int, plain: bool, target: TargetSizes) -> tuple[Keys, list[str]]:
    """(the config with the sizes that the tensors show, warnings about what contradicts itself).

    `layers`: how many decoder layers the tensors belong to. `plain`: they are all floats of 16 bits or more, which are
    not quantised. What is no mapping or no number is left for whoever reads it.
    """
    keys = DraftKeys.of(config)
    of_layer = sizes_of_layer(keys.layer, shapes, target)
    if layers == 1:
        of_layer |= {"num_hidden_layers": 1, **{key: False for key in BIASES if key in keys.layer}}
    of_head = sizes_of_head(keys, shapes, target)
    other = [*contradictions(keys.head, of_head), *contradictions(keys.layer, of_layer)]
    warnings = [f"the draft's config.json contradicts its weights, which count: {', '.join(other)}"] if other else []
    warnings += spelt_twice(keys)
    head = {**keys.head.values, **of_head}
    if nested := keys.head.part("eagle_config").values:
        head["eagle_config"] = {key: value for key, value in nested.items() if not (key in SWITCHES and key in of_head)}
    if plain and "quantization_config" in keys.head:
        warnings.append("the draft's config.json has a quantization_config, but its weights are not quantised")
        del head["quantization_config"]
    if keys.speculators:
        head["transformer_layer_config"] = {**keys.layer.values, **of_layer}
    else:
        head |= of_layer
    if LM_HEAD in shapes and keys.layer.values.get("tie_word_embeddings") is True:
        warnings.append(
            "the draft's config.json ties its embeddings, but its weights hold an LM head: that one is used"
        )
    return Keys(config.file, head), warnings


def sizes_of_layer(layer: Keys, shapes: Shapes, target: TargetSizes) -> dict[str, int]:
    """Keys of the decoder layer, with the values that the tensors show."""
    read = {key: shown(shapes, key) for key in ("hidden_size", "intermediate_size")}
    sizes = {key: value for key, value in read.items() if value is not None}
    if shown(shapes, "vocab_size") == target.vocab:
        sizes["vocab_size"] = target.vocab
    return sizes | attention_sizes(layer, sizes.get("hidden_size"), shapes)


def attention_sizes(layer: Keys, hidden: int | None, shapes: Shapes) -> dict[str, int]:
    """Heads and their size, as the rows of the projections show them: one of the three keys may be wrong.

    The rows are products, so that they do not tell which. The first reading counts of: another head size, another
    number of key and value heads, another number of query heads.
    """
    queries, keys = shown(shapes, "query_rows"), shown(shapes, "key_rows")
    heads = count_of(layer, "num_attention_heads")
    if queries is None or keys is None or heads is None or hidden is None:
        return {}
    kv_heads = count_of(layer, "num_key_value_heads") or heads
    stated = count_of(layer, "head_dim") or (hidden // heads if hidden % heads == 0 else None)
    readings = [(heads, kv_heads, queries // heads)]
    if stated:
        readings = [
            (heads, kv_heads, stated),
            *readings,
            (heads, keys // stated, stated),
            (queries // stated, kv_heads, stated),
        ]
    for h, kv, dim in readings:
        if h and kv and h % kv == 0 and (h * dim, kv * dim) == (queries, keys):
            return {"num_attention_heads": h, "num_key_value_heads": kv, "head_dim": dim}
    return {}


def sizes_of_head(keys: DraftKeys, shapes: Shapes, target: TargetSizes) -> dict[str, int]:
    """Keys of the head as a whole, with the values that its tensors show."""
    sizes: dict[str, int] = {}
    if (rows := shown(shapes, "draft_vocab_size")) is not None:
        sizes["draft_vocab_size"] = rows
    fc = shapes.get("fc.weight", ())
    stated = count_of(keys.head, "target_hidden_size") or shown(shapes, "hidden_size")
    if len(fc) == 2 and stated and fc[1] % stated and fc[1] % target.hidden == 0:
        sizes["target_hidden_size"] = target.hidden
    if "num_aux_hidden_states" in keys.head and len(fc) == 2 and fc[1] % target.hidden == 0:
        sizes["num_aux_hidden_states"] = fc[1] // target.hidden
    return sizes | {switch: True for switch, name in SWITCHES.items() if name in shapes}


def contradictions(section: Keys, values: Mapping[str, int]) -> Iterator[str]:
    """Yield each key of `section` that is there and has another value than the weights show."""
    for key, value in values.items():
        if key in section and section.values[key] != value:
            yield f"{section.path(key)} = {as_json(section.values[key])} (the weights: {value})"


def spelt_twice(keys: DraftKeys) -> Iterator[str]:
    """Yield a warning for each fact that the config states twice, in different ways."""
    for old, new in TWO_SPELLINGS:
        for section in (keys.head, keys.layer)[: 1 + keys.speculators]:
            if old in section and new in section and section.values[old] != section.values[new]:
                values = ", ".join(f"{section.path(key)} = {as_json(section.values[key])}" for key in (old, new))
                yield f"the draft's config.json contradicts itself: {values}; the weights keep their own types"
    if bases := two_bases(keys.layer):
        yield f"the draft's config.json contradicts itself: {bases}"


def count_of(section: Keys, key: str) -> int | None:
    """A positive integer; None where there is none, which whoever needs it will refuse."""
    value = section.values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
