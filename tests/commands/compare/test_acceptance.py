"""`specgate runs compare --by acceptance`: the figures of stored runs, summed up again from their journals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from specgate.files.run_folder import RunFolder
from tests.support.command import Cli
from tests.support.factories import scenario
from tests.support.stored_runs import store


@pytest.fixture
def run(cli: Cli) -> Path:
    kinds = [scenario(spec=(2, 3)), scenario("long-256", context=(256,), batch=(2,), spec=(2, 3))]
    return store(cli.folder / "run", scenarios=kinds)


def test_one_runs_length_is_that_of_its_cells_and_both_means_are_there(cli: Cli, run: Path) -> None:
    cli.run("runs", "compare", "--by", "acceptance", run, "--json", "--csv", "--out", "out", pair=False, code=0)
    data = json.loads((cli.folder / "out" / "acceptance.json").read_text())
    assert list(dict.fromkeys(row["by"] for row in data["rows"])) == ["all", "context", "position"]
    assert [r["requests"] for r in data["runs"]] == [sum(r["requests"] for r in data["rows"] if r["by"] == "all")]
    (result,) = [row for row in data["rows"] if (row["by"], row["k"]) == ("all", 3)]
    cells = [c for c in RunFolder.open(run, read_only=True).read_run().cells if c.cell.role.k == 3]
    counts = [c.acceptance for c in cells if c.acceptance]
    assert result["num_drafts"] == sum(c.steps for c in counts)
    assert result["total_accepted_tokens"] == sum(c.accepted for c in counts)
    length = 1 + result["total_accepted_tokens"] / result["num_drafts"]
    assert result["acceptance_length"] == pytest.approx(length)
    assert result["requests"] >= result["prompts"] > 1 and result["request_mean_acceptance_length"] > 1
    rows = list(csv.DictReader((cli.folder / "out" / "acceptance.csv").read_text().splitlines()))
    (row,) = [row for row in rows if (row["by"], row["k"]) == ("all", "3")]
    assert float(row["acceptance_length"]) == pytest.approx(length)
    assert [row["position"] for row in rows if (row["by"], row["k"]) == ("position", "3")] == ["1", "2", "3"]


def test_a_page_and_markdown_are_written(cli: Cli, run: Path) -> None:
    cli.run("runs", "compare", "--by", "acceptance", run, "--html", "--md", pair=False, code=0)
    page = (cli.folder / "report" / "acceptance.html").read_text()
    assert "By draft position" in page
    assert "### By context" in (cli.folder / "report" / "acceptance.md").read_text()


def test_what_is_no_run_ends_with_2(cli: Cli) -> None:
    assert cli.run("runs", "compare", "--by", "acceptance", cli.folder, pair=False).returncode == 2


def test_a_run_that_was_changed_is_refused(cli: Cli, run: Path) -> None:
    journal = run / "samples" / "blocks.jsonl"
    journal.write_text(journal.read_text().replace('"accepted":[[3', '"accepted":[[2', 1))
    done = cli.run("runs", "compare", "--by", "acceptance", run, pair=False)
    assert done.returncode == 6 and "blocks.jsonl" in done.stderr
