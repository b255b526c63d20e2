"""`specgate.open_run`: its tables say what run.json and the journals of the run say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import specgate
from specgate.analysis.rows import BLOCKS, REQUESTS, VERDICTS, block_rows, request_rows, verdict_rows
from specgate.archive.stored_runs import load_run
from specgate.archive.tables import RunTables
from specgate.errors import InvalidResult, UsageError
from tests.support import outlines
from tests.support.command import ROOT
from tests.support.factories import corrupt, scenario
from tests.support.fences import blocks as fences
from tests.support.stored_runs import store

Kind = Literal["micro", "full"]
KEYS = ["scenario", "backend", "role", "context_len", "batch"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def opened(folder: Path, kind: Kind, batch: int, spec: tuple[int, ...], accept: tuple[int, ...]) -> RunTables:
    """Return a run that is stored below `folder`, opened. Its page, which no table reads, is not drawn."""
    path = folder / f"{kind}-{batch}-{spec}-{accept}".replace(" ", "")
    if not path.exists():
        with pytest.MonkeyPatch.context() as patch:
            outlines.instead_of_drawing(patch)
            kinds = [scenario(kind=kind, batch=(batch,), spec=spec), scenario("other", kind, spec=spec)]
            store(path, scenarios=kinds, accept=accept)
    return specgate.open_run(path)


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(
    kind=st.sampled_from(("micro", "full")),
    batch=st.integers(1, 3),
    spec=st.sampled_from(((3,), (1, 2))),
    accept=st.lists(st.integers(0, 1), min_size=2, max_size=4).map(tuple),
)
def test_tables_agree_with_the_record_and_the_journals_of_a_run(
    folder: Path, kind: Kind, batch: int, spec: tuple[int, ...], accept: tuple[int, ...]
) -> None:
    tables = opened(folder, kind, batch, spec, accept)
    record = json.loads((tables.path / "run.json").read_text())
    journal = [json.loads(line) for line in (tables.path / "samples" / "blocks.jsonl").read_text().splitlines()]
    measured = [block for block in journal if not block["warmup"]]
    assert len(tables.cells) == len(record["cells"]) and len(tables.blocks) == len(measured)
    assert len(tables.requests) == sum(len(block["tokens"]) for block in measured)
    assert tables.requests["output_tokens"].sum() == sum(len(t) for block in measured for t in block["tokens"])
    assert list(tables.blocks["elapsed_ms"]) == [block["elapsed_ns"] / 1e6 for block in measured]
    assert list(tables.verdicts["message"]) == [verdict.message for verdict in tables.run.verdicts]

    by_block, by_request = (table.groupby(KEYS) for table in (tables.blocks, tables.requests))
    for result, (_, row) in zip(tables.run.cells, tables.cells.iterrows(), strict=True):
        key = tuple(row[KEYS])
        assert (row["role"], row["status"], row["blocks"]) == (result.cell.role_name, result.status, result.blocks)
        for name, value in result.values.items():
            if name in tables.cells:
                expected = math.nan if value.value is None else value.value
                assert row[name] == pytest.approx(expected, nan_ok=True), name
        if "decode_tok_s" in result.values:
            assert by_block["decode_tok_s"].median()[key] == pytest.approx(row["decode_tok_s"])
            assert by_request["tpot_ms"].mean()[key] == pytest.approx(row["mean_tpot_ms"])
        if counts := result.acceptance:
            for table in (by_block, by_request):
                sums = [table[name].sum()[key] for name in ("num_drafts", "total_accepted_tokens")]
                assert sums == [counts.steps, counts.accepted]
    written = pd.read_csv(tables.path / "summary.csv")
    assert list(written) == list(tables.cells)
    for column in written.select_dtypes("number").columns:
        assert written[column].tolist() == pytest.approx(tables.cells[column].astype(float).tolist(), nan_ok=True)


def test_no_time_is_told_where_tokens_are_wrong_and_nothing_of_records_that_contradict(tmp_path: Path) -> None:
    wrong = specgate.open_run(store(tmp_path / "wrong", change=corrupt))
    times = ["prefill_ms", "elapsed_ms", "decode_tok_s"]
    assert wrong.blocks.query("k > 0")[times].isna().all(axis=None)
    assert wrong.blocks.query("k == 0")[times].notna().all(axis=None)
    assert wrong.requests.query("k > 0")["tpot_ms"].isna().all()
    broken = specgate.open_run(store(tmp_path / "broken", change=lambda b: replace(b, truncated=(9,) * len(b.tokens))))
    assert {r.status for r in broken.run.cells} == {"failed"} and broken.blocks.empty and broken.requests.empty
    assert list(broken.blocks) == list(BLOCKS)


def test_rows_have_the_columns_that_are_declared(folder: Path) -> None:
    stored = opened(folder, "micro", 1, (3,), (1, 0)).stored
    blocks = stored.blocks()
    for rows, columns in (
        (block_rows(stored.run, blocks), BLOCKS),
        (request_rows(stored.run, blocks), REQUESTS),
        (verdict_rows(stored.run), VERDICTS),
    ):
        assert {tuple(row) for row in rows} == {columns}


@pytest.mark.parametrize("name", ["cells", "figures", "blocks", "requests", "verdicts"])
def test_every_column_is_typed_and_described(name: str, folder: Path) -> None:
    table = getattr(opened(folder, "full", 2, (3,), (1, 0)), name)
    assert {str(dtype) for dtype in table.dtypes} <= {"string", "Int64", "boolean", "float64"}
    assert not table.empty
    words = f"{RunTables.__doc__} {getattr(RunTables, name).__doc__} {RunTables.blocks.__doc__}"
    if name in ("blocks", "requests", "verdicts"):
        assert [column for column in table if f"`{column}`" not in words] == []


def test_the_example_of_the_document_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = [b.text for b in fences(ROOT / "docs" / "stored-runs.md") if b.language == "python"]
    store(tmp_path / "runs" / "mine", scenarios=[scenario(batch=(2,))])
    monkeypatch.chdir(tmp_path)
    names: dict[str, pd.DataFrame] = {}
    exec(example, names)
    assert names["speedups"]["role"].tolist() == ["spec-3"] and names["speedups"]["speedup_ci_low"].notna().all()
    assert list(names["latency"]) == [0.5, 0.99] and len(names["latency"]) == 2
    assert set(names["red"]) == {"rule", "role", "message"}


def test_what_is_no_run_and_what_was_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        specgate.open_run(tmp_path)
    run = store(tmp_path / "run")
    assert str(specgate.open_run(str(run)).path) == str(load_run(run).path)
    (run / "run.json").write_text((run / "run.json").read_text().replace("fake", "fbke", 1))
    with pytest.raises(InvalidResult, match=r"run\.json"):
        specgate.open_run(run)
