"""Bench of several GPUs with a mixture of experts, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.tensor_parallel.__main__ import main
from bench.tensor_parallel.pairs import pair_of
from specgate.backends.eagle3.nouns.gemms import read_shapes
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.errors import UsageError


@pytest.mark.parametrize("name", EXPERT_GEOMETRIES)
def test_a_planted_mixture_is_there_while_it_is_read_and_gone_afterwards(name: str) -> None:
    with pair_of(f"planted-{name}", overlap=0.5) as pair:
        geometry = target_geometry(read_config(pair.target))
        assert geometry.experts == EXPERT_GEOMETRIES[name]().target.experts and pair.draft is not None
        assert read_config(pair.draft).count("hidden_size") == geometry.hidden
    assert not pair.target.exists()


def test_other_pairs_are_those_that_specgate_knows() -> None:
    with pair_of("planted-llama-3.1-8b-al3.0", overlap=0.5) as pair:
        assert pair.target.is_dir()
    with pytest.raises(UsageError, match="pair 'planted-gpt-oss' is not known"), pair_of("planted-gpt-oss", 0.5):
        pass


def test_the_products_of_a_part_are_listed_with_those_of_its_experts(tmp_path: Path) -> None:
    out = tmp_path / "shapes.json"
    arguments = [
        "shapes",
        "--pair",
        "planted-gpt-oss-20b",
        "--tp",
        "2",
        "--batch",
        "1",
        "--spec",
        "3",
        "--out",
        str(out),
    ]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    stored = json.loads(out.read_text())["shapes"]
    shapes = {(one["tag"], one["n"], one["k"]) for one in stored}
    assert {("TARGET_QKV", 2560, 2880), ("TARGET_O", 2880, 2048), ("TARGET_LM_HEAD", 100544, 2880)} <= shapes
    assert not [tag for tag, _, _ in shapes if "FFN" in tag and tag.startswith("TARGET")]
    of_experts = {(one["tag"], one["n"], one["k"], one["per_token"]) for one in stored if one.get("experts") == 32}
    assert of_experts == {("TARGET_EXPERT_GATE_UP", 2880, 2880, 4), ("TARGET_EXPERT_DOWN", 2880, 1440, 4)}
    assert {shape.m for shape in read_shapes(out) if shape.experts} == {1, 4}
