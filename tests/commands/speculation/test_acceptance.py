"""`specgate acceptance`: the figures of stored runs, summed up again from their journals."""

from __future__ import annotations

import csv
import json

import pytest

from specgate.files.run_folder import RunFolder
from tests.support.command import Cli
from tests.support.stored_runs import store


def test_one_cells_length_is_that_of_its_run_and_both_means_are_there(cli: Cli) -> None:
    run = store(cli.folder / "run")
    done = cli.run("acceptance", run, "--json", "--csv", "--out", "out", pair=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((cli.folder / "out" / "acceptance.json").read_text())["summaries"]
    cells = [c.acceptance for c in RunFolder.open(run, read_only=True).read_run().cells if c.acceptance]
    assert found["num_drafts"] == sum(c.steps for c in cells)
    assert found["total_accepted_tokens"] == sum(c.accepted for c in cells)
    length = 1 + found["total_accepted_tokens"] / found["num_drafts"]
    assert found["mean_acceptance_length"] == pytest.approx(length)
    assert found["requests"] >= found["prompts"] > 1 and found["request_mean_acceptance_length"] > 1
    (row,) = csv.DictReader((cli.folder / "out" / "acceptance.csv").read_text().splitlines())
    assert row["k"] == "3" and float(row["mean_acceptance_length"]) == pytest.approx(length)
    assert "acceptance length, mean over requests" in done.stdout


def test_several_runs_are_summed_up_together_too(cli: Cli) -> None:
    runs = [store(cli.folder / name) for name in ("one", "two")]
    done = cli.run("acceptance", *runs, "--json", "--out", "out", pair=False)
    assert done.returncode == 0, done.stderr
    *single, both = json.loads((cli.folder / "out" / "acceptance.json").read_text())["summaries"]
    assert both["run"] == "all runs" and both["num_drafts"] == sum(s["num_drafts"] for s in single)


def test_what_is_no_run_ends_with_2(cli: Cli) -> None:
    assert cli.run("acceptance", cli.folder, pair=False).returncode == 2
