"""Heads as trainers write them, in files: the same draft as in the authors' layout, or the same words everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from specgate.backends.eagle3.lib.pair import DraftCheckpoint, load_draft, open_target
from specgate.contract import PairRef
from specgate.errors import CheckpointError
from specgate.run.smoke.pair_check import check_pair
from tests.checkpoints.folders import Tensors, edit_config, edit_tensors
from tests.pairs.tiny import write_random_pair

Edit = Callable[[Tensors], object]


@pytest.fixture
def pair(tmp_path: Path) -> PairRef:
    return PairRef("tiny", *write_random_pair(tmp_path, seed=7, vocab=320, draft_vocab=96, hidden=64))


def folder_of(pair: PairRef) -> Path:
    assert pair.draft is not None
    return pair.draft


def loaded(pair: PairRef) -> DraftCheckpoint:
    return load_draft(folder_of(pair), open_target(pair.target).geometry, torch.float32, "cpu")


def renamed(change: Callable[[str], str]) -> Edit:
    return lambda tensors: [tensors.update({change(name): tensors.pop(name)}) for name in list(tensors)]


def retyped(**types: torch.dtype) -> Edit:
    return lambda tensors: tensors.update({name: tensors[name].to(kind) for name, kind in types.items()})


def outside(prefix: str, name: str) -> str:
    return name if name.split(".")[0] in ("lm_head", "d2t", "t2d") else prefix + name


SAME: dict[str, tuple[Edit, dict[str, object]]] = {
    "speculators": (renamed(lambda name: name.replace("midlayer", "layers.0")), {"num_hidden_layers": 32}),
    "NeMo": (renamed(lambda name: outside("model.", name.replace("midlayer", "layers.0"))), {}),
    "Model Optimizer": (renamed(lambda name: "eagle_module." + name.replace("midlayer", "layers.0")), {}),
    "Megatron": (renamed(lambda name: name.replace("midlayer", "midlayer.0")), {"num_hidden_layers": ...}),
    "vLLM": (renamed(lambda name: "draft_id_to_target_id" if name == "d2t" else name), {"draft_vocab_size": None}),
    "int32": (retyped(d2t=torch.int32, t2d=torch.uint8), {}),
    "int16": (retyped(d2t=torch.int16, t2d=torch.int64), {"num_hidden_layers": 0}),
    "float": (retyped(d2t=torch.float64, t2d=torch.float32), {"head_dim": ...}),
    "bfloat16": (retyped(t2d=torch.bfloat16), {"hidden_size": 7}),
}


@pytest.mark.parametrize("trainer", SAME)
def test_the_same_numbers_are_the_same_draft_in_every_layout(pair: PairRef, trainer: str) -> None:
    before = loaded(pair)
    edit, config = SAME[trainer]
    edit_tensors(folder_of(pair), edit)
    edit_config(folder_of(pair), **config)
    after = loaded(pair)
    assert (before.geometry, before.capture, before.tensors.keys()) == (
        after.geometry,
        after.capture,
        after.tensors.keys(),
    )
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)
    assert before.d2t is not None and after.d2t is not None and torch.equal(before.d2t, after.d2t)
    result = check_pair(pair, 100, 3)
    assert not [finding for finding in result.findings if finding.state == "found"]
    assert result.warnings == after.warnings


BROKEN: dict[str, tuple[Edit, dict[str, object], str]] = {
    "no fc": (lambda t: t.pop("fc.weight"), {}, "misfits"),
    "no map": (lambda t: [t.pop(name) for name in ("d2t", "t2d")], {}, "misfits"),
    "short norm": (lambda t: t.update({"norm.weight": torch.ones(63)}), {}, "misfits"),
    "layers": (bool, {"eagle_aux_hidden_state_layer_ids": [1, 2], "eagle_config": None}, "misfits"),
    "left over": (lambda t: t.update({"gain.weight": torch.ones(1)}), {}, "misfits"),
    "absolute": (lambda t: t.update({"d2t": t["d2t"] + torch.arange(96)}), {}, "vocabulary"),
    "mask as map": (retyped(d2t=torch.bool), {}, "vocabulary"),
    "other set": (lambda t: t["t2d"].logical_not_(), {}, "vocabulary"),
    "unfilled": (lambda t: t["d2t"].zero_(), {}, "vocabulary"),
    "target": (bool, {"trained_for": {"num_hidden_layers": 9}}, "wrong_target"),
    "vocabulary": (lambda t: t.pop("t2d"), {"vocab_size": 999}, "wrong_target"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_an_engine_and_the_check_of_files_name_the_same_one_cause(pair: PairRef, fault: str) -> None:
    edit, config, cause = BROKEN[fault]
    edit_tensors(folder_of(pair), edit)
    edit_config(folder_of(pair), **config)
    with pytest.raises(CheckpointError) as refusal:
        loaded(pair)
    wrong = [finding for finding in check_pair(pair, 100, 3).findings if finding.state == "found"]
    assert [finding.cause for finding in wrong] == [cause]
    if cause != "wrong_target":  # of which the check names each size
        assert (wrong[0].seen, wrong[0].todo) == (refusal.value.message, refusal.value.hint)


@pytest.mark.parametrize(
    ("edit", "config"),
    [
        (lambda t: t.update({n.replace("midlayer", "layers.1"): t[n].clone() for n in [*t] if "mid" in n}), {}),
        (lambda t: t.update({"midlayer.self_attn.q_norm.weight": torch.ones(16)}), {}),
        (retyped(**{"fc.weight": torch.float8_e4m3fn}), {}),
        (bool, {"hidden_act": "gelu"}),
        (bool, {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}),
    ],
)
def test_a_head_that_only_other_engines_run_is_no_fault_of_its_files(
    pair: PairRef, edit: Edit, config: dict[str, object]
) -> None:
    edit_tensors(folder_of(pair), edit)
    edit_config(folder_of(pair), **config)
    with pytest.raises(CheckpointError) as refusal:
        loaded(pair)
    findings = {finding.cause: finding for finding in check_pair(pair, 100, 3).findings}
    assert findings["misfits"].state == "not checked" and refusal.value.message in findings["misfits"].seen
    assert not [finding for finding in findings.values() if finding.state == "found"]


def shards(folder: Path) -> tuple[Path, Path]:
    """Divide the tensors of `folder` into two shards, and return them."""
    tensors = load_file(folder / "model.safetensors")
    files = tuple(folder / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    names = sorted(tensors)
    for file, part in zip(files, (names[::2], names[1::2]), strict=True):
        save_file({name: tensors[name] for name in part}, file)
    index = {name: files[i % 2].name for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "model.safetensors").unlink()
    return files[0], files[1]


@pytest.mark.parametrize("lost", ["file", "entry"])
def test_a_shard_that_is_lost_is_named_by_engine_and_check(pair: PairRef, lost: str) -> None:
    _, second = shards(folder_of(pair))
    assert loaded(pair).warnings == check_pair(pair, 100, 3).warnings == ()
    if lost == "file":
        second.unlink()
    else:
        index = folder_of(pair) / "model.safetensors.index.json"
        entries = json.loads(index.read_text())["weight_map"]
        index.write_text(json.dumps({"weight_map": {n: f for n, f in entries.items() if f != second.name}}))
    with pytest.raises(CheckpointError, match=second.name) as refusal:
        loaded(pair)
    wrong = [finding for finding in check_pair(pair, 100, 3).findings if finding.state == "found"]
    assert [finding.seen for finding in wrong] == [refusal.value.message]


def test_a_pickle_is_not_opened_by_the_check_which_says_how_to_convert_it(pair: PairRef) -> None:
    file = folder_of(pair) / "model.safetensors"
    torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    file.unlink()
    assert loaded(pair).d2t is not None
    findings = {finding.cause: finding for finding in check_pair(pair, 100, 3).findings}
    assert findings["misfits"].state == "not checked"
    assert (
        "only torch reads this format" in findings["misfits"].seen
        and "save_file(torch.load(" in findings["misfits"].seen
    )


def test_left_over_zeros_of_the_target_are_no_weights_of_the_draft(pair: PairRef) -> None:
    edit_tensors(folder_of(pair), lambda t: t.update({"verifier_lm_head.weight": torch.zeros(4, 4)}))
    result = check_pair(pair, 100, 3)
    assert not [finding for finding in result.findings if finding.state == "found"]
    assert len(result.warnings) == 1 and "verifier_lm_head.weight" in result.warnings[0]


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}},
        {"rope_theta": ..., "rope_parameters": ..., "rope_scaling": ...},
    ],
)
def test_of_two_bases_the_one_of_transformers_counts(pair: PairRef, keys: dict[str, object]) -> None:
    edit_config(folder_of(pair), **keys)
    theirs = LlamaConfig(**json.loads((folder_of(pair) / "config.json").read_text())).rope_parameters
    draft = loaded(pair)
    assert (draft.geometry.rope.base, draft.geometry.rope.factor) == (theirs["rope_theta"], theirs.get("factor", 1.0))
    assert len(draft.warnings) == (len({float(v) for v in bases(keys)}) > 1)


def bases(keys: dict[str, object]) -> list[float]:
    """Every base that the keys state."""
    sections = [keys, *(value for value in keys.values() if isinstance(value, dict))]
    return [section["rope_theta"] for section in sections if isinstance(section.get("rope_theta"), float)]
