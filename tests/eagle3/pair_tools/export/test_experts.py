"""A planted gpt-oss pair in files: as transformers' own gpt-oss reads and computes it, and as our loader does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.pair_tools.export.command import Wish, export
from specgate.backends.eagle3.pair_tools.plant.geometries import gpt_oss_tiny
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.backends.eagle3.reference.open import open_engine
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import CheckpointError
from specgate.pairs.resolve import resolve_pair
from tests.eagle3.lib.planted.recipes import RECIPE_EXPERTS

NEW = 16


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    """A pair of configs alone, as the large ones are."""
    folder, shape = tmp_path_factory.mktemp("planted"), gpt_oss_tiny()
    write_target(folder / "target", shape.target, RECIPE_EXPERTS, {}, written=False)
    sha256 = load_target(folder / "target", torch.bfloat16, "cpu").sha256
    write_draft(folder / "draft", shape, RECIPE_EXPERTS, {}, False, sha256)
    return resolve_pair(str(folder), None, None)


@pytest.fixture(scope="module")
def written(source: PairRef, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    export(source, Wish("hf", out))
    return out


def test_the_files_hold_what_the_seed_makes(source: PairRef, written: Path) -> None:
    made, read = (load_target(folder, torch.bfloat16, "cpu") for folder in (source.target, written / "target"))
    assert made.geometry == read.geometry == gpt_oss_tiny().target
    assert made.tensors.keys() == read.tensors.keys()
    assert all(torch.equal(tensor, read.tensors[name]) for name, tensor in made.tensors.items())
    with safe_open(written / "target" / "model.safetensors", framework="pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    assert kinds == {"BF16", "U8"}


def test_the_head_passes_our_strict_loader_without_a_warning(source: PairRef, written: Path) -> None:
    target = load_target(written / "target", torch.bfloat16, "cpu")
    draft = load_draft(written / "draft", target.geometry, torch.bfloat16, "cpu", target_sha256=target.sha256)
    assert draft.warnings == () and draft.capture.boundaries == RECIPE_EXPERTS.boundaries
    assert draft.geometry == gpt_oss_tiny().draft
    assert resolve_pair(str(written), None, None).acceptance == source.acceptance == "planted"


def test_the_config_is_in_the_published_spelling(written: Path) -> None:
    config = read_config(written / "target").values
    assert config["architectures"] == ["GptOssForCausalLM"] and config["model_type"] == "gpt_oss"
    assert config["quantization_config"] == {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
    }  # fmt: skip


def test_transformers_emits_the_tokens_of_the_reference_engine(written: Path) -> None:
    """In float32, across the window of the sliding layers; transformers turns MXFP4 into floats where it has no GPU."""
    from transformers import AutoModelForCausalLM, Mxfp4Config

    model: Any = AutoModelForCausalLM.from_pretrained(
        written / "target",
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
    ).float()
    prompt = torch.randint(2048, (80,), generator=torch.Generator().manual_seed(3)).tolist()
    pair = resolve_pair(str(written), None, None)
    engine = open_engine(OpenRequest(pair, "float32", 1, 128, 3, False, {"device": "cpu"}))
    engine.prefill([prompt], draft=True)
    plain, drafted = (engine.decode(r, Budget(new_tokens=NEW, ignore_eos=True), ()).tokens for r in (BASELINE, Role(3)))
    assert plain == drafted and len(plain[0]) == NEW
    with torch.inference_mode():
        # Given our tokens, each of theirs is the same: so without being given any they emit the same.
        logits = model(torch.tensor([[*prompt, *plain[0][:-1]]])).logits[0, len(prompt) - 1 :]
    assert tuple(logits.argmax(dim=-1).tolist()) == plain[0]


def test_experts_stay_packed_where_floats_are_cast(source: PairRef, tmp_path: Path) -> None:
    export(source, Wish("hf", tmp_path / "out", torch.float32))
    with safe_open(tmp_path / "out" / "target" / "model.safetensors", framework="pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    assert kinds == {"F32", "U8"}


def test_gguf_is_refused_by_name(source: PairRef, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_local_experts = 8: the GGUF export knows dense targets only"):
        export(source, Wish("gguf", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
