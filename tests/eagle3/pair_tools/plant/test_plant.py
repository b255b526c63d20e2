from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from specgate.backends.eagle3.lib import memory
from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.pair_tools import shards
from specgate.backends.eagle3.pair_tools.plant import calibrate, thresholds
from specgate.backends.eagle3.pair_tools.plant.command import Wish, plant
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, GEOMETRIES, geometry_of, tiny
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.backends.eagle3.reference.cache import KVCache
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.target import target_forward, target_logits
from specgate.cli import cli
from specgate.contract import PairRef
from specgate.errors import CheckpointError, EnvironmentRefused, SpecgateError, UsageError
from specgate.machine import inventory
from specgate.pairs.resolve import resolve_pair
from tests.checkpoints.folders import edit_config
from tests.eagle3.lib.planted.recipes import RECIPE_A
from tests.eagle3.pair_tools.plant.conftest import CONTEXT, CPU

WISH = Wish("tiny", 3.0, 3, context=256)


def refused(wish: Wish, out: Path) -> str:
    with pytest.raises(UsageError) as caught:
        plant(wish, out, CPU, lambda line: None)
    assert not (out / "target").exists()
    return str(caught.value)


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_written_pair_is_what_transformers_loads_and_computes(pair_a: PairRef) -> None:
    model = AutoModelForCausalLM.from_pretrained(pair_a.target, dtype=torch.float32)
    target = load_target(pair_a.target, torch.float32, "cpu")
    tokens = torch.randint(2048, (1, 96), generator=torch.Generator().manual_seed(1))
    g = target.geometry
    engine = ReferenceEngine(target, None, max_batch=1, max_positions=128, device="cpu")
    cache = KVCache.allocate(g.layers, 1, g.kv_heads, 128, g.head_dim, torch.float32, "cpu")
    with torch.inference_mode():
        stream, _ = target_forward(engine.tw, g, engine.table, cache, tokens, torch.arange(96)[None], ())
        expected = model(tokens).logits
        torch.testing.assert_close(target_logits(engine.tw, g, stream), expected, atol=2e-3, rtol=0)


def test_written_and_unwritten_pairs_hold_the_same_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tiny()
    monkeypatch.setattr(shards, "SHARD_BYTES", 5_000_000)
    for kind, written in (("written", True), ("seed", False)):
        write_target(tmp_path / kind / "target", shape.target, RECIPE_A, {}, written)
        write_draft(tmp_path / kind / "draft", shape, RECIPE_A, {}, written, "0" * 64)
    first, second = (load_target(tmp_path / kind / "target", torch.bfloat16, "cpu") for kind in ("written", "seed"))
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    drafts = [load_draft(tmp_path / k / "draft", first.geometry, torch.bfloat16, "cpu") for k in ("written", "seed")]
    assert all(torch.equal(tensor, drafts[1].tensors[name]) for name, tensor in drafts[0].tensors.items())
    assert drafts[0].d2t is not None and drafts[1].d2t is not None and torch.equal(drafts[0].d2t, drafts[1].d2t)
    assert drafts[0].capture.boundaries == shape.boundaries

    assert len(list((tmp_path / "written" / "target").glob("model-*-of-*.safetensors"))) > 2
    assert {file.name for file in (tmp_path / "seed").rglob("*") if file.is_file()} == {"config.json"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "written" / "target", dtype=torch.bfloat16)
    assert torch.equal(model.lm_head.weight, first.tensors["lm_head.weight"])


def test_the_configs_say_what_was_asked_predicted_and_measured(pair_b: PairRef) -> None:
    assert pair_b.draft is not None
    target, draft = (json.loads((f / "config.json").read_text())["planted"] for f in (pair_b.target, pair_b.draft))
    assert target["calibration"]["context"] == CONTEXT and target["weights"] == draft["weights"] == "seed"
    assert draft["asked"] == {"spec": 3, "acceptance_length": 3.4}
    assert draft["predicted_acceptance_length"]["spec-3"] == pytest.approx(3.4, abs=0.02)
    assert draft["measured"]["acceptance_length"] == pytest.approx(3.4, rel=0.15)
    assert draft["measured"]["faithful_share"] >= 0.98


def test_a_planted_pair_is_recognised_by_its_folder_and_by_its_parts(pair_b: PairRef) -> None:
    whole = resolve_pair(str(pair_b.target.parent), None, None)
    parts = resolve_pair(None, pair_b.target, pair_b.draft)
    assert (whole.acceptance, whole.name) == ("planted", "planted-b")
    assert parts.acceptance == "planted" and parts.target == whole.target and parts.draft == whole.draft


def test_the_draft_knows_its_target_by_hash(pair_a: PairRef, pair_b: PairRef) -> None:
    assert pair_a.draft is not None
    own, other = (load_target(p.target, torch.bfloat16, "cpu") for p in (pair_a, pair_b))
    assert load_draft(pair_a.draft, own.geometry, torch.bfloat16, "cpu", target_sha256=own.sha256).warnings == ()
    (warning,) = load_draft(pair_a.draft, own.geometry, torch.bfloat16, "cpu", target_sha256=other.sha256).warnings
    assert "names another target" in warning


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def seed_folder(tmp_path: Path) -> Path:
    write_target(tmp_path / "target", tiny().target, RECIPE_A, {}, written=False)
    return tmp_path / "target"


@pytest.mark.parametrize("changes", [{"rope_theta": 20000.0}, {"num_hidden_layers": 5}])
def test_a_config_edited_after_calibration_is_refused_with_both_hashes(
    seed_folder: Path, changes: dict[str, float]
) -> None:
    edit_config(seed_folder, **changes)
    with pytest.raises(
        CheckpointError, match=r"planted\.sha256 = '[0-9a-f]{64}', but the rest of the file has [0-9a-f]{64}\n.*edited"
    ):
        load_target(seed_folder, torch.bfloat16, "cpu")


def test_a_draft_may_be_given_the_name_that_an_engine_knows(tmp_path: Path) -> None:
    write_target(tmp_path / "target", tiny().target, RECIPE_A, {}, written=False)
    write_draft(tmp_path / "draft", tiny(), RECIPE_A, {}, False, "0" * 64)
    edit_config(tmp_path / "draft", architectures=["LlamaForCausalLM"])
    target = load_target(tmp_path / "target", torch.bfloat16, "cpu").geometry
    assert load_draft(tmp_path / "draft", target, torch.bfloat16, "cpu").geometry == tiny().draft
    edit_config(tmp_path / "draft", rope_theta=20000.0)
    with pytest.raises(CheckpointError, match=r"planted\.sha256"):
        load_draft(tmp_path / "draft", target, torch.bfloat16, "cpu")


def test_an_edited_signal_is_refused_too(seed_folder: Path) -> None:
    section = json.loads((seed_folder / "config.json").read_text())["planted"]
    edit_config(seed_folder, planted={**section, "signal": 2.0})
    with pytest.raises(CheckpointError, match=r"planted\.sha256"):
        load_target(seed_folder, torch.bfloat16, "cpu")


def test_weights_that_do_not_fit_into_memory_are_refused_with_numbers(
    seed_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 20_000_000)
    message = r"target: 0\.0\d GB of weights in bfloat16, but cpu has 0\.02 GB free\n.*smaller geometry"
    with pytest.raises(EnvironmentRefused, match=message):
        load_target(seed_folder, torch.bfloat16, "cpu")
    with pytest.raises(EnvironmentRefused, match=r"geometry qwen3-32b: 13.*GB of weights in float32"):
        plant(replace(WISH, geometry="qwen3-32b"), tmp_path / "out", CPU, lambda line: None)


def test_an_unknown_geometry_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    assert "geometry 'huge' is not known\n  known: tiny, medium" in refused(replace(WISH, geometry="huge"), tmp_path)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (replace(WISH, length=4.0), "--accept-length 4\n  with spec-3 and a draft error of 0 it lies between 1 and 4"),
        (replace(WISH, length=1.0), "--accept-length 1\n"),
        (
            replace(WISH, length=3.2, draft_error=0.2),
            "with spec-3 and a draft error of 0.2 it lies between 1 and 2.952",
        ),
        (replace(WISH, spec=6), "--spec 6\n  planted pairs serve chains of 1 to 5 drafts"),
        (replace(WISH, draft_error=1.0), "--draft-error 1\n"),
        (replace(WISH, expert_overlap=0.5), "--expert-overlap 0.5\n  geometry tiny has no experts"),
        (replace(WISH, geometry="gpt-oss-tiny", expert_overlap=1.5), "--expert-overlap 1.5\n  a share from 0 to 1"),
        (replace(WISH, geometry="gpt-oss-tiny", recipe="B"), "--recipe B\n  geometry gpt-oss-tiny has experts"),
        (
            replace(WISH, geometry="qwen3-8b", recipe="B"),
            "--recipe B\n  geometry qwen3-8b has norms of queries and keys",
        ),
        (replace(WISH, context=66), "--context 66\n  tiny can be calibrated at 67 to 7672 tokens"),
        (replace(WISH, context=8000), "--context 8000\n"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(wish: Wish, message: str, tmp_path: Path) -> None:
    assert message in refused(wish, tmp_path / "out")


def test_the_overlap_of_the_command_line_reaches_the_recipe(tmp_path: Path) -> None:
    words = ["--geometry", "tiny", "--accept-length", "3", "--expert-overlap", "0.5", "--device", "cpu", str(tmp_path)]
    done = CliRunner().invoke(cli, ["engine", "plant", *words])
    assert isinstance(done.exception, UsageError) and "--expert-overlap 0.5" in str(done.exception)


def test_an_acceptance_length_out_of_reach_is_refused_with_the_reachable_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "STRONGEST", 0.5)
    monkeypatch.setattr(calibrate, "WALK", 64)
    message = refused(replace(WISH, length=3.5), tmp_path / "out")
    assert "--accept-length 3.5 at spec-3 is out of reach of geometry tiny with recipe A" in message
    assert "\n  reachable: 1.00 to " in message


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "exists and is not an empty folder" in refused(WISH, tmp_path)


ALL = {**GEOMETRIES, **EXPERT_GEOMETRIES}


@pytest.mark.parametrize("name", ALL)
def test_every_geometry_says_where_its_numbers_come_from(name: str) -> None:
    documentation = ALL[name].__doc__ or ""
    assert "https://" in documentation or "this project's own" in documentation
    assert geometry_of(name).draft.hidden == geometry_of(name).target.hidden


# ── who decodes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_text_is_decoded_by_the_engine_that_was_named(pair_a: PairRef) -> None:
    folder = pair_a.target.parent
    own_text, check = json.loads(folder.with_suffix(".json").read_text())
    assert Path(own_text[0]).parent != folder and own_text[1:] == ["float32", 4, 2, {}]
    assert Path(check[0]) == folder / "target" and check[2:4] == [2, 3]


@pytest.mark.parametrize(
    ("name", "code", "message"), [("cupy", 4, "back end cupy: "), ("nope", 2, "no such backend: 'nope'")]
)
def test_an_engine_that_cannot_decode_here_is_refused_before_anything_is_made(
    name: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "has_cuda_gpu", lambda: False)
    command = [
        "engine",
        "plant",
        "--geometry",
        "tiny",
        "--accept-length",
        "3",
        "--backend",
        name,
        str(tmp_path / "out"),
    ]
    with pytest.raises(SpecgateError, match=message) as caught:
        CliRunner().invoke(cli, command, catch_exceptions=False)
    assert caught.value.exit_code == code and not (tmp_path / "out").exists()
