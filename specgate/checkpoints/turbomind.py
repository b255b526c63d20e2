"""Pairs that were converted for TurboMind: raw weights beside a `config.yaml`.

A draft's folder holds `config.yaml` and one file per weight, in 16 bits and without a header: the config alone gives
its shape. Forks of LMDeploy that put EAGLE-3 into TurboMind load it. A target's folder is what `lmdeploy convert` of
LMDeploy 0.7.3 to 0.9 writes: weights in `triton_models/weights`, Hugging Face configs and tokenizer beside that.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from os.path import isdir, isfile
from pathlib import Path
from typing import Final, NamedTuple

from specgate.checkpoints.hf_keys import Keys, read_config, read_yaml
from specgate.errors import CheckpointError

CONFIG: Final = "config.yaml"
SECTION: Final = "model_config"
TARGET: Final = Path("triton_models", "weights")
CAPTURED: Final = "eagle_capture_layers"
IDS: Final = "draft_id_to_target_id"
"""The target id of each draft token, in 32 or 64 bits."""
FLOATS: Final = {"bf16": "BF16", "bfloat16": "BF16", "fp16": "F16", "float16": "F16", "half": "F16"}
"""`eagle_weight_dtype` → the type as safetensors spells it."""
SHOWN: Final = 3
"""Files in one message."""


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """Sizes of a converted draft, by the keys that state them.

    TurboMind's own names: `hidden_units` is the target's width, `eagle_draft_hidden` the draft's. Queries have
    `eagle_q_size` = heads × head size, which need not be a width. `draft_vocab_size` is 0 where the draft has the whole
    vocabulary.
    """

    hidden_units: int
    vocab_size: int
    inter_size: int
    eagle_draft_hidden: int
    eagle_q_size: int
    eagle_kv_size: int
    eagle_qkv_in_dim: int
    eagle_fc_in_dim: int
    draft_vocab_size: int = 0

    def length(self, name: str) -> int:
        """The value of `name`: a key, or several keys with factors, such as `eagle_q_size+2*eagle_kv_size`."""
        terms = (re.fullmatch(r"(?:(\d+)\*)?(\w+)", term) for term in name.split("+"))
        return sum(int(term[1] or 1) * int(getattr(self, term[2])) for term in terms if term)


class RawTensor(NamedTuple):
    """A weight file of a converted draft. `shape`: lengths, as `DraftSizes.length` reads them. `of`: the tensor of the
    EAGLE authors' layout that it holds, `turned` if transposed; "" where it is put together from others.
    """

    shape: str
    of: str = ""
    turned: bool = False
    needed: bool = True


TENSORS: Final[Mapping[str, RawTensor]] = {
    "tok_embeddings.weight": RawTensor("vocab_size hidden_units"),
    "fc.weight": RawTensor("2*eagle_draft_hidden eagle_draft_hidden", needed=False),
    "eagle_fc.weight": RawTensor("eagle_fc_in_dim eagle_draft_hidden", "fc.weight", turned=True),
    "layers.0.attention_norm.weight": RawTensor("eagle_draft_hidden", "midlayer.input_layernorm.weight"),
    "layers.0.hidden_norm.weight": RawTensor("eagle_draft_hidden", "midlayer.hidden_norm.weight"),
    "layers.0.ffn_norm.weight": RawTensor("eagle_draft_hidden", "midlayer.post_attention_layernorm.weight"),
    "layers.0.attention.w_qkv.weight": RawTensor("eagle_qkv_in_dim eagle_q_size+2*eagle_kv_size"),
    "layers.0.attention.wo.weight": RawTensor("eagle_q_size hidden_units"),
    "eagle3.q_proj.weight": RawTensor("eagle_q_size eagle_qkv_in_dim", "midlayer.self_attn.q_proj.weight"),
    "eagle3.k_proj.weight": RawTensor("eagle_kv_size eagle_qkv_in_dim", "midlayer.self_attn.k_proj.weight"),
    "eagle3.v_proj.weight": RawTensor("eagle_kv_size eagle_qkv_in_dim", "midlayer.self_attn.v_proj.weight"),
    "eagle3.o_proj.weight": RawTensor("eagle_draft_hidden eagle_q_size", "midlayer.self_attn.o_proj.weight"),
    "layers.0.feed_forward.w1.weight": RawTensor("inter_size hidden_units", "midlayer.mlp.gate_proj.weight"),
    "layers.0.feed_forward.w3.weight": RawTensor("inter_size hidden_units", "midlayer.mlp.up_proj.weight"),
    "layers.0.feed_forward.w2.weight": RawTensor(
        "inter_size eagle_draft_hidden", "midlayer.mlp.down_proj.weight", turned=True
    ),
    "norm.weight": RawTensor("eagle_draft_hidden", "norm.weight"),
    "output.weight": RawTensor("eagle_draft_hidden vocab_size"),
    "lm_head_draft.weight": RawTensor("eagle_draft_hidden draft_vocab_size", "lm_head.weight", turned=True),
    IDS: RawTensor("draft_vocab_size"),
}  # fmt: skip
"""File → what it holds. Source: `EagleModule::load` and `eagle_draft_converter.py` of the forks; the draft vocabulary
as they plan it. An EAGLE-3 draft needs all but the older `fc.weight`, and one of its two LM heads.
"""
IN_HUGGING_FACE: Final = {
    "hidden_size": "eagle_draft_hidden", "target_hidden_size": "hidden_units", "intermediate_size": "inter_size",
    "num_attention_heads": "head_num", "num_key_value_heads": "eagle_kv_size", "head_dim": "size_per_head",
}  # fmt: skip
"""Key of a draft's config.json → key of config.yaml that says it, where the names differ."""


def is_draft(folder: Path) -> bool:
    """True if `folder` holds a draft in TurboMind's layout alone."""
    return isfile(folder / CONFIG) and not isfile(folder / "config.json")


def converted_weights(folder: Path) -> Path | None:
    """The folder of TurboMind's weights in `folder`; None for a Hugging Face checkpoint."""
    if is_draft(folder):
        return folder
    return weights if isdir(weights := folder / TARGET) else None


def read_either(folder: Path) -> Keys:
    """The config of a target's or a draft's folder, in Hugging Face's keys also where a draft was converted.

    Raises CheckpointError as `read_config` and `in_hugging_face_keys` do.
    """
    return in_hugging_face_keys(weights_config(folder)) if is_draft(folder) else read_config(folder)


def weights_config(weights: Path) -> Keys:
    """The section `model_config` of the `config.yaml` beside converted weights."""
    return read_yaml(weights / CONFIG).part(SECTION)


def raw_files(weights: Path) -> tuple[Path, ...]:
    """Every file of a folder of TurboMind's, its config included: all of them decide what the engine computes."""
    return tuple(sorted(file for file in weights.iterdir() if file.is_file() and not file.name.startswith(".")))


def draft_sizes(model: Keys) -> DraftSizes:
    """The sizes of an EAGLE-3 draft, from its `model_config`. Raises CheckpointError for sizes that are missing or
    contradict each other.
    """
    inter = model.values.get("inter_size")
    if isinstance(inter, list) and inter:  # one for each layer, as in a target's
        model = replace(model, values={**model.values, "inter_size": inter[0]})
    heads, size = model.count("head_num"), model.count("size_per_head")
    hidden = model.count("hidden_units")
    if not any(key in model for key in ("eagle_q_size", "eagle_qkv_in_dim", "eagle_fc_in_dim")):
        raise model.wrong("eagle_q_size", "TurboMind takes a draft without EAGLE-3's sizes for an older EagleNet")
    eagle3 = {key: model.count(key) for key in ("eagle_q_size", "eagle_kv_size", "eagle_qkv_in_dim", "eagle_fc_in_dim")}
    sizes = DraftSizes(
        hidden_units=hidden,
        vocab_size=model.count("vocab_size"),
        inter_size=model.count("inter_size"),
        eagle_draft_hidden=model.count("eagle_draft_hidden", hidden),
        draft_vocab_size=model.optional_count("draft_vocab_size") or 0,
        **eagle3,
    )
    if not (captured := model.ids(CAPTURED)):
        raise model.wrong(CAPTURED, "TurboMind goes on without its draft: [1, 17, 32] for a target of 36 layers")
    for key, right, why in (
        ("eagle_q_size", heads * size, f"head_num × size_per_head = {heads} × {size}"),
        ("eagle_qkv_in_dim", 2 * sizes.eagle_draft_hidden, f"2 × eagle_draft_hidden = 2 × {sizes.eagle_draft_hidden}"),
        ("eagle_fc_in_dim", len(captured) * hidden, f"captured layers × hidden_units = {len(captured)} × {hidden}"),
        ("eagle_num_capture_layers", len(captured), f"the number of layers in {CAPTURED}"),
    ):
        if key in model and model.count(key) != right:
            raise model.wrong(key, f"{right} would be right: {why}")
    if sizes.eagle_kv_size % size or heads % (sizes.eagle_kv_size // size or 1):
        raise model.wrong("eagle_kv_size", f"a number of heads × size_per_head = {size}, which divides {heads} heads")
    if sizes.draft_vocab_size > sizes.vocab_size:
        raise model.wrong("draft_vocab_size", f"at most vocab_size = {sizes.vocab_size}")
    return sizes


def float_type(model: Keys) -> str:
    """Type of a draft's weights as safetensors spells it. Raises CheckpointError."""
    stated = model.text("eagle_weight_dtype") or "fp16"
    if stated not in FLOATS:
        raise model.wrong("eagle_weight_dtype", "bf16 or fp16: TurboMind reads anything else as fp16")
    return FLOATS[stated]


def in_hugging_face_keys(model: Keys) -> Keys:
    """The `model_config` of a converted draft in the keys of a Hugging Face draft. Errors still name config.yaml's.

    Raises CheckpointError as `draft_sizes` does. RoPE, epsilon and positions are the target's in TurboMind, so they are
    not among the keys.
    """
    sizes, size = draft_sizes(model), model.count("size_per_head")
    values = {
        "hidden_size": sizes.eagle_draft_hidden,
        "target_hidden_size": sizes.hidden_units,
        "intermediate_size": sizes.inter_size,
        "num_attention_heads": model.count("head_num"),
        "num_key_value_heads": sizes.eagle_kv_size // size,
        "head_dim": size,
        "vocab_size": sizes.vocab_size,
        "draft_vocab_size": sizes.draft_vocab_size or sizes.vocab_size,
        CAPTURED: list(model.ids(CAPTURED)),
    }
    return replace(model, values=values, names=IN_HUGGING_FACE)


def draft_files(model: Keys) -> dict[str, tuple[Path, str, tuple[int, ...]]]:
    """Name → (file, type as safetensors spells it, shape) of a converted draft's weights.

    Raises CheckpointError for weights that are missing, and for files of another size than the config says, with the
    value of a key that would fit them.
    """
    sizes, dtype, folder = draft_sizes(model), float_type(model), model.file.parent
    whole = not sizes.draft_vocab_size
    kinds = {name: raw for name, raw in TENSORS.items() if not (whole and "draft_vocab_size" in raw.shape)}
    there = {name: file for name in kinds if (file := file_of(folder, name)) is not None}
    needed = [name for name, raw in kinds.items() if raw.needed and (whole or name != "output.weight")]
    if missing := [name for name in needed if name not in there]:
        raise CheckpointError(
            f"{folder}: weights missing: {', '.join(missing[:SHOWN])}{' …' if missing[SHOWN:] else ''}",
            hint="TurboMind goes on without them, or without its draft: convert the draft again",
        )
    nbytes = {name: file.stat().st_size for name, file in there.items()}
    widths = dict.fromkeys(there, 2)
    if IDS in there:
        widths[IDS] = 8 if nbytes[IDS] == 8 * sizes.draft_vocab_size else 4
    wrong = [name for name in there if nbytes[name] != widths[name] * prod(shape_of(name, sizes))]
    if wrong:
        raise CheckpointError(
            f"{folder}: {'; '.join(contradiction(name, sizes, nbytes[name], widths[name]) for name in wrong[:SHOWN])}"
            + (f"; and {len(wrong) - SHOWN} more" if wrong[SHOWN:] else ""),
            hint=fitting(sizes, {name: nbytes[name] // widths[name] for name in there}, wrong, model)
            or "cut short, or of another draft: convert the draft again",
        )
    types = {2: dtype, 4: "I32", 8: "I64"}
    return {name: (there[name], types[widths[name]], shape_of(name, sizes)) for name in there}


def shape_of(name: str, sizes: DraftSizes) -> tuple[int, ...]:
    return tuple(map(sizes.length, TENSORS[name].shape.split()))


def file_of(folder: Path, name: str) -> Path | None:
    """The file of a weight, whose name may have the number of the only GPU before its last part."""
    head, dot, tail = name.rpartition(".")
    names = (name, f"{head}.0{dot}{tail}") if dot else (name,)
    return next((folder / n for n in names if isfile(folder / n)), None)


def contradiction(name: str, sizes: DraftSizes, nbytes: int, width: int) -> str:
    """A sentence about a file of another size than its config says."""
    shape = " × ".join(f"{key} ({sizes.length(key)})" for key in TENSORS[name].shape.split())
    return f"{name} has {nbytes} bytes, {shape} × {width} are {width * prod(shape_of(name, sizes))}"


def fitting(sizes: DraftSizes, elements: Mapping[str, int], wrong: list[str], model: Keys) -> str | None:
    """The one key whose other value would fit all files; None where there is none."""
    for key in (field.name for field in fields(DraftSizes)):
        alone = next((n for n in wrong if key in TENSORS[n].shape.split()), None)
        if alone is None:
            continue
        others = prod(sizes.length(k) for k in TENSORS[alone].shape.split() if k != key)
        other = replace(sizes, **{key: elements[alone] // others})
        if all(prod(shape_of(name, other)) == count for name, count in elements.items()):
            return f"{CONFIG}: {model.path(key)} = {getattr(other, key)} would fit the files"
    return None


def check_target(folder: Path, from_yaml: Keys, config: Keys) -> None:
    """Check the weights in a converted target's folder against `from_yaml`, the `model_config` beside them, and against
    `config`, its Hugging Face config.

    Raises CheckpointError where the two configs differ, and for a file that is missing or that has another size than
    the same weight of most layers.
    """
    for ours, theirs in (
        ("hidden_units", "hidden_size"), ("vocab_size", "vocab_size"), ("num_layer", "num_hidden_layers"),
        ("head_num", "num_attention_heads"), ("size_per_head", "head_dim"),
    ):  # fmt: skip
        stated = config.optional_count(theirs)
        if stated is not None and ours in from_yaml and from_yaml.count(ours) != stated:
            right = f"{config.file} says {config.path(theirs)} = {stated}: convert the target again"
            raise from_yaml.wrong(ours, right)
    if problem := next(uneven_layers(folder / TARGET, from_yaml.count("num_layer")), None):
        raise CheckpointError(f"{folder / TARGET}: {problem}", hint="convert the target again")


def uneven_layers(weights: Path, layers: int) -> Iterator[str]:
    """Sentences about files without which, or with whose size, a layer is unlike most others."""
    nbytes = {file.name: file.stat().st_size for file in raw_files(weights)}
    for stem in ("tok_embeddings", "norm", "output"):
        if not any(name == f"{stem}.weight" or re.fullmatch(rf"{stem}\.\d+\.weight", name) for name in nbytes):
            yield f"{stem}.weight is missing"
    by_name: dict[str, dict[int, int]] = defaultdict(dict)
    for name, size in nbytes.items():
        if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
            by_name[match[2]][int(match[1])] = size
    if not by_name:
        yield f"there is no file of {layers} layers"
    for name, sizes in by_name.items():
        usual, count = Counter(sizes.values()).most_common(1)[0]
        if 2 * count <= layers:
            continue
        for layer in range(layers):
            if sizes.get(layer) != usual:
                state = f"has {sizes[layer]} bytes" if layer in sizes else "is missing"
                yield f"layers.{layer}.{name} {state}, in {count} of {layers} layers it has {usual}"
