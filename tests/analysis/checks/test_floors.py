"""Steps that are faster than memory allows. The bytes are counted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.checks.floors import CPU_CACHE_BYTES, GPU_CACHE_BYTES, cache_bytes, with_fewest_experts
from specgate.analysis.reduce import measure
from specgate.backends.eagle3.lib.pair import TargetCheckpoint, load_target
from specgate.checkpoints.parameters import least_weight_bytes, matrix_parameters
from specgate.contract import CellResult, NearTies, Traffic
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.traffic import AttentionTraffic, DraftTraffic, ExpertTraffic, PassTraffic
from tests.support.factories import blocks_of, plan_of, run_of

GB = 10**9
BANDWIDTH = Bandwidth("2026-11-22T00:00:00+00:00", "scripted clock", "GPU-1", 8 * GB, 30, 4000e9, 0.0, cache_bytes=GB)
TARGET = PassTraffic(16 * GB, 0, ())


def cells(step_ms: float, facts: Mapping[str, object], bandwidth: Bandwidth | None = BANDWIDTH) -> list[CellResult]:
    plan = plan_of()
    blocks = blocks_of(plan, base_ns=round(step_ms * 1e6), cycle_ns=round(step_ms * 1e6), jitter=0)
    engines = {key: replace(f, **facts) for key, f in run_of(plan, blocks).engines.items()}  # type: ignore[arg-type]
    return list(measure(plan, blocks, (), NearTies(), check_facts=CheckFacts(engines, bandwidth))[0])


def codes(step_ms: float, facts: Mapping[str, object], bandwidth: Bandwidth | None = BANDWIDTH) -> list[str | None]:
    return [c.reason_code for c in cells(step_ms, facts, bandwidth)]


def test_a_step_faster_than_its_bytes_is_invalid_with_time_and_floor() -> None:
    """16 GB less 1 GB of caches at 4,000 GB/s and a tenth more: 3.409 ms."""
    stated = {"traffic": Traffic(TARGET)}
    assert codes(3.42, stated) == [None, None]
    baseline, spec = cells(3.39, stated)
    assert (baseline.reason_code, spec.reason_code) == ("faster_than_memory", "faster_than_memory")
    for figure in ("3.39 ms", "15 GB", "3.409 ms", "4000 GB/s", "10%"):
        assert figure in (baseline.reason or ""), figure


def test_the_draft_of_a_cycle_has_to_be_read_too() -> None:
    draft = PassTraffic(GB, 0, ())
    assert codes(3.5, {"traffic": Traffic(TARGET, DraftTraffic(draft, draft))}) == [None, "faster_than_memory"]


def test_a_bandwidth_that_varies_is_believed_less() -> None:
    assert codes(3.0, {"traffic": Traffic(TARGET)}, replace(BANDWIDTH, spread=0.1)) == [None, None]


def test_what_the_caches_could_hold_costs_nothing() -> None:
    assert codes(1e-3, {"traffic": Traffic(PassTraffic(GB, 0, ()))}) == [None, None]
    assert cache_bytes(replace(BANDWIDTH, cache_bytes=None)) == GPU_CACHE_BYTES
    assert cache_bytes(replace(BANDWIDTH, cache_bytes=None, gpu_uuid=None)) == CPU_CACHE_BYTES


def test_an_engine_that_states_nothing_or_too_little_is_held_to_the_harnesss_own_count() -> None:
    for stated in (None, Traffic(PassTraffic(1, 0, ()))):
        assert codes(0.6, {"traffic": stated, "least_weight_bytes": 4 * GB}) == ["faster_than_memory"] * 2
        assert codes(0.7, {"traffic": stated, "least_weight_bytes": 4 * GB}) == [None, None]


def test_another_device_or_no_bandwidth_has_no_floor() -> None:
    assert codes(1e-3, {"traffic": Traffic(TARGET), "device": "another"}) == [None, None]
    assert codes(1e-3, {"traffic": Traffic(TARGET)}, None) == [None, None]


def test_all_tokens_may_be_routed_to_the_same_experts() -> None:
    """The expected number of experts is no lower bound: a router may like two of them."""
    routed = PassTraffic(100, 0, (AttentionTraffic(1, 1),), ExpertTraffic(layers=3, count=8, active=2, expert_bytes=10))
    assert with_fewest_experts(routed) == PassTraffic(160, 0, (AttentionTraffic(1, 1),))


@pytest.fixture(scope="module")
def target(pair: tuple[Path, Path]) -> TargetCheckpoint:
    import torch

    return load_target(pair[0], torch.float32, "cpu")


def test_the_count_of_weights_is_the_checkpoints_matrices(pair: tuple[Path, Path], target: TargetCheckpoint) -> None:
    g = target.geometry
    from specgate.backends.eagle3.lib.layout import target_tensors

    matrices = {name: want.shape for name, want in target_tensors(g).items() if len(want.shape) == 2}
    read = {name: shape for name, shape in matrices.items() if "embed" not in name or g.tied_embeddings}
    assert matrix_parameters(g) == sum(rows * columns for rows, columns in read.values())
    assert least_weight_bytes(pair[0]) == matrix_parameters(g) // 2


def test_a_config_that_cannot_be_read_gives_no_count(tmp_path: Path) -> None:
    assert least_weight_bytes(tmp_path) is None
    (tmp_path / "config.json").write_text('{"architectures": ["Unknown"]}')
    assert least_weight_bytes(tmp_path) is None
