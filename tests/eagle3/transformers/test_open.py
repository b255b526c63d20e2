"""Refusals before anything is measured, and facts that a loaded engine states."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specgate import plugins
from specgate.backends.eagle3.lib.pair import load_target
from specgate.backends.eagle3.transformers.open import open_engine
from specgate.contract import PairRef
from specgate.errors import BackendError, CheckpointError, SpecgateError, UsageError
from specgate.pairs.resolve import resolve_pair
from tests.eagle3.transformers.pairs import request, write_pair
from tests.pairs.tiny import write_random_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    return PairRef("random", *write_random_pair(tmp_path_factory.mktemp("pair"), seed=1))


@pytest.fixture
def copy(pair: PairRef, tmp_path: Path) -> PairRef:
    for part in (pair.target, *([pair.draft] if pair.draft else [])):
        (tmp_path / part.name).mkdir()
        for file in part.iterdir():
            (tmp_path / part.name / file.name).write_bytes(file.read_bytes())
    return PairRef("copy", tmp_path / "target", tmp_path / "draft")


def test_it_is_a_back_end_that_is_never_the_default() -> None:
    availability = plugins.backend("transformers").available()
    assert availability.usable and availability.rank < 0 and transformers.__version__ in availability.reason
    assert plugins.problems_of_backend("transformers") == []


@pytest.mark.parametrize(
    ("missing", "version", "why"),
    [
        (("transformers",), "", r"not installed: transformers .*'\.\[transformers\]'"),
        (("torch", "transformers"), "", "not installed: torch, transformers"),
        ((), "4.57.6", "transformers 4.57.6 is installed, 5.0 or later"),
    ],
)
def test_what_is_missing_is_said(
    missing: tuple[str, ...], version: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "specgate.backends.eagle3.transformers.backend"
    monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name in missing else object())
    monkeypatch.setattr(f"{module}.version", lambda name: version)
    availability = plugins.backend("transformers").available()
    assert not availability.usable
    assert re.search(why, availability.reason)


def test_facts_say_what_was_loaded_and_how(pair: PairRef) -> None:
    facts = open_engine(request(pair, attention="eager", build="abc")).facts()
    assert facts.target_sha256 == load_target(pair.target, torch.float32, "cpu").sha256
    assert facts.identity is not None and facts.traffic is not None and facts.traffic.draft is not None
    assert (facts.identity.version, facts.identity.build) == (transformers.__version__, "abc")
    assert facts.identity.settings["attention"] == "eager" and facts.identity.settings["moe"] == "none"
    assert facts.identity.untold == ()


def test_the_traffic_of_a_target_that_only_transformers_knows_is_not_stated(tmp_path: Path) -> None:
    facts = open_engine(request(write_pair(tmp_path, "qwen3"))).facts()
    assert facts.traffic is None and facts.target_sha256 is not None


def test_of_a_target_with_experts_their_kernel_is_told(tmp_path: Path) -> None:
    facts = open_engine(request(write_pair(tmp_path, "gpt_oss"))).facts()
    assert facts.identity is not None
    assert facts.identity.settings["attention"] == "eager"
    assert facts.identity.settings["moe"] not in ("none", "None")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"attention": "flash_attention_2"}, "sdpa or eager"),
        ({"prefill_rows": "0"}, "1 or more"),
        ({"device": "tpu"}, "device = 'tpu'"),
        ({"atention": "sdpa"}, "atention: not known"),
        ({"drafter": "none", "capture": "1,2,3"}, "looks at no stream"),
        ({"build": " "}, "option build"),
    ],
)
def test_odd_options_are_refused(pair: PairRef, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_engine(request(pair, **options))
    assert why in f"{refused.value.message} {refused.value.hint}"


def test_a_pair_made_from_a_seed_is_to_be_exported_first() -> None:
    with pytest.raises(UsageError, match="made from a seed") as refused:
        open_engine(request(resolve_pair("planted-llama-3.1-8b-al3.0", None, None)))
    assert "engine export" in str(refused.value.hint)


def test_more_positions_than_the_target_has_are_refused(pair: PairRef) -> None:
    with pytest.raises(UsageError, match="has 4096 positions, but the plan needs 5000"):
        open_engine(replace(request(pair), max_positions=5000))


def test_a_spec_role_without_a_draft_is_refused(pair: PairRef) -> None:
    with pytest.raises(BackendError, match="has no draft"):
        open_engine(request(replace(pair, draft=None)))


def test_a_weight_that_is_missing_is_not_made_up(copy: PairRef) -> None:
    file = copy.target / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing tensors: .*layers\.2\.mlp\.up_proj"):
        open_engine(request(copy))


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 72}, {"model_type": "no_such_model"}, {"num_attention_heads": "four"}], ids=str
)
def test_a_target_that_cannot_be_loaded_is_named_without_a_traceback(copy: PairRef, changes: dict[str, object]) -> None:
    file = copy.target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(SpecgateError) as refused:
        open_engine(replace(request(copy, drafter="none")))
    assert str(copy.target) in refused.value.message


def test_weights_cut_short_are_named(copy: PairRef) -> None:
    file = copy.target / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="cannot load it"):
        open_engine(request(copy, drafter="none"))


def test_the_draft_of_another_target_is_refused(pair: PairRef, tmp_path: Path) -> None:
    other = write_random_pair(tmp_path, seed=1, hidden=96)
    with pytest.raises(CheckpointError, match="draft of another target"):
        open_engine(request(replace(pair, draft=other[1])))


def test_a_model_whose_state_cannot_be_rewound_is_refused(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="mamba"):
        open_engine(request(PairRef("mamba", tmp_path, None), drafter="none"))
