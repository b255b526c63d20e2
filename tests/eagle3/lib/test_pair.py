"""Whole checkpoints: what loads, what is refused, and that the message says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint, load_draft, load_target
from specgate.checkpoints.auxiliary_layers import IDS
from specgate.errors import CheckpointError
from tests.checkpoints.folders import Tensors, edit_config, edit_tensors
from tests.pairs.tiny import write_random_pair

HIDDEN, VOCAB, DRAFT_VOCAB = 64, 320, 96


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_random_pair(tmp_path, seed=7, vocab=VOCAB, draft_vocab=DRAFT_VOCAB, hidden=HIDDEN)


def target_of(pair: tuple[Path, Path], dtype: torch.dtype = torch.float32) -> TargetCheckpoint:
    return load_target(pair[0], dtype, "cpu")


def draft_of(pair: tuple[Path, Path], override: tuple[int, ...] | None = None) -> DraftCheckpoint:
    return load_draft(pair[1], target_of(pair).geometry, torch.float32, "cpu", override)


# ── targets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_size", ["50KB", "1GB"])
def test_a_target_holds_what_transformers_saved(tmp_path: Path, tied: bool, shard_size: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=300, tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "50KB")
    target = load_target(tmp_path, torch.float32, "cpu")
    state = model.state_dict()
    assert target.tensors.keys() == state.keys() - ({"lm_head.weight"} if tied else set())
    assert all(torch.equal(tensor, state[name]) for name, tensor in target.tensors.items())
    assert target.geometry.tied_embeddings == tied
    assert target.config_file == tmp_path / "config.json"


def test_tensors_come_in_the_dtype_asked_for(pair: tuple[Path, Path]) -> None:
    target = target_of(pair, torch.bfloat16)
    assert {t.dtype for t in target.tensors.values()} == {torch.bfloat16}
    draft = load_draft(pair[1], target.geometry, torch.bfloat16, "cpu")
    assert {t.dtype for t in draft.tensors.values()} == {torch.bfloat16}
    assert draft.d2t is not None and draft.d2t.dtype == torch.int64


def test_a_rope_override_reaches_the_geometry(pair: tuple[Path, Path]) -> None:
    target = load_target(pair[0], torch.float32, "cpu", {"rope_type": "yarn", "factor": 4.0})
    assert (target.geometry.rope.kind, target.geometry.max_positions) == ("yarn", 4 * 4096)


def test_the_generation_config_counts_for_eos_and_hash(pair: tuple[Path, Path]) -> None:
    before = target_of(pair)
    (pair[0] / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 257]}))
    after = target_of(pair)
    assert (before.geometry.eos_token_ids, after.geometry.eos_token_ids) == ((257,), (257, 3))
    assert before.sha256 != after.sha256


def test_missing_left_over_and_misshapen_target_tensors_are_all_named(pair: tuple[Path, Path]) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["model.norm.weight"], tensors["model.layers.2.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].clone()

    edit_tensors(pair[0], spoil)
    with pytest.raises(CheckpointError) as error:
        target_of(pair)
    for text in (
        str(pair[0]),
        "missing: model.norm.weight, model.layers.2.mlp.up_proj.weight",
        "wrong: lm_head.weight is [319, 64], not [320, 64]",
        "left over: model.layers.0.self_attn.q_proj.bias",
    ):
        assert text in error.value.message


def test_stored_rope_buffers_are_ignored(pair: tuple[Path, Path]) -> None:
    edit_tensors(pair[0], lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    edit_tensors(pair[1], lambda t: t.update({"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert not any("inv_freq" in name for name in [*target_of(pair).tensors, *draft_of(pair).tensors])


def test_a_tied_head_may_be_stored_twice_but_not_differ(tmp_path: Path) -> None:
    pair = write_random_pair(tmp_path, seed=1, tied=True)
    edit_tensors(pair[0], lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert "lm_head.weight" not in target_of(pair).tensors
    edit_tensors(pair[0], lambda t: t["lm_head.weight"][0].zero_())
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings = true\n.*differs from the embedding"):
        target_of(pair)


# ── drafts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_draft_holds_what_the_file_holds(pair: tuple[Path, Path]) -> None:
    draft, stored = draft_of(pair), load_file(pair[1] / "model.safetensors")
    assert draft.tensors.keys() == stored.keys() - {"d2t", "t2d"}
    assert all(torch.equal(tensor, stored[name]) for name, tensor in draft.tensors.items())
    assert draft.d2t is not None and torch.equal(draft.d2t, stored["d2t"])
    assert (draft.capture.boundaries, draft.warnings) == ((1, 2, 3), ())


def test_one_weight_under_two_names_is_refused(pair: tuple[Path, Path]) -> None:
    name = "self_attn.o_proj.weight"
    edit_tensors(pair[1], lambda t: t.update({f"layers.0.{name}": t[f"midlayer.{name}"].clone()}))
    with pytest.raises(CheckpointError, match=rf"tensors .*{name} and .*{name} are the same weight"):
        draft_of(pair)


def test_a_bin_draft_without_a_mask_loads(pair: tuple[Path, Path]) -> None:
    file = pair[1] / "model.safetensors"
    tensors = load_file(file)
    del tensors["t2d"]
    file.unlink()
    torch.save(tensors, pair[1] / "pytorch_model.bin")
    assert torch.equal(draft_of(pair).tensors["fc.weight"], tensors["fc.weight"])


@pytest.mark.parametrize(
    ("switch", "tensors"),
    [
        ("fc_norm", {f"fc_norm.{i}.weight": HIDDEN for i in range(3)}),
        ("norm_before_fc", {"input_norm.weight": 3 * HIDDEN}),
        ("norm_output", {}),
        ("norm_before_residual", {}),
    ],
)
def test_a_variant_loads_with_its_tensors_and_not_without(
    pair: tuple[Path, Path], switch: str, tensors: dict[str, int]
) -> None:
    edit_config(pair[1], **{switch: True})
    if tensors:
        with pytest.raises(CheckpointError, match=f"missing: {', '.join(tensors)}"):
            draft_of(pair)
    edit_tensors(pair[1], lambda t: t.update({name: torch.ones(size) for name, size in tensors.items()}))
    draft = draft_of(pair)
    assert getattr(draft.geometry, switch) and tensors.keys() <= draft.tensors.keys()
    edit_config(pair[1], **{switch: False})
    if tensors:
        assert getattr(draft_of(pair).geometry, switch)
        assert f"{switch} = False (the weights: True)" in draft_of(pair).warnings[0]


def test_old_names_of_the_stream_norms_are_understood(pair: tuple[Path, Path]) -> None:
    edit_config(pair[1], use_aux_norm=True)
    old = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")
    edit_tensors(pair[1], lambda t: t.update({name: torch.ones(HIDDEN) for name in old}))
    assert {f"fc_norm.{i}.weight" for i in range(3)} <= draft_of(pair).tensors.keys()


def test_two_captured_streams_need_an_fc_of_two_widths(pair: tuple[Path, Path]) -> None:
    edit_config(pair[1], **{IDS: [1, 3], "eagle_config": ...})
    with pytest.raises(CheckpointError, match=r"fc\.weight is \[64, 192\], not \[64, 128\] \(2 captured streams"):
        draft_of(pair)
    edit_tensors(pair[1], lambda t: t.update({"fc.weight": torch.ones(HIDDEN, 2 * HIDDEN)}))
    assert draft_of(pair).geometry.features == 2


def test_an_override_of_the_capture_wins(pair: tuple[Path, Path]) -> None:
    assert draft_of(pair, (0, 1, 4)).capture.boundaries == (0, 1, 4)


def test_embedding_and_head_of_the_drafts_own_are_kept(pair: tuple[Path, Path]) -> None:
    edit_tensors(pair[1], lambda t: t.update({"embed_tokens.weight": torch.ones(VOCAB, HIDDEN)}))
    draft = draft_of(pair)
    assert draft.geometry.own_embedding and draft.tensors["embed_tokens.weight"].shape == (VOCAB, HIDDEN)


def test_a_draft_over_the_whole_vocabulary_may_share_the_targets_head(pair: tuple[Path, Path]) -> None:
    edit_config(pair[1], draft_vocab_size=None)
    edit_tensors(pair[1], lambda t: [t.pop(name) for name in ("lm_head.weight", "d2t", "t2d")])
    draft = draft_of(pair)
    assert not draft.geometry.own_lm_head and draft.d2t is None and "lm_head.weight" not in draft.tensors


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("fc.weight", (64, 128), "is [64, 128], not [64, 192] (3 captured streams of the target's hidden size 64)"),
        ("midlayer.self_attn.q_proj.weight", (64, 64), "is [64, 64], not [64, 128] (the attention input is [emb"),
        ("lm_head.weight", (90, 64), "is [90, 64], not [96, 64] (draft_vocab_size 96 rows)"),
        ("d2t", (90,), "is [90], not [96] (one offset per row of lm_head.weight)"),
        ("t2d", (90,), "is [90], not [320] (one mark per target token)"),
    ],
)
def test_a_misshapen_draft_tensor_is_explained(
    pair: tuple[Path, Path], name: str, shape: tuple[int, ...], message: str
) -> None:
    edit_tensors(pair[1], lambda t: t.update({name: torch.zeros(shape, dtype=t[name].dtype)}))
    with pytest.raises(CheckpointError) as error:
        draft_of(pair)
    assert f"wrong: {name} {message}" in error.value.message


def test_the_draft_of_another_target_is_explained_before_its_tensors(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_random_pair(tmp_path / "other", seed=1, hidden=32, vocab=300)
    with pytest.raises(CheckpointError, match="another target: hidden_size = 32, the target has 64; vocab_size = 300"):
        load_draft(other[1], target_of(pair).geometry, torch.float32, "cpu")


def test_a_draft_that_names_another_hash_is_loaded_with_a_warning(pair: tuple[Path, Path]) -> None:
    target = target_of(pair)
    edit_config(pair[1], trained_for={"name": "tiny", "num_hidden_layers": 4, "sha256": "ab12"})
    assert load_draft(pair[1], target.geometry, torch.float32, "cpu").warnings == ()
    draft = load_draft(pair[1], target.geometry, torch.float32, "cpu", target_sha256=target.sha256)
    (warning,) = draft.warnings
    assert "trained_for.sha256 = ab12" in warning and target.sha256 in warning


def test_a_draft_of_fewer_positions_warns_unless_it_has_a_window(pair: tuple[Path, Path]) -> None:
    edit_config(pair[1], max_position_embeddings=1024)
    (warning,) = draft_of(pair).warnings
    assert "1024 positions, the target for 4096" in warning
    edit_config(pair[1], sliding_window=64, use_sliding_window=True, layer_types=["sliding_attention"])
    assert draft_of(pair).warnings == ()


def test_the_target_serves_as_no_draft(pair: tuple[Path, Path]) -> None:
    with pytest.raises(CheckpointError, match=r"hold 4 decoder layers \(0, 1, 2, 3\) and no fc\.weight: a whole"):
        load_draft(pair[0], target_of(pair).geometry, torch.float32, "cpu")


# ── the tiny pair ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tiny_tokenizer_gives_back_any_text(pair: tuple[Path, Path]) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    text = "def f(x):\n    return 'Zoë' * 3  # ≥ 0\t"
    tokenizer = Tokenizer.from_file(str(pair[0] / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode()) and max(ids) < 256
    assert tokenizer.decode(ids) == text
    assert (tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|end|>")) == (256, 257)
    assert AutoTokenizer.from_pretrained(pair[0]).eos_token_id == target_of(pair).geometry.eos_token_ids[0] == 257


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    a, b, c = (write_random_pair(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert (target_of(a).sha256, draft_of(a).sha256) == (target_of(b).sha256, draft_of(b).sha256)
    assert target_of(a).sha256 != target_of(c).sha256 and draft_of(a).sha256 != draft_of(c).sha256


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "midlayer.mlp.down_proj.weight", "lm_head.weight"])
def test_a_draft_with_a_weight_that_is_not_finite_is_refused_by_tensor(
    pair: tuple[Path, Path], name: str, value: float
) -> None:
    file = pair[1] / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=rf"draft: tensor {name} is not finite in float32"):
        draft_of(pair)


def test_a_draft_that_overflows_in_the_dtype_asked_for_is_refused(pair: tuple[Path, Path]) -> None:
    file = pair[1] / "model.safetensors"
    save_file({n: t * 1e6 if n == "fc.weight" else t for n, t in load_file(file).items()}, file)
    draft_of(pair)
    with pytest.raises(CheckpointError, match=r"tensor fc\.weight is not finite in float16"):
        load_draft(pair[1], target_of(pair).geometry, torch.float16, "cpu")
