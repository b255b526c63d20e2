"""The tables read back as the run they came from, with fixed columns and without a formula in them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import Run, State
from specgate.contract.metrics import metric
from specgate.reports.texts.csv import METRICS, SUMMARY, CsvReport, inert
from tests.support.factories import POLICY, blocks_of, corrupt, judged, plan_of, run_of, scenario, with_acceptance
from tests.support.loaded import load_scenario, loaded_run

COLUMNS = (
    "schema,run_id,kind,scenario,backend,role,context_len,batch,k,pair,slot,block,metric,stat,value,unit,direction,n,"
    "ci_low,ci_high,baseline,ratio,margin,verdict,reason_code,acceptance_source,rate"
)


def sample(name: str = "demo-64") -> Run:
    plan = plan_of(scenario(name, spec=(2, 3), batch=(2,)))
    return judged(run_of(plan, blocks_of(plan)), POLICY)


def metrics(run: Run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(METRICS.render(run, POLICY))))


def test_the_columns_of_metrics_csv_are_fixed() -> None:
    assert METRICS.render(sample(), POLICY).splitlines()[0] == COLUMNS


def test_every_value_of_the_run_is_a_row_with_its_unit() -> None:
    run = sample()
    rows = {(r["role"], r["metric"]): r for r in metrics(run) if r["stat"] not in ("block", "pair")}
    for result in run.cells:
        for name, value in result.values.items():
            row = rows[result.cell.role.name, name]
            assert float(row["value"]) == value.value
            assert (row["unit"], row["n"]) == (metric(name).unit, str(value.n))
    for comparison in run.comparisons:
        row = rows[comparison.cell.role.name, "decode_speedup_ratio"]
        assert (float(row["ci_low"]), float(row["ci_high"])) == (comparison.speedup.ci_low, comparison.speedup.ci_high)


def test_a_spec_row_stands_beside_its_baseline() -> None:
    run = sample()
    base = run.cells[0].values["decode_tok_s"].value
    (row,) = [r for r in metrics(run) if (r["role"], r["metric"]) == ("spec-3", "decode_tok_s")]
    assert float(row["baseline"]) == base
    assert float(row["ratio"]) == pytest.approx(float(row["value"]) / float(row["baseline"]))


@pytest.mark.parametrize("role", ["baseline", "spec-3"])
def test_times_beside_refused_requests_have_no_ratio(role: str) -> None:
    """Requests that a server took, because it refused others, are always fast."""

    def ratios(run: Run) -> dict[str, str]:
        return {r["metric"]: r["ratio"] for r in metrics(run) if r["role"] == "spec-3" and r["baseline"]}

    run = loaded_run(load_scenario())
    count = replace(run.cells[0].values["refused_requests"], value=3.0)
    cells = [
        replace(c, values={**c.values, "refused_requests": count}) if c.cell.role.name == role else c for c in run.cells
    ]
    stated, beside = ratios(run), ratios(replace(run, cells=tuple(cells)))
    assert stated["mean_e2e_ms"] and not beside["mean_e2e_ms"]
    assert beside["output_tok_s"] == stated["output_tok_s"]


def test_a_judged_metric_carries_its_bound_and_verdict() -> None:
    (row,) = [r for r in metrics(sample()) if (r["role"], r["metric"]) == ("spec-3", "acceptance_length")]
    assert (row["margin"], row["verdict"], row["reason_code"]) == ("2.2", "PASS", "at_least_min")


def test_every_block_and_every_pair_is_a_row() -> None:
    run = sample()
    blocks = [r for r in metrics(run) if r["stat"] == "block" and r["role"] == "spec-3"]
    assert [float(r["value"]) for r in blocks] == [ms for *_, ms in run.cells[2].series_ms]
    assert len([r for r in metrics(run) if r["stat"] == "pair" and r["role"] == "spec-3"]) == 8


def test_levels_of_an_open_loop_are_told_apart() -> None:
    run = loaded_run(load_scenario((8,), rates=(20.0, 100.0), requests=6))
    rows = csv.DictReader(io.StringIO(SUMMARY.render(run, POLICY)))
    assert [(r["role"], r["rate"]) for r in rows] == [
        (role, rate) for rate in ("20.0", "100.0") for role in ("baseline", "spec-3")
    ]
    whole = [r for r in metrics(run) if r["metric"] == "break_even_level"]
    assert [(r["batch"], r["rate"]) for r in whole] == [("", "")]


def test_a_pair_has_the_number_of_its_blocks_where_earlier_ones_do_not_count() -> None:
    run = sample()
    fewer = [
        replace(c, **{name: getattr(c, name)[2:] for name in ("log_ratios", "orders", "prompt_sets", "turns")})
        for c in run.comparisons
    ]
    rows = [r for r in metrics(replace(run, comparisons=tuple(fewer))) if r["stat"] == "pair" and r["role"] == "spec-3"]
    assert [r["pair"] for r in rows] == [str(turn) for turn in range(2, 8)]


def test_withheld_figures_are_empty_with_their_reason_and_their_samples_are_gone() -> None:
    plan = plan_of()
    run = judged(run_of(plan, blocks_of(plan, change=corrupt)), POLICY)
    spec = [r for r in metrics(run) if r["role"] == "spec-3"]
    (speed,) = [r for r in spec if r["metric"] == "decode_tok_s"]
    assert (speed["value"], speed["reason_code"]) == ("", "token_mismatch")
    assert not [r for r in spec if r["stat"] in ("block", "pair")]


def test_summary_csv_has_one_row_per_cell_and_reads_as_numbers() -> None:
    run = sample()
    table = pd.read_csv(io.StringIO(SUMMARY.render(run, POLICY)))
    assert list(table["role"]) == ["baseline", "spec-2", "spec-3"]
    assert table.loc[2, "acceptance_length"] == run.cells[2].values["acceptance_length"].value
    assert table.loc[2, "decode_speedup_ratio"] == run.comparisons[1].speedup.value
    assert list(table["verdict"]) == ["PASS", "PASS", "PASS"]
    assert list(table["decode_speedup_ratio"].isna()) == [True, False, False]


def test_counts_stay_integers_beside_gaps() -> None:
    rows = list(csv.DictReader(io.StringIO(SUMMARY.render(sample(), POLICY))))
    assert [r["pairs"] for r in rows] == ["", "8", "8"]


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", '=1,"x"\ny'])
def test_a_name_that_looks_like_a_formula_is_defused_and_stays_one_field(name: str) -> None:
    for report in (METRICS, SUMMARY):
        rows = list(csv.DictReader(io.StringIO(report.render(sample(name), POLICY))))
        assert {r["scenario"] for r in rows} == {f"'{name}"}


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.none()))
def test_numbers_are_never_touched(value: float | None) -> None:
    assert inert(value) is value


@pytest.mark.parametrize("report", [METRICS, SUMMARY])
def test_the_same_run_gives_the_same_text_with_unix_newlines(report: CsvReport) -> None:
    text = report.render(sample(), POLICY)
    assert text == report.render(sample(), POLICY)
    assert "\r" not in text and text.endswith("\n")


@pytest.mark.parametrize("report", [METRICS, SUMMARY])
def test_every_row_of_a_spec_cell_says_where_acceptance_comes_from(report: CsvReport) -> None:
    rows = list(csv.DictReader(io.StringIO(report.render(with_acceptance(sample(), "forced"), POLICY))))
    result = {(row["role"], row["acceptance_source"]) for row in rows}
    assert result == {("baseline", ""), ("spec-2", "forced"), ("spec-3", "forced")}


@pytest.mark.parametrize("state", State)
def test_a_cell_whose_only_verdict_has_any_state_is_a_row_with_that_verdict(state: State) -> None:
    run = sample()
    first = next(v for v in run.verdicts if v.cell)
    one = replace(run, verdicts=(replace(first, state=state),))
    rows = list(csv.DictReader(io.StringIO(SUMMARY.render(one, POLICY))))
    assert state.value in {row["verdict"] for row in rows}
