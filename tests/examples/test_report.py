"""The report of docs/examples: what Prometheus reads out of it."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specgate.contract import Run
from specgate.contract.protocols import Report
from tests.support.example_packages import module_of
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of

REPORT = module_of("report").REPORT


def run() -> Run:
    plan = plan_of()
    return judged(run_of(plan, blocks_of(plan)), POLICY)


def read(result: Run) -> dict[str, list[Sample]]:
    return {family.name: family.samples for family in text_string_to_metric_families(REPORT.render(result, POLICY))}


def test_it_keeps_the_protocol() -> None:
    assert isinstance(REPORT, Report) and REPORT.filename == "specgate.prom"


def test_every_figure_of_a_cell_is_a_sample() -> None:
    output = run()
    samples = read(output)
    for result in output.cells:
        for value in result.values.values():
            of_metric = samples.get(f"specgate_{value.metric.partition('[')[0]}", [])
            of_cell = [s.value for s in of_metric if s.labels["role"] == result.cell.role.name]
            assert value.value is None or value.value in of_cell, value


def test_a_figure_by_position_has_the_position_as_a_label() -> None:
    positions = [s.labels["position"] for s in read(run())["specgate_acceptance_at_pos"]]
    assert positions and len(set(positions)) == len(positions)


def test_the_speed_up_and_the_verdicts_are_there() -> None:
    output = run()
    samples = read(output)
    assert [s.value for s in samples["specgate_decode_speedup_ratio"]] == [output.comparisons[0].speedup.value]
    assert sum(s.value for s in samples["specgate_verdicts"]) == len(output.verdicts)


def test_names_cannot_break_out_of_their_quotes() -> None:
    odd = 'a"b\\c\nd'
    assert read(replace(run(), id=odd))["specgate_exit_code"][0].labels["run"] == odd


def test_a_run_without_cells_is_still_a_file_that_can_be_read() -> None:
    assert "specgate_exit_code" in read(replace(run(), cells=(), comparisons=(), verdicts=()))
