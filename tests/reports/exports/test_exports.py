"""Trends as other tools read them: Apache Otava's CSV and YAML, and the JSON of github-action-benchmark."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import datetime

import yaml

from specgate.archive.history import series
from specgate.contract import Run
from specgate.contract.comparisons import Trends
from specgate.reports.exports.github_action_benchmark import EXPORT as GITHUB
from specgate.reports.exports.otava import EXPORT as OTAVA
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario

PLAN = plan_of(scenario(kind="full", spec=(2, 3)))


def run(hour: int, *, wrong: bool = False) -> Run:
    blocks = blocks_of(PLAN, cycle_ns=14_000_000 + hour, change=corrupt if wrong else lambda b: b)
    return run_of(PLAN, blocks, id=f"run-{hour}", kind="full", started=f"2026-11-21T{hour:02d}:00:00+00:00")


def trends(*runs: Run) -> Trends:
    return Trends(runs, tuple(series(runs)), {}, ())


def test_otava_gets_a_number_in_every_field_and_columns_that_its_configuration_names() -> None:
    files = OTAVA.files(trends(run(1), run(2), run(3)))
    tests = yaml.safe_load(files["otava.yaml"])["tests"]
    assert len(tests) == len(PLAN.cells)
    for test in tests.values():
        rows = list(csv.DictReader(io.StringIO(files[test["file"]])))
        assert len(rows) == 3 and test["type"] == "csv"
        times = [datetime.fromisoformat(row[test["time_column"]]) for row in rows]
        assert times == sorted(times) and all(t.utcoffset() is not None for t in times)
        assert set(rows[0]) == {"time", *test["attributes"], *test["metrics"]}
        assert all(float(row[metric]) > 0 for row in rows for metric in test["metrics"])


def test_otava_knows_which_way_is_better() -> None:
    tests = yaml.safe_load(OTAVA.files(trends(run(1)))["otava.yaml"])["tests"]
    directions = {name: m["direction"] for test in tests.values() for name, m in test["metrics"].items()}
    assert directions == {
        "speedup_vs_ar_ratio": 1,
        "decode_speedup_ratio": 1,
        "acceptance_length": 1,
        "output_tok_s": 1,
        "decode_tok_s": 1,
        "p50_ttft_ms": -1,
    }


def test_a_metric_that_one_run_withheld_is_left_out_and_the_others_stay() -> None:
    files = OTAVA.files(trends(run(1), run(2, wrong=True)))
    (test,) = [t for name, t in yaml.safe_load(files["otava.yaml"])["tests"].items() if "spec-3" in name]
    assert set(test["metrics"]) == {"acceptance_length", "p50_ttft_ms"}
    assert len(files[test["file"]].splitlines()) == 3


def test_file_names_hold_nothing_that_a_shell_or_a_file_system_minds() -> None:
    plan = plan_of(scenario("../a b;$(x)|\n"))
    files = OTAVA.files(trends(run_of(plan, blocks_of(plan))))
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") for name in files)
    assert not any(name.startswith(".") for name in files)


def test_github_gets_the_last_run_in_one_file_per_direction() -> None:
    files = {name: json.loads(text) for name, text in GITHUB.files(trends(run(1), run(2))).items()}
    assert set(files) == {"bigger-is-better.json", "smaller-is-better.json"}
    for entries in files.values():
        assert entries and all(set(e) <= {"name", "unit", "value", "range", "extra"} for e in entries)
        assert all("run-2" in e["extra"] for e in entries)
        assert len({e["name"] for e in entries}) == len(entries)
    assert {e["unit"] for e in files["smaller-is-better.json"]} == {"ms"}


def test_names_of_two_grounds_differ() -> None:
    one, other = run(1), run(2)
    other = replace(other, engines={k: replace(f, device="another") for k, f in other.engines.items()})
    entries = json.loads(GITHUB.files(trends(one, other))["bigger-is-better.json"])
    assert (
        len({e["name"] for e in entries})
        == len(entries)
        == 2 * len(json.loads(GITHUB.files(trends(one))["bigger-is-better.json"]))
    )
