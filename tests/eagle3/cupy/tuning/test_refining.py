"""The search over whole steps, with steps whose times are made up: the configuration that is fastest is found."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.loader import Spec
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned, WeightConfig
from specgate.backends.eagle3.cupy.tuning import gemm_weight, steps
from specgate.backends.eagle3.cupy.tuning.expert_weight import ExpertWeight
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight
from specgate.backends.eagle3.cupy.tuning.in_steps import refined
from specgate.backends.eagle3.cupy.tuning.steps import Steps, StepTimes
from specgate.backends.eagle3.cupy.tuning.weight import key_of
from specgate.backends.eagle3.nouns.gemms import Key, Point, StepsRequest, TunedGemm
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.contract import PairRef
from specgate.errors import UsageError
from tests.eagle3.cupy.bench.staged import no_launches
from tests.eagle3.cupy.tuned.files import DEVICE, experts, gemm, written


class CompilesAll:
    def compile(self, specs: Collection[Spec]) -> dict[Spec, None]:
        return dict.fromkeys(specs)


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StepsRequest:
    no_launches(monkeypatch)
    monkeypatch.setattr(gemm_weight, "multiprocessor_count", lambda: 7)
    for weight in (GemmWeight, ExpertWeight):
        monkeypatch.setattr(weight, "right", lambda weight, config: True)
        monkeypatch.setattr(weight, "same_bits", lambda weight, config, moved, rows: moved.split == config.split)
    write_configs(tmp_path / "tiny", EXPERT_GEOMETRIES["gpt-oss-tiny"](), overlap=0.5)
    pair = PairRef("tiny", tmp_path / "tiny" / "target", tmp_path / "tiny" / "draft")
    return StepsRequest(pair, (Point(256, 1), Point(128, 4)), 3)


def made(request: StepsRequest, file: Path) -> Steps:
    no_stream: Any = SimpleNamespace()
    return Steps(request, Tuned.on(DEVICE, file), no_stream, torch.device("meta"))


def chosen(
    request: StepsRequest, folder: Path, key: Key, slow: Callable[[Any], float], monkeypatch: pytest.MonkeyPatch
) -> TunedGemm:
    """What is found for the one weight that takes enough of a step, which takes the longer the more `slow` it says of
    the configurations of that weight's launchers.
    """
    shapes = {shape.key: shape for shape in made(request, written(folder / "none.json")).shapes}.values()
    us = {shape.key: {1: 50.0 if shape.key == key else 1e-9} for shape in shapes}
    entries = [experts(s, us=us[s.key]) if s.experts else gemm(s.n, s.k, tags=(s.tag,), us=us[s.key]) for s in shapes]
    made_up = made(request, written(folder / "known.json", *entries))

    def times(these: Steps, rounds: int, of: Collection[str] | None = None) -> StepTimes:
        return {
            step: 1000 + sum(slow(kernel) for kernel in stage.cycle.kernels().values() if key_of(kernel) == key)
            for step, stage in these.stages.items()
            if of is None or step in of
        }

    monkeypatch.setattr(steps.Steps, "times", times)
    compiler: Any = CompilesAll()
    (tuned,) = refined(made_up, compiler, 600)
    return tuned


def test_of_experts_the_fastest_split_is_chosen_and_at_each_number_of_rows_how_work_is_moved(
    request_: StepsRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(kernel: ExpertGateUp) -> float:
        """Eight warps are fastest; at one row one tile, else two; one block of an SM, with room for two."""
        config = kernel.config
        off = (config.warps != 8) * 40 + abs(config.tiles - min(2, kernel.rows)) * 4
        return float(off + abs(config.blocks_per_sm - 1) * 2 + abs(config.room - 2))

    gate_up = (128, 512, 8, 2, "TARGET_EXPERT_GATE_UP")
    only = chosen(request_, tmp_path, gate_up, slow, monkeypatch)
    assert only.key == gate_up and only.config["warps"] == 8 and set(only.at_rows) == {1, 4, 16}
    config = WeightConfig.of(only)
    for rows in (1, 4):
        best = config.at(rows)
        assert (best.tiles, best.blocks_per_sm, best.room) == (min(2, rows), 1, 2)
    assert only.in_steps is not None and only.in_steps.gain > 0 and only.in_steps.tried > 20


def test_a_plain_weight_is_chosen_by_the_same_search(
    request_: StepsRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(kernel: MatmulRows) -> float:
        config = kernel.config
        return float((config.split != (8, 1)) * 40 + (config.stages != 2) * 4 + (not config.delay_dependents))

    only = chosen(request_, tmp_path, (768, 512), slow, monkeypatch)
    assert (only.config["warps"], only.config["span"]) == (8, 1)
    assert {(only.at_rows[rows]["stages"], only.at_rows[rows]["held"]) for rows in (1, 4)} == {(2, 1)}


def test_experts_that_were_not_tuned_alone_are_named_with_the_command(request_: StepsRequest, tmp_path: Path) -> None:
    shapes = {shape.key: shape for shape in made(request_, written(tmp_path / "none.json")).shapes}.values()
    file = written(tmp_path / "t.json", *(gemm(s.n, s.k) for s in shapes if not s.experts))
    compiler: Any = CompilesAll()
    with pytest.raises(UsageError, match=r"TARGET_EXPERT_\w+ \d+ x \d+ of 8 experts is not tuned for .*\n  first run "):
        list(refined(made(request_, file), compiler, 600))
