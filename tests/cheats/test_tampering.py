"""Code that tampers with files and processes of its user: in a sandbox nothing of it works, and its tokens are seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.files.run_folder import RunFolder
from tests.cheats.conftest import objections
from tests.sandbox import needs_bubblewrap
from tests.support.command import NOT_SCORED, ROOT, Cli
from tests.support.outside import write_distribution

pytestmark = [needs_bubblewrap, pytest.mark.engine]


@pytest.mark.slow("runs an engine and a second one in processes")
def test_an_engine_that_tampers_is_invalid_in_a_sandbox(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"specgate.backends": {"Tampering": "tests.cheats.tampering:BACKEND"}}
    write_distribution(tmp_path / "installed", "tampering", entries=entries)
    monkeypatch.delenv("SPECGATE_LOAD_PLUGINS", raising=False)
    environment = {**cli.environment(), "PYTHONPATH": f"{tmp_path / 'installed'}:{ROOT}"}
    monkeypatch.setattr(cli, "environment", lambda: environment)
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text().replace(NOT_SCORED, ""))
    done = cli.micro_apart("--backend", "Tampering", "--isolate", code=6)
    assert "engines run in bubblewrap" in done.stdout
    run = RunFolder.open(cli.newest()).read_run()
    assert {v.reason_code for v in objections(run) if v.gate == "tokens"} == {"not_the_targets"}
    assert str(run.fingerprint["sandbox"]).startswith("bubblewrap ")
    assert json.loads((cli.newest() / "logs" / "tampering.json").read_text()) == []
    assert all(cell.rescored is not None and cell.rescored.unscored is None for cell in run.cells)
