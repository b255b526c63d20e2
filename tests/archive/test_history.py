"""Trends over result folders: in order of time, each group apart, with what could not be read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.archive.history import trends_of
from specgate.archive.stored_runs import load_run
from specgate.contract import Role
from specgate.errors import UsageError
from tests.support.factories import corrupt
from tests.support.stored_runs import rewrite, store


def started(hour: int) -> dict[str, object]:
    return {"started": f"2026-11-{20 + hour // 24}T{hour % 24:02d}:00:00+00:00"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store(tmp_path / "late", changes=started(30), cycle_ns=15_000_000)
    store(tmp_path / "nested" / "early", changes=started(1))
    return tmp_path


def test_runs_are_in_order_of_time_wherever_they_lie(folder: Path) -> None:
    trends = trends_of(folder)
    assert [run.id for run in trends.runs] == ["early", "late"]
    (speed,) = [s for s in trends.series if s.metric == "decode_tok_s" and s.cell.role == Role(3)]
    values = [run.cells[1].values["decode_tok_s"].value for run in trends.runs]
    assert [r.value for r in speed.readings] == values and [r.run for r in speed.readings] == [0, 1]


def test_the_source_tree_is_what_a_trend_shows_and_weights_part_it(folder: Path) -> None:
    late = folder / "late"
    run = load_run(late).run
    rewrite(late, replace(run, fingerprint={**run.fingerprint, "source_tree_sha256": "9" * 64}))
    assert len(trends_of(folder).groups) == 1
    rewrite(late, replace(run, engines={k: replace(f, draft_sha256="f" * 64) for k, f in run.engines.items()}))
    trends = trends_of(folder)
    assert len(trends.groups) == 2
    assert all(len(s.readings) == 1 for s in trends.series)


def test_options_of_an_engine_part_a_trend(tmp_path: Path) -> None:
    store(tmp_path / "one", changes=started(1))
    store(tmp_path / "two", changes=started(2), options={"tp": "2"})
    assert [facts.get("options") for facts in trends_of(tmp_path).groups.values()] == [None, "tp=2"]


def test_a_copy_of_a_run_is_counted_once(folder: Path) -> None:
    shutil.copytree(folder / "late", folder / "copy")
    assert len(trends_of(folder).runs) == 2


def test_figures_that_were_withheld_leave_a_gap(tmp_path: Path) -> None:
    store(tmp_path / "wrong", change=corrupt)
    metrics = {(s.cell.role.name, s.metric) for s in trends_of(tmp_path).series}
    assert ("baseline", "decode_tok_s") in metrics and ("spec-3", "decode_tok_s") not in metrics
    assert ("spec-3", "decode_speedup_ratio") not in metrics


def test_cells_that_are_not_whole_are_no_reading(tmp_path: Path) -> None:
    store(tmp_path / "none", blocks=[])
    assert trends_of(tmp_path).series == ()


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(folder: Path) -> None:
    (folder / "late" / "run.json").write_text("{}")
    trends = trends_of(folder)
    assert [run.id for run in trends.runs] == ["early"]
    (why,) = trends.unread
    assert "late: run.json: its SHA-256" in why


def test_a_folder_without_runs_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError):
            trends_of(path)
