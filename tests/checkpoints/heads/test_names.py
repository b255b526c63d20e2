"""Names of tensors, as trainers write them: the same head, or one cause why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specgate.checkpoints.heads.names import head_names
from specgate.errors import CheckpointError, UnsupportedDraft
from tests.checkpoints.heads.headers import Header, headers, read, renamed

PLAIN = headers()
OUTSIDE = ("lm_head.weight", "d2t", "t2d")


def below(prefix: str, outside: tuple[str, ...] = ()) -> Callable[[str], str]:
    return lambda name: name if name in outside else prefix + name


def as_layer(text: str) -> Callable[[str], str]:
    return lambda name: name.replace("midlayer.", text)


LAYERS = ("midlayer.", "layers.0.", "midlayer.0.", "layers.32.", "decoder.block.0.")
OF_THEIR_OWN = ("model.layers.0.", "transformer.h.0.", "draft.decoder.layers.5.")
PREFIXES = ("model.", "eagle_module.", "module._orig_mod.", "a.prefix.nobody.knows.")


@pytest.mark.parametrize(
    ("layer", "prefix", "outside"),
    [
        *((layer, "", ()) for layer in (*LAYERS, *OF_THEIR_OWN)),
        *((layer, prefix, ()) for layer in ("midlayer.", "decoder.block.0.") for prefix in PREFIXES),
        *((layer, "model.", OUTSIDE) for layer in LAYERS),
        *(("layers.0.", prefix, OUTSIDE) for prefix in ("draft_model.", "draft_model.model.")),
    ],
)
def test_a_head_is_the_same_below_any_prefix_and_whatever_its_layer_is_called(
    layer: str, prefix: str, outside: tuple[str, ...]
) -> None:
    entries = renamed(renamed(PLAIN, as_layer(layer)), below(prefix, outside))
    head = read(entries)
    assert (head.geometry, head.warnings) == (read(PLAIN).geometry, ())
    assert set(head.names) == set(PLAIN) and set(head.names.values()) == set(entries)


def test_a_head_whose_lm_head_alone_lies_below_a_part_of_the_prefix_is_whole() -> None:
    entries = renamed(PLAIN, lambda name: "draft.lm_head.weight" if "lm_head" in name else f"draft.model.{name}")
    assert read(entries).names["lm_head.weight"] == "draft.lm_head.weight"


@pytest.mark.parametrize(
    ("old", "new"), [("d2t", "draft_id_to_target_id"), ("d2t", "d2t.weight"), ("t2d", "t2d.weight")]
)
def test_maps_are_known_by_their_other_names(old: str, new: str) -> None:
    assert read(renamed(PLAIN, lambda name: new if name == old else name)).names[old] == new


@pytest.mark.parametrize("part", ["_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."])
def test_wrappers_of_torch_inside_of_names_change_nothing(part: str) -> None:
    assert read(renamed(PLAIN, as_layer(f"midlayer.{part}"))).geometry == read(PLAIN).geometry


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("verifier_norm.weight", "the target"),
        ("verifier_lm_head.weight", "the target"),
        ("target_model.layers.0.mlp.up_proj.weight", "the target"),
        ("optimizer.state.3.exp_avg", "training"),
        ("midlayer.mlp.up_proj.weight.exp_avg_sq", "training"),
        ("ema_model.fc.weight", "training"),
    ],
)
def test_what_is_left_over_of_training_is_not_read_and_said_once(name: str, what: str) -> None:
    head = read({**PLAIN, name: Header((7,))})
    assert head.warnings == (f"the draft's files also hold tensors of {what}, which are not read: {name}",)


@pytest.mark.parametrize(
    "name", ["midlayer.self_attn.rotary_emb.inv_freq", "rotary_emb.cos_cached", "model.sin_cached"]
)
def test_buffers_that_everybody_recomputes_are_left_out_without_a_word(name: str) -> None:
    assert read({**PLAIN, name: Header((8,))}).warnings == ()


def test_a_whole_model_stored_beside_its_head_is_left_out_but_for_a_borrowed_lm_head() -> None:
    whole = {f"model.layers.{i}.mlp.up_proj.weight": Header((9, 9)) for i in range(5)}
    entries = {**renamed(PLAIN, below("eagle_module.")), **whole, "lm_head.weight": Header((1000, 64))}
    head = read(entries)
    assert head.names["lm_head.weight"] == "eagle_module.lm_head.weight"
    assert "tensors of another model, which are not read: model.layers.0" in head.warnings[0]
    assert head.warnings[0].endswith(" and 3 more") and len(head.warnings) == 1
    del entries["eagle_module.lm_head.weight"], entries["eagle_module.d2t"]
    borrowed = read({**entries, "lm_head.weight": Header((1000, 64))}, draft_vocab_size=None)
    assert borrowed.names["lm_head.weight"] == "lm_head.weight"


@pytest.mark.parametrize("layers", [(0, 1), (0, 7), (1, 2, 3)])
def test_several_decoder_layers_are_the_one_cause(layers: tuple[int, ...]) -> None:
    entries = {
        name.replace("midlayer", f"layers.{i}"): entry for i in layers for name, entry in PLAIN.items()
    }  # other tensors come once
    text = rf"hold {len(layers)} decoder layers \({', '.join(map(str, layers))}\)\n.*drafts of one layer only"
    with pytest.raises(UnsupportedDraft, match=text):
        read(entries, num_hidden_layers=1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mask_hidden", "parallel drafting"),
        ("medusa_heads.0.linear.weight", "Medusa"),
        ("midlayer.self_attn.kv_a_proj_with_mqa.weight", "latent attention"),
        ("midlayer.mlp.experts.0.up_proj.weight", "mixture of experts"),
        ("midlayer.self_attn.q_norm.weight", "norms of queries and keys"),
        ("midlayer.self_attn.q_proj.lora_A.default.weight", "LoRA"),
        ("midlayer.self_attn.qkv_proj.weight", "fused"),
        ("midlayer.mlp.down_proj.weight_scale", "quantised"),
        ("midlayer.self_attn.q_proj.bias", "bias"),
    ],
)
def test_heads_of_other_kinds_are_refused_by_the_tensor_that_tells(name: str, kind: str) -> None:
    with pytest.raises(UnsupportedDraft, match=rf"tensor model\.{name}: .*{kind}"):
        read(renamed({**PLAIN, name: Header((4,))}, below("model.")))


def test_heads_of_eagle_1_are_refused_as_such() -> None:
    entries = {**PLAIN, "fc.weight": Header((64, 128)), "fc.bias": Header((64,))}
    for name in ("norm.weight", "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "d2t", "t2d"):
        del entries[name]
    with pytest.raises(
        UnsupportedDraft, match=r"EAGLE-1 or EAGLE-2: fc takes an embedding and one hidden .*128 = 2 . 64"
    ):
        read(renamed(entries, as_layer("layers.0.")))


def test_a_head_without_fc_is_missing_one_tensor() -> None:
    entries = renamed({name: entry for name, entry in PLAIN.items() if name != "fc.weight"}, below("model."))
    with pytest.raises(CheckpointError, match=r"fit the config: missing: fc\.weight\n"):
        read(entries)


def test_a_whole_model_below_a_prefix_is_left_out_beside_a_head_without_one() -> None:
    whole = {
        f"model.{name.replace('midlayer', f'layers.{i}')}": entry for i in range(4) for name, entry in PLAIN.items()
    }
    del whole["model.fc.weight"]
    head = read({**PLAIN, **whole})
    assert set(head.names.values()) == set(PLAIN) and "tensors of another model" in head.warnings[0]


@pytest.mark.parametrize("names", [["x"], ["encoder.a.weight", "encoder.b.weight"], []])
def test_tensors_of_no_head_are_one_cause(names: list[str]) -> None:
    with pytest.raises(CheckpointError, match=rf"no tensor of an EAGLE-3 head among {len(names)} \("):
        read({name: Header((3,)) for name in names})


@pytest.mark.parametrize("name", ["a." * 100_000 + "fc.weight", "layers." * 50_000, f"layers.{'9' * 5000}.x", "."])
def test_names_of_any_length_are_read_or_refused(name: str) -> None:
    with pytest.raises(CheckpointError):
        read({name: Header((3,))})


def test_one_weight_under_two_prefixes_is_ambiguous() -> None:
    with pytest.raises(CheckpointError, match=r"tensors fc\.weight and model\.fc\.weight are the same weight"):
        head_names([*PLAIN, "model.fc.weight"], Path("draft"))
