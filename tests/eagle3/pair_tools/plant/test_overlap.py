"""Experts that neighbours touch: the reference engine's own router beside the choices that were planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.commands.pairs.plant import expert_table
from specgate.backends.eagle3.lib.pair import load_target
from specgate.backends.eagle3.lib.planted.experts import layer_order
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.routing import GROUPS, choices, expected_touched
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.pair_tools.plant import overlap
from specgate.backends.eagle3.pair_tools.plant.geometries import gpt_oss_tiny, tiny
from specgate.backends.eagle3.pair_tools.plant.overlap import distinct, routed, touched, touched_keys
from specgate.backends.eagle3.pair_tools.plant.write import write_target
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import PairRef
from specgate.errors import CheckpointError
from tests.eagle3.lib.planted.recipes import RECIPE_A, RECIPE_EXPERTS

TINY = gpt_oss_tiny().target


def planted(folder: Path, recipe: Recipe) -> PairRef:
    """A target of configs alone."""
    write_target(folder / "target", TINY, recipe, {}, written=False)
    return PairRef("planted", folder / "target", None, "planted")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_router_chooses_what_the_seed_planted_whatever_comes_before(tmp_path: Path, dtype: torch.dtype) -> None:
    target = load_target(planted(tmp_path, RECIPE_EXPERTS).target, dtype, "cpu")
    text = torch.randint(2048, (60,), generator=torch.Generator().manual_seed(2)).tolist()
    experts = routed(target, [text], "cpu")[0]
    assert TINY.experts is not None
    table = choices(RECIPE_EXPERTS, TINY.experts, tables(RECIPE_EXPERTS, TINY.vocab))
    for layer, chosen in enumerate(experts):
        expected = layer_order(RECIPE_EXPERTS, TINY.experts, layer)[table[layer % GROUPS, text]]
        assert torch.equal(chosen.sort(dim=1).values, expected.sort(dim=1).values), layer


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_realised_overlap_is_measured_at_the_router(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap, "CHAINS", 2)
    recipe = replace(RECIPE_EXPERTS, expert_overlap=share)
    counts = touched(planted(tmp_path, recipe), recipe, "float32", "cpu")
    assert [one.tokens for one in counts] == list(range(1, 9)) and counts[0].measured == 2
    assert TINY.experts is not None
    for one in counts:
        # Two chains of 256 tokens have one or two ends of a stretch each, of 8 tokens at most that see both sides.
        assert one.measured == pytest.approx(expected_touched(recipe, TINY.experts, one.tokens), abs=0.2)
        assert one.independent == pytest.approx(8 * (1 - (6 / 8) ** one.tokens))
    assert counts[1].overlap == pytest.approx(share, abs=0.06) and counts[0].overlap is None
    table = list(expert_table(counts))
    assert len(table) == 9 and len({len(line) for line in table}) == 1
    assert touched_keys(counts) == {"experts_touched": [round(one.measured, 4) for one in counts]}


def test_a_dense_pair_touches_no_experts_and_says_nothing_of_them(tmp_path: Path) -> None:
    write_target(tmp_path / "target", tiny().target, RECIPE_A, {}, written=False)
    assert touched(PairRef("dense", tmp_path / "target", None, "planted"), RECIPE_A, "float32", "cpu") == []
    assert list(expert_table([])) == [] and touched_keys([]) == {}


def test_distinct_experts_are_counted_in_every_run_of_neighbours() -> None:
    chosen = torch.tensor([[0, 1], [1, 2], [3, 0], [3, 0]])
    assert [distinct(chosen, 4, n) for n in (1, 2, 3, 4)] == [2.0, (3 + 4 + 2) / 3, 4.0, 4.0]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (replace(RECIPE_EXPERTS, name="B"), r'planted\.recipe = "B"\n.*needs recipe A'),
        (replace(RECIPE_EXPERTS, expert_overlap=None), r"planted\.expert_overlap is missing\n.*from 0 to 1"),
        (replace(RECIPE_EXPERTS, expert_overlap=1.5), r"planted\.expert_overlap = 1\.5\n.*from 0 to 1"),
    ],
)
def test_a_recipe_that_makes_no_experts_is_refused(tmp_path: Path, recipe: Recipe, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_target(planted(tmp_path, recipe).target, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (ExpertGeometry(8, 2, mxfp4=False), r"quantization_config is missing\n.*MXFP4"),
        (ExpertGeometry(256, 2, mxfp4=True), r"num_local_experts = 256\n.*hidden_size = 512"),
    ],
)
def test_experts_that_cannot_be_planted_are_refused(tmp_path: Path, experts: ExpertGeometry, message: str) -> None:
    write_target(tmp_path, replace(TINY, experts=experts), RECIPE_EXPERTS, {}, written=False)
    assert read_config(tmp_path).values["num_local_experts"] == experts.count
    with pytest.raises(CheckpointError, match=message):
        load_target(tmp_path, torch.float32, "cpu")


def test_a_scenarios_rope_does_not_change_what_a_seed_means(tmp_path: Path) -> None:
    folder = planted(tmp_path, RECIPE_EXPERTS).target
    longer: dict[str, float | str] = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 128}
    plain, changed = (load_target(folder, torch.bfloat16, "cpu", rope) for rope in (None, longer))
    assert plain.geometry != changed.geometry
    assert all(torch.equal(tensor, changed.tensors[name]) for name, tensor in plain.tensors.items())
