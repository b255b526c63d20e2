"""A run in the JSON form of the EAGLE-3 scripts: read back, and judged by a gate as such scripts have it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.archive.other_tools.reading import results_in
from specgate.contract import Run, Value
from specgate.errors import UsageError
from specgate.reports.texts.benchmark_json import REPORT
from tests.support.factories import POLICY, blocks_of, corrupt, judged, plan_of, run_of, scenario
from tests.support.loaded import load_scenario, loaded_run

FILES = ("baseline_batch2_context64.json", "speculative_batch2_context64_3tokens.json")


def micro_run(**changes: Any) -> Run:
    plan = plan_of(scenario(batch=(2,)))
    return replace(judged(run_of(plan, blocks_of(plan, **changes)), POLICY), kind="micro")


def results(run: Run) -> dict[str, dict[str, Any]]:
    return {name: json.loads(text) for name, text in REPORT.render_each(run).items()}


def test_each_cell_is_a_file_that_an_older_gate_reads() -> None:
    run = micro_run()
    baseline, spec = results(run).values()
    assert tuple(results(run)) == FILES and "eagle_speculation" not in baseline
    ratio = spec["throughput_tokens_per_sec"]["mean"] / baseline["throughput_tokens_per_sec"]["mean"]
    assert ratio == pytest.approx(run.comparisons[0].speedup.value, rel=0.05)
    assert spec["scenario"]["micro_run"] is True and spec["scenario"]["batch_size"] == 2
    length = run.cells[1].values["acceptance_length"].value
    assert spec["eagle_speculation"]["mean_acceptance_length"] == pytest.approx(length)
    speeds = spec["throughput_tokens_per_sec"]["values"]
    assert len(speeds) == spec["total_runs"] == run.cells[1].blocks
    assert spec["latency_ms_per_token"]["values"] == pytest.approx([1e3 / speed for speed in speeds])
    assert spec["memory_gb"] == {"mean": None, "max": None, "utilization_pct": None}


def test_what_is_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    run = micro_run()
    for (name, data), result in zip(results(run).items(), run.cells, strict=True):
        (read,) = results_in(tmp_path / name, data)
        assert (read.k, read.micro, read.scenario) == (result.cell.role.k, True, None)
        assert read.tok_s == pytest.approx(data["throughput_tokens_per_sec"]["values"])
        if read.k:
            assert read.length == pytest.approx(result.values["acceptance_length"].value)


def test_a_speed_that_may_not_be_quoted_is_none_and_passes_no_gate(tmp_path: Path) -> None:
    data = results(micro_run(change=corrupt))[FILES[1]]
    assert data["throughput_tokens_per_sec"] == {"mean": None, "min": None, "max": None, "values": []}
    with pytest.raises(UsageError, match="mean: None: a number"):
        results_in(tmp_path / "x.json", data)


def test_an_acceptance_length_is_the_one_that_the_run_judges_where_a_method_need_not_draft(tmp_path: Path) -> None:
    run = micro_run()
    baseline, spec = run.cells
    assert spec.acceptance is not None
    record = replace(spec.acceptance, skipped=spec.acceptance.steps)
    data = results(replace(run, cells=(baseline, replace(spec, acceptance=record))))[FILES[1]]
    assert data["eagle_speculation"]["mean_acceptance_length"] == pytest.approx(record.acceptance_length)
    assert results_in(tmp_path / "x.json", data)[0].length == pytest.approx(record.acceptance_length)


def test_memory_is_what_the_engine_held_on_the_gpu_and_its_share(tmp_path: Path) -> None:
    run = micro_run()
    peak = {"peak_gpu_memory_bytes": Value("peak_gpu_memory_bytes", 48e9)}
    cells = tuple(replace(c, values={**c.values, **peak}) for c in run.cells)
    run = replace(run, cells=cells, environment={"gpus": [{"name": "GPU", "memory_bytes": 96_000_000_000}]})
    data = results(run)[FILES[0]]
    assert data["memory_gb"] == {"mean": 48.0, "max": 48.0, "utilization_pct": 50.0}
    assert data["system"]["gpu_name"] == "GPU" and data["system"]["gpu_memory_total_gb"] == 96.0


def test_cells_of_one_shape_have_names_of_their_own() -> None:
    run = micro_run()
    twice = replace(run, cells=(run.cells[0], run.cells[0]))
    assert len(json.loads(REPORT.render(twice, POLICY))) == 1  # one scenario: the same name, and the same result
    other = replace(run.cells[0].cell.point, scenario="other")
    cells = (run.cells[0], replace(run.cells[0], cell=replace(run.cells[0].cell, point=other)))
    run = replace(run, cells=cells, scenarios={**run.scenarios, "other": next(iter(run.scenarios.values()))})
    open_loop = loaded_run(load_scenario((8,), rates=(20.0, 100.0), requests=6))
    assert len(results(open_loop)) == len(open_loop.cells)
    assert all(name.startswith(FILES[0][:-5] + "_") for name in results(run)) and len(results(run)) == 2
