"""`specgate engine tune` as a user without a GPU runs it."""

from __future__ import annotations

import json

import pytest

from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.nouns.gemms import GemmShape, read_shapes
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from tests.pairs.tiny import write_random_pair
from tests.support.command import Cli


def test_the_products_of_a_pair_are_listed_and_stored_without_a_gpu(cli: Cli) -> None:
    cli.target, cli.draft = write_random_pair(cli.folder, seed=8, heads=2, kv_heads=1, head_dim=64, intermediate=96)
    done = cli.run("engine", "tune", "shapes", "--batch", "2", "--spec", "2", "--spec", "3", "--out", "shapes.json")
    assert done.returncode == 0 and not done.stderr
    *lines, last = done.stdout.splitlines()
    shapes = read_shapes(cli.folder / "shapes.json")
    assert len(lines) == len(shapes) and last.startswith(f"{len(shapes)} products of ")
    config = json.loads((cli.target / "config.json").read_text())
    heads = [shape for shape in shapes if shape.tag == "TARGET_LM_HEAD"]
    assert {shape.weight for shape in heads} == {(config["vocab_size"], config["hidden_size"])}
    assert {shape.m for shape in heads} == {2, 6, 8}  # baseline, spec-2 and spec-3 over two slots


def test_products_of_experts_are_listed_with_how_many_there_are(cli: Cli) -> None:
    write_configs(cli.folder / "tiny", EXPERT_GEOMETRIES["gpt-oss-tiny"](), overlap=0.5)
    done = cli.run(
        "engine",
        "tune",
        "shapes",
        "--pair",
        str(cli.folder / "tiny"),
        "--batch",
        "1",
        "--out",
        "s.json",
        pair=False,
        code=0,
    )
    assert "TARGET_EXPERT_GATE_UP       128 x 512    M 4, 2 of 8 experts" in done.stdout.splitlines()
    products = (("TARGET_EXPERT_GATE_UP", 128, 512), ("TARGET_EXPERT_DOWN", 512, 64))
    shapes = {shape for shape in read_shapes(cli.folder / "s.json") if shape.experts}
    assert shapes == {GemmShape(*product, rows, 8, 2) for product in products for rows in (1, 4)}


def test_a_shipped_pair_is_known_by_its_name_and_names_its_file(cli: Cli) -> None:
    cli.run("engine", "tune", "shapes", "--pair", "planted-llama-3.1-8b-al3.0", pair=False, code=0)
    assert {s.tag for s in read_shapes(cli.folder / "gemm_shapes_planted-llama-3.1-8b-al3.0.json")} > {"EAGLE3_FC"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("shapes",), 2, "no shapes"),
        (("shapes", "--pair", "absent"), 2, "pair 'absent' is not known"),
        (("shapes", "--pair", "planted-llama-3.1-8b-al3.0", "--batch", "0"), 2, "0 is not in the range 1<=x<="),
        (("shapes", "--backend", "fake", "--pair", "demo"), 2, "back end 'fake' has no products to tune"),
        (("gemm", "--shapes", "absent.json", "--backend", "reference"), 2, "back end 'reference' has no products"),
        (("gemm", "--shapes", "absent.json"), 4, "no product can be tuned on this machine"),
        (("gemm", "--budget-seconds", "0"), 2, "0.0 is not in the range 0<x<="),
        (("gemms",), 2, "No such command 'gemms'"),
    ],
)
def test_what_cannot_be_meant_ends_with_its_code_and_a_sentence(
    cli: Cli, arguments: tuple[str, ...], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = cli.run("engine", "tune", *arguments, pair=False)
    assert done.returncode == code and message in done.stderr
    assert "Traceback" not in done.stderr
