"""`specgate runs explain` on whole runs: of every ending, under another policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specgate.archive.verification import verify
from specgate.cli import cli as commands
from specgate.errors import InvalidResult
from specgate.files.run_folder import RunFolder
from tests.support.command import Cli


@pytest.fixture
def run(green_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(green_run, tmp_path / green_run.name))


def explained(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["runs", "explain", *map(str, arguments)])


def edit(run: Path, change: Any) -> None:
    """Change run.json behind a mended manifest."""
    file = run / "run.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    RunFolder(run).write_manifest()


def test_every_cell_is_explained_and_nothing_is_written(run: Path) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    result = explained(run)
    assert result.exit_code == 0, result.output
    for role in ("baseline: ", "spec-2: ", "spec-3: "):
        assert f"\n{role}" in result.output
    assert "speed-up" in result.output
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_the_policy_says_whose_gates(run: Path, tmp_path: Path) -> None:
    assert "min" not in explained(run).output  # the run's own policy has no speed rule
    rule = "{id: fast, gate: speed, required: true, role: spec-3, min: 3.0}"
    (tmp_path / "fast.yaml").write_text(f"schema: specgate.policy/v1\nrules:\n  - {rule}\n")
    result = explained(run, "--policy", tmp_path / "fast.yaml")
    assert "fast (min 3×): AL would have to be" in result.output, result.output


def test_json_holds_the_budgets_as_run_json_does(run: Path) -> None:
    record = json.loads(explained(run, "--json").output)
    assert (record["schema"], record["run"], record["bandwidth"]) == ("specgate.explain/v1", run.name, None)
    assert record["budgets"] == json.loads((run / "run.json").read_text())["budgets"]


def test_a_run_that_was_changed_afterwards_is_not_explained(run: Path) -> None:
    with (run / "samples" / "blocks.jsonl").open("a") as file:
        file.write("\n")
    result = explained(run)
    assert isinstance(result.exception, InvalidResult) and "samples/blocks.jsonl" in result.exception.message


@pytest.mark.usefixtures("killed")
def test_a_run_whose_engine_was_killed_is_explained_as_far_as_it_goes(cli: Cli) -> None:
    result = explained(cli.newest())
    assert result.exit_code == 0, result.output
    assert "no times may be quoted: its tokens are not the baseline's" not in result.output


def test_a_run_of_wrong_tokens_is_explained_as_far_as_it_goes(cli: Cli) -> None:
    assert cli.micro("--backend", "fake", "-o", "wrong_token_at=5").returncode == 6
    result = explained(cli.newest())
    assert result.exit_code == 0, result.output
    assert "no times may be quoted: its tokens are not the baseline's" in result.output


def test_a_full_run_has_its_prefill_in_the_product(cli: Cli) -> None:
    cli.scenario(kind="full", budget="new_tokens: 12")
    options = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake")
    cli.run("full", *options, "--override-order", "the order is not what is tested here", code=0)
    assert "whole requests wait for their prefill too" in explained(cli.newest()).output


# ── verify ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_edited_budget_does_not_follow_from_the_samples(run: Path) -> None:
    key = "tiny/fake/c24/b2/spec-3"
    edit(run, lambda data: data["budgets"][key]["parts"][0].update(ms=0.5))
    assert [d.place for d in verify(run).differences] == [f"budgets.{key}.parts[0].ms"]
