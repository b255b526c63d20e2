"""Sizes that tensors show, above a config that says otherwise."""

from __future__ import annotations

import pytest

from specgate.checkpoints.auxiliary_layers import IDS
from specgate.checkpoints.hf.draft import OtherTarget
from specgate.errors import CheckpointError, UnsupportedDraft
from tests.checkpoints.heads.headers import Header, headers, read

PLAIN = headers()


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("num_hidden_layers", 0, 1),
        ("num_hidden_layers", 40, 1),
        ("hidden_size", 4096, 64),
        ("intermediate_size", 1, 96),
        ("draft_vocab_size", 32000, 100),
        ("vocab_size", 128256, 1000),
        ("head_dim", 128, 16),
        ("num_key_value_heads", 4, 2),
        ("num_aux_hidden_states", 5, 3),
        ("attention_bias", True, False),
    ],
)
def test_a_size_counts_as_the_tensors_show_it_and_the_contradiction_is_said_once(
    key: str, wrong: object, right: object
) -> None:
    head = read(PLAIN, **{key: wrong})
    assert head.geometry == read(PLAIN).geometry
    text = f"the draft's config.json contradicts its weights, which count: {key} = {wrong} (the weights: {right})"
    assert head.warnings == (text,)


@pytest.mark.parametrize(
    "key",
    ["num_hidden_layers", "draft_vocab_size", "num_key_value_heads", "intermediate_size", "head_dim", "vocab_size"],
)
def test_a_size_that_the_config_leaves_out_is_no_contradiction(key: str) -> None:
    head = read(PLAIN, **{key: ...})
    assert (head.geometry, head.warnings) == (read(PLAIN).geometry, ())


@pytest.mark.parametrize("head_dim", [8, 32, 64])
def test_a_head_size_that_is_not_the_width_per_head_is_read_off_the_projections(head_dim: int) -> None:
    head = read(headers(head_dim=head_dim))
    assert (head.geometry.head_dim, head.geometry.rope.dim, head.warnings) == (head_dim, head_dim, ())


def test_contradictions_of_several_keys_are_one_warning() -> None:
    (warning,) = read(PLAIN, num_hidden_layers=3, hidden_size=9, tie_word_embeddings=False).warnings
    assert "num_hidden_layers = 3 (the weights: 1)" in warning and "hidden_size = 9 (the weights: 64)" in warning


@pytest.mark.parametrize("name", ["midlayer.mlp.gate_proj.weight", "norm.weight", "midlayer.self_attn.q_proj.weight"])
def test_one_misshapen_tensor_does_not_bend_the_rest(name: str) -> None:
    shape = (PLAIN[name].shape[0] - 1, *PLAIN[name].shape[1:])
    with pytest.raises(CheckpointError, match=rf"the config: wrong: {name} is \[{shape[0]}[^;]*\n"):
        read({**PLAIN, name: Header(shape)})


@pytest.mark.parametrize(
    ("switch", "norms"),
    [("fc_norm", {f"fc_norm.{i}.weight": 64 for i in range(3)}), ("norm_before_fc", {"input_norm.weight": 192})],
)
def test_norms_before_fc_are_on_where_their_weights_are(switch: str, norms: dict[str, int]) -> None:
    entries = PLAIN | {name: Header((size,)) for name, size in norms.items()}
    assert getattr(read(entries).geometry, switch) and read(entries).warnings == ()
    head = read(entries, **{switch: False}, eagle_config={switch: False})
    assert getattr(head.geometry, switch) and f"{switch} = False (the weights: True)" in head.warnings[0]


@pytest.mark.parametrize("layers", [3, 40])
def test_a_list_of_layer_types_as_long_as_the_target_counts_if_all_are_alike(layers: int) -> None:
    kinds: dict[str, object] = {"layer_types": ["sliding_attention"] * layers, "sliding_window": 8}
    assert read(PLAIN, **kinds).geometry.window == 8


@pytest.mark.parametrize(
    ("keys", "boundaries", "warning"),
    [
        (
            {IDS: [2, 8, 16, 20, 29], "eagle_config": {IDS: [1, 15, 28]}},
            (2, 16, 29),
            f"{IDS} = [2, 8, 16, 20, 29] does not",
        ),
        (
            {IDS: [2, 16, 29], "eagle_config": {IDS: [1, 28]}},
            (2, 16, 29),
            f"eagle_config.{IDS} = [1, 28] does not count",
        ),
        ({"target_layer_ids": [1, 9, 17]}, (2, 16, 29), "target_layer_ids is no key of EAGLE-3 heads"),
        (
            {"eagle_config": {"aux_hidden_state_layers": [1, 9, 17]}},
            (2, 16, 29),
            "eagle_config.aux_hidden_state_layers is no",
        ),
    ],
)
def test_keys_about_layers_count_if_fc_takes_as_many(
    keys: dict[str, object], boundaries: tuple[int, ...], warning: str
) -> None:
    head = read(PLAIN, **keys)
    assert head.capture.boundaries == boundaries
    assert len(head.warnings) == 1 and warning in head.warnings[0]


def test_layers_that_no_key_has_in_the_number_that_fc_takes_are_the_one_cause() -> None:
    with pytest.raises(CheckpointError, match=r"wrong: fc\.weight is \[64, 192\], not \[64, 128\] \(2 captured[^;]*\n"):
        read(PLAIN, **{IDS: [2, 16]})


LINEAR = {"type": "linear", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, "rope_theta = 500000.0, rope_parameters."),
        ({"rope_theta": 1e6, "rope_scaling": LINEAR}, "rope_theta = 1000000.0, rope_scaling.rope_theta = 10000.0"),
        ({"torch_dtype": "float16", "dtype": "bfloat16"}, "torch_dtype = 'float16', dtype = 'bfloat16'"),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_itself_is_read_with_a_warning(keys: dict[str, object], message: str) -> None:
    head = read(PLAIN, **keys)
    assert head.geometry.rope.base == 1e4
    assert len(head.warnings) == 1 and f"config.json contradicts itself: {message}" in head.warnings[0]


def test_both_spellings_of_rope_scaling_may_say_the_same_one_of_them_without_its_base() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
    old, new = {"type": "llama3", **scaling}, {"rope_type": "llama3", "rope_theta": 5e5, **scaling}
    head = read(PLAIN, rope_theta=5e5, rope_scaling=old, rope_parameters=new)
    assert (head.geometry.rope, head.warnings) == (read(PLAIN, rope_theta=5e5, rope_scaling=old).geometry.rope, ())
    for other in ({**new, "factor": 4.0}, {**new, "rope_theta": 1e4}, {"rope_type": "yarn", "factor": 8.0}):
        with pytest.raises(CheckpointError, match=r"rope_scaling = .*\n.*rope_parameters says something else"):
            read(PLAIN, rope_theta=5e5, rope_scaling=old, rope_parameters=other)


def test_a_tied_head_with_weights_of_its_own_uses_them_and_says_so() -> None:
    (warning,) = read(PLAIN, tie_word_embeddings=True).warnings
    assert "ties its embeddings, but its weights hold an LM head" in warning


@pytest.mark.parametrize("types", [("F32", "BF16"), ("F16", "F32", "BF16")])
def test_floats_of_several_widths_are_read(types: tuple[str, ...]) -> None:
    mixed = {
        name: Header(e.shape, types[i % len(types)]) for i, (name, e) in enumerate(PLAIN.items()) if name[1:] != "2d"
    }
    assert read({**mixed, "d2t": PLAIN["d2t"], "t2d": PLAIN["t2d"]}).warnings == ()


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "I8"])
def test_quantised_matrices_are_the_one_cause(kind: str) -> None:
    entries = {name: Header(e.shape, kind if len(e.shape) == 2 else e.dtype) for name, e in PLAIN.items()}
    with pytest.raises(UnsupportedDraft, match=rf"9 of 15 tensors are of type {kind}: .*\n.*in bfloat16"):
        read(entries)


def test_a_note_of_quantisation_over_plain_weights_is_not_believed() -> None:
    assert read(PLAIN, quantization_config={"quant_method": "fp8"}).warnings == (
        "the draft's config.json has a quantization_config, but its weights are not quantised",
    )


@pytest.mark.parametrize("width", [128, 2048])
def test_a_head_of_a_wider_target_is_another_targets(width: int) -> None:
    entries = headers() | {"fc.weight": Header((64, 3 * width))}
    with pytest.raises(OtherTarget, match=f"target_hidden_size = {width}, the target has 64"):
        read(entries, target_hidden_size=width)


def test_a_head_of_another_vocabulary_is_another_targets() -> None:
    for changes in ({"t2d": Header((777,), "BOOL")}, {"embed_tokens.weight": Header((777, 64))}):
        with pytest.raises(OtherTarget, match="vocab_size = 777, the target has 1000"):
            read({**PLAIN, **changes}, vocab_size=777)
