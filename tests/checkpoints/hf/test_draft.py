"""Draft configs of every trainer: read, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specgate.checkpoints.auxiliary_layers import IDS
from specgate.checkpoints.geometry import DraftGeometry
from specgate.checkpoints.hf.draft import draft_geometry, trained_for_keys
from specgate.checkpoints.hf.target import target_geometry
from specgate.errors import CheckpointError
from tests.checkpoints.folders import DRAFT, LLAMA, keys

TARGET = target_geometry(keys(LLAMA))
HEAD = ("lm_head.weight", "d2t")
LAYER = {k: v for k, v in DRAFT.items() if k not in ("architectures", "draft_vocab_size")}
SPECULATORS: Mapping[str, object] = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "transformer_layer_config": {**LAYER, "rope_theta": 5e5},
    "draft_vocab_size": 100,
    "norm_before_residual": True,
    "speculators_config": {"verifier": {"name_or_path": "some/target"}},
    IDS: [2, 16, 29],
}


def read(
    changes: Mapping[str, object] | None = None, *, base: Mapping[str, object] = DRAFT, tensors: tuple[str, ...] = HEAD
) -> DraftGeometry:
    return draft_geometry(keys(base, **(changes or {})), TARGET, tensors)[0]


def test_a_plain_draft_has_all_switches_off_and_uses_the_targets_embedding() -> None:
    g = read()
    assert (g.hidden, g.target_hidden, g.features, g.vocab, g.draft_vocab) == (64, 64, 3, 1000, 100)
    assert (g.heads, g.kv_heads, g.head_dim, g.intermediate, g.max_positions) == (4, 2, 16, 96, 2048)
    assert not any((g.fc_norm, g.norm_before_fc, g.norm_output, g.norm_before_residual, g.own_embedding))
    assert g.own_lm_head and g.window is None


def test_the_drafts_rope_is_its_own_and_not_the_targets() -> None:
    target = target_geometry(keys(LLAMA, rope_theta=5e5))
    assert draft_geometry(keys(DRAFT), target, HEAD)[0].rope.base == 10000.0


@pytest.mark.parametrize("key", ["fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"])
def test_a_switch_counts_at_the_top_level_and_under_eagle_config(key: str) -> None:
    assert getattr(read({key: True}), key)
    assert getattr(read({"eagle_config": {key: True}}), key)
    assert not getattr(read({key: False}), key)
    assert read({"use_aux_norm": True}).fc_norm, "its old name"


def test_a_switch_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"eagle_config\.norm_output = true\n.*top level says False"):
        read({"norm_output": False, "eagle_config": {"norm_output": True}})


def test_captured_layers_set_the_number_of_features() -> None:
    assert read({"eagle_config": {IDS: [1, 9, 17, 25, 31]}, "num_aux_hidden_states": 5}).features == 5
    with pytest.raises(CheckpointError, match=r"num_aux_hidden_states = 5\n.*default boundaries"):
        read({"num_aux_hidden_states": 5})


def test_a_draft_without_a_vocabulary_of_its_own_may_use_the_targets_head() -> None:
    assert not read({"draft_vocab_size": None}, tensors=()).own_lm_head
    assert read({"draft_vocab_size": None}, tensors=("lm_head.weight",)).own_lm_head
    assert read({"draft_vocab_size": 1000}, tensors=()).draft_vocab == 1000
    assert read(tensors=()).own_lm_head, "a reduced vocabulary always has a head of its own"


def test_a_narrower_draft_has_an_embedding_of_its_own() -> None:
    g = read({"hidden_size": 32, "target_hidden_size": 64})
    assert (g.hidden, g.target_hidden, g.head_dim, g.own_embedding) == (32, 64, 8, True)
    assert read(tensors=(*HEAD, "embed_tokens.weight")).own_embedding


def test_a_speculators_config_is_read_from_both_its_levels() -> None:
    geometry, capture = draft_geometry(keys(SPECULATORS), TARGET, HEAD)
    assert (geometry.hidden, geometry.draft_vocab, geometry.rope.base) == (64, 100, 5e5)
    assert geometry.norm_before_residual
    assert capture.boundaries == (2, 16, 29)


def test_a_speculators_config_without_norm_before_residual_is_ambiguous() -> None:
    with pytest.raises(CheckpointError, match=r"norm_before_residual is missing\n.*speculators means false"):
        read({"norm_before_residual": ...}, base=SPECULATORS)


def test_errors_name_the_nested_section_of_a_speculators_config() -> None:
    layer = {**LAYER, "intermediate_size": 0}
    with pytest.raises(CheckpointError, match=r"transformer_layer_config\.intermediate_size = 0"):
        read({"transformer_layer_config": layer}, base=SPECULATORS)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 512, "use_sliding_window": True}, 512),
        ({"sliding_window": 512, "layer_types": ["sliding_attention"]}, 512),
        ({"sliding_window": 512, "layer_types": ["sliding_attention"], "use_sliding_window": True}, 512),
        ({"sliding_window": 512, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "layer_types": ["full_attention"]}, None),
        ({"sliding_window": None, "use_sliding_window": None}, None),
    ],
)
def test_a_window_counts_where_the_config_says_it_is_in_use(changes: dict[str, object], window: int | None) -> None:
    assert read(changes).window == window


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 512}, "sliding_window = 512\n.*whether it is in use"),
        ({"use_sliding_window": True}, "sliding_window is missing\n.*positive integer"),
        ({"layer_types": ["sliding_attention"], "use_sliding_window": False}, "sliding_window = false\n.*otherwise"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = .*\n.*one layer"),
        ({"attention_bias": True}, "attention_bias = true\n.*bias"),
        ({"mlp_bias": True}, "mlp_bias = true\n.*bias"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"\n.*silu'),
        ({"logit_scale": 0.5}, "logit_scale = 0.5\n.*not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .*\n.*unquantised"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, r"g\.use_aux_hidden_state = false\n.*final hidden"),
        ({"use_aux_hidden_state": False}, "use_aux_hidden_state = false\n.*final hidden"),
        ({"parallel_drafting": True}, "parallel_drafting = true\n.*parallel drafting"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step = 4\n.*parallel drafting"),
        ({"eagle_config": {"use_input_layernorm_in_first_layer": False}}, "first_layer = false\n.*norm the embedding"),
        ({"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm = false\n.*before lm_head"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm = true\n.*not supported"),
        ({"fc_norm": True, "norm_before_fc": True}, "norm_before_fc = true\n.*fc_norm is set too"),
        ({"speculators_model_type": "peagle"}, 'speculators_model_type = "peagle"\n.*only eagle3'),
    ],
)
def test_a_variant_that_is_not_supported_is_refused_with_the_reason(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{message}"):
        read(changes)


def test_a_tied_head_without_weights_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings = true\n.*the target's"):
        read({"draft_vocab_size": None, "tie_word_embeddings": True}, tensors=())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 128}, "hidden_size = 128, the target has 64"),
        ({"target_hidden_size": 128}, "target_hidden_size = 128, the target has 64"),
        ({"vocab_size": 128256}, "vocab_size = 128256, the target has 1000"),
        ({"trained_for": {"num_hidden_layers": 36}}, r"trained_for\.num_hidden_layers = 36, the target has 32"),
        ({"hidden_size": 128, "vocab_size": 9}, "hidden_size = 128, the target has 64; vocab_size = 9, the target"),
    ],
)
def test_the_draft_of_another_target_is_recognised(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"draft of another target: {message}.*\n.*trained for"):
        read(changes)


def test_the_draft_of_another_target_says_which_if_it_names_it() -> None:
    with pytest.raises(CheckpointError, match=r"another target \(its config names some/target\): vocab_size"):
        read({"transformer_layer_config": {**LAYER, "vocab_size": 9}}, base=SPECULATORS)
    note = trained_for_keys("tiny", target_geometry(keys(LLAMA, num_hidden_layers=30)), "ab12")
    with pytest.raises(CheckpointError, match=r"another target \(its config names tiny\): trained_for"):
        read(note)
