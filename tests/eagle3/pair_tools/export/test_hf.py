"""Hugging Face folders: read back by our own loader, and by transformers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint, load_draft, load_target
from specgate.backends.eagle3.pair_tools import shards
from specgate.backends.eagle3.pair_tools.export.command import Wish, export
from specgate.backends.eagle3.pair_tools.plant.geometries import tiny
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.backends.servers.engines import ADAPTERS
from specgate.checkpoints.geometry import RopeSpec
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import PairRef
from specgate.pairs.resolve import resolve_pair
from tests.eagle3.lib.planted.recipes import RECIPE_A
from tests.eagle3.pair_tools.export.textual import TEXT, change, textual_pair

LAYOUTS = pytest.mark.parametrize("layout", ["hf", "speculators"])
Layout = Literal["hf", "speculators"]


def load(target: Path, draft: Path) -> tuple[TargetCheckpoint, DraftCheckpoint]:
    checkpoint = load_target(target, torch.float32, "cpu")
    return checkpoint, load_draft(draft, checkpoint.geometry, torch.float32, "cpu", target_sha256=checkpoint.sha256)


def exported(ref: PairRef, out: Path, layout: Layout, **wish: Any) -> tuple[TargetCheckpoint, DraftCheckpoint]:
    export(ref, Wish(layout, out, **wish))
    return load(out / "target", out / "draft")


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@LAYOUTS
@pytest.mark.parametrize("sizes", [{}, {"tied": True, "window": 32}, {"boundaries": (0, 2, 4)}])
def test_our_own_loader_reads_the_same_pair_back(tmp_path: Path, layout: Layout, sizes: dict[str, Any]) -> None:
    ref = textual_pair(tmp_path, **sizes)
    assert ref.draft is not None
    target, draft = load(ref.target, ref.draft)
    target_again, draft_again = exported(ref, tmp_path / "out", layout)
    assert target_again.geometry == target.geometry and equal(target_again.tensors, target.tensors)
    assert draft_again.geometry == draft.geometry and equal(draft_again.tensors, draft.tensors)
    assert draft_again.capture.boundaries == draft.capture.boundaries
    assert draft.d2t is not None and draft_again.d2t is not None and torch.equal(draft.d2t, draft_again.d2t)


def test_transformers_gives_the_logits_and_ids_of_the_source(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    export(ref, Wish("hf", tmp_path / "out"))
    ids = torch.arange(64).unsqueeze(0)
    source, copy = (AutoModelForCausalLM.from_pretrained(f) for f in (ref.target, tmp_path / "out" / "target"))
    with torch.no_grad():
        assert torch.equal(source(ids).logits, copy(ids).logits)
    before, after = (AutoTokenizer.from_pretrained(f) for f in (ref.target, tmp_path / "out" / "target"))
    assert [before(text).input_ids for text in TEXT] == [after(text).input_ids for text in TEXT]
    assert (after.bos_token, after.eos_token, after.chat_template) == ("<|start|>", "<|end|>", "{{ messages }}")


def test_large_weights_go_into_shards_that_transformers_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 100_000)
    ref = textual_pair(tmp_path)
    export(ref, Wish("hf", tmp_path / "out"))
    files = sorted(file.name for file in (tmp_path / "out" / "target").glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    before, after = (AutoModelForCausalLM.from_pretrained(f) for f in (ref.target, tmp_path / "out" / "target"))
    assert equal(before.state_dict(), after.state_dict())


@pytest.mark.parametrize("engine", sorted(set(ADAPTERS) - {"lmdeploy", "openai"}))
def test_every_engine_that_reads_ids_resolves_the_boundaries_of_the_source(tmp_path: Path, engine: str) -> None:
    export(textual_pair(tmp_path, layers=6, boundaries=(1, 3, 6)), Wish("hf", tmp_path / "out"))
    written = read_config(tmp_path / "out" / "draft")
    assert ADAPTERS[engine].capture(written, 6).boundaries == (1, 3, 6)


@LAYOUTS
@pytest.mark.parametrize("switch", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_switches_and_their_tensors_survive(tmp_path: Path, layout: Layout, switch: str) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    change(ref.draft / "config.json", **{switch: True})
    norms = {"norm_before_fc": {"input_norm.weight": torch.rand(192)}}
    norms["fc_norm"] = {f"fc_norm.{i}.weight": torch.rand(64) for i in range(3)}
    weights = load_file(ref.draft / "model.safetensors") | norms.get(switch, {})
    save_file(weights, ref.draft / "model.safetensors")
    _, before = load(ref.target, ref.draft)
    _, after = exported(ref, tmp_path / "out", layout)
    assert getattr(after.geometry, switch) and after.geometry == before.geometry
    assert equal(after.tensors, before.tensors)


@LAYOUTS
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "beta_fast": 16.0, "truncate": False},
        {"rope_type": "linear", "factor": 2.0},
    ],
    ids=lambda scaling: str(scaling["rope_type"]),
)
def test_the_drafts_own_rope_survives(tmp_path: Path, layout: Layout, scaling: dict[str, object]) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    change(ref.draft / "config.json", rope_scaling=scaling, rope_theta=5000.0)
    _, before = load(ref.target, ref.draft)
    _, after = exported(ref, tmp_path / "out", layout)
    assert before.geometry.rope != RopeSpec("default", 10000.0, 16) and after.geometry == before.geometry


@LAYOUTS
def test_a_draft_that_uses_the_targets_head_gets_it_written_out(tmp_path: Path, layout: Layout) -> None:
    ref = textual_pair(tmp_path, draft_vocab=320)
    assert ref.draft is not None
    weights = load_file(ref.draft / "model.safetensors")
    save_file(
        {n: t for n, t in weights.items() if n not in ("lm_head.weight", "d2t", "t2d")}, ref.draft / "model.safetensors"
    )
    target, draft = exported(ref, tmp_path / "out", layout)
    assert torch.equal(draft.tensors["lm_head.weight"], target.tensors["lm_head.weight"])


def test_a_mask_that_the_source_lacks_is_made_from_the_offsets(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    weights = load_file(ref.draft / "model.safetensors")
    mask = weights.pop("t2d")
    save_file(weights, ref.draft / "model.safetensors")
    export(ref, Wish("hf", tmp_path / "out"))
    assert torch.equal(load_file(tmp_path / "out" / "draft" / "model.safetensors")["t2d"], mask)


def test_weights_are_rounded_to_the_dtype_asked_for_and_the_config_says_so(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    done = export(ref, Wish("hf", tmp_path / "out", torch.bfloat16))
    source = load_file(ref.target / "model.safetensors")
    copy = load_file(tmp_path / "out" / "target" / "model.safetensors")
    assert equal(copy, {name: tensor.to(torch.bfloat16) for name, tensor in source.items()})
    assert read_config(tmp_path / "out" / "target").text("torch_dtype") == "bfloat16"
    assert load_file(tmp_path / "out" / "draft" / "model.safetensors")["d2t"].dtype == torch.int64
    assert any("the target's weights are rounded from float32 to bfloat16" in line for line in done.differences)


def test_a_planted_pair_without_files_gets_files_and_stays_planted(tmp_path: Path) -> None:
    shape, folder = tiny(), tmp_path / "planted"
    write_target(folder / "target", shape.target, RECIPE_A, {}, written=False)
    sha256 = load_target(folder / "target", torch.float32, "cpu").sha256
    write_draft(folder / "draft", shape, RECIPE_A, {}, False, sha256)
    target, draft = load(folder / "target", folder / "draft")
    target_again, draft_again = exported(resolve_pair(str(folder), None, None), tmp_path / "out", "hf")
    assert equal(target_again.tensors, target.tensors) and equal(draft_again.tensors, draft.tensors)
    assert resolve_pair(str(tmp_path / "out"), None, None).acceptance == "planted"
    assert draft_again.warnings == draft.warnings == ()


def test_the_exported_target_is_the_one_that_the_draft_names(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    sha256 = load_target(ref.target, torch.float32, "cpu").sha256
    change(ref.draft / "config.json", trained_for={"sha256": sha256})
    target, draft = exported(ref, tmp_path / "out", "hf", dtype=torch.bfloat16)
    assert target.sha256 != sha256 and draft.warnings == ()


def test_a_draft_that_names_another_target_goes_on_doing_so(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    change(ref.draft / "config.json", trained_for={"sha256": "0" * 64})
    done = export(ref, Wish("hf", tmp_path / "out"))
    assert any("the draft names another target" in line for line in done.differences)
    assert read_config(tmp_path / "out" / "draft").part("trained_for").text("sha256") == "0" * 64


@LAYOUTS
def test_model_cards_and_licences_go_along(tmp_path: Path, layout: Layout) -> None:
    ref = textual_pair(tmp_path)
    assert ref.draft is not None
    (ref.draft / "README.md").write_text("# a card")
    (ref.target / "LICENSE.txt").write_text("terms")
    export(ref, Wish(layout, tmp_path / "out"))
    assert (tmp_path / "out" / "draft" / "README.md").read_text() == "# a card"
    assert (tmp_path / "out" / "target" / "LICENSE.txt").read_text() == "terms"


def test_speculators_config_has_the_keys_that_readers_demand(tmp_path: Path) -> None:
    """As vLLM 0.32's reader and speculators 0.9's config class want them."""
    ref = textual_pair(tmp_path, window=32)
    export(ref, Wish("speculators", tmp_path / "out"))
    config = json.loads((tmp_path / "out" / "draft" / "config.json").read_text())
    assert (config["speculators_model_type"], config["draft_vocab_size"]) == ("eagle3", 96)
    assert config["norm_before_residual"] is False, "vLLM takes a missing key for true, speculators for false"
    proposal = config["speculators_config"]
    assert proposal["default_proposal_method"] in [m["proposal_type"] for m in proposal["proposal_methods"]]
    assert proposal["verifier"] == {
        "name_or_path": str(tmp_path / "out" / "target"),
        "architectures": ["LlamaForCausalLM"],
    }
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"], layer["vocab_size"]) == ("llama", 1, 320)
    assert (layer["layer_types"], layer["sliding_window"]) == (["sliding_attention"], 32)
    names = load_file(tmp_path / "out" / "draft" / "model.safetensors").keys()
    assert "layers.0.hidden_norm.weight" in names and not any(name.startswith("midlayer") for name in names)


def test_an_export_can_be_exported_again(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path)
    first = exported(ref, tmp_path / "one", "speculators")
    again = replace(ref, target=tmp_path / "one" / "target", draft=tmp_path / "one" / "draft")
    second = exported(again, tmp_path / "two", "hf")
    assert equal(first[0].tensors, second[0].tensors) and equal(first[1].tensors, second[1].tensors)
    shutil.rmtree(tmp_path / "one")
    assert load(tmp_path / "two" / "target", tmp_path / "two" / "draft")[1].geometry == second[1].geometry
