"""Acceptance that one run measured is forced in a load test, by one command that names the run."""

from __future__ import annotations

import pytest

from specgate.files.run_folder import RunFolder
from tests.backends.servers.helpers import program
from tests.support.command import Cli

LOAD = """\
# Does speculation pay where acceptance is given?
schema: specgate.scenario/v1
extends: base/cpu
kind: load
family: load
grid: {context: [24], batch: [1], spec: [3]}
workload: {prompt_sets: 4, source: random}
budget: {new_tokens: 13}
schedule: {rounds: 2, warmup_rounds: 1}
load: {requests: 2, per_client: 2}
"""


@pytest.mark.slow("starts servers")
def test_a_measured_acceptance_length_is_forced_at_load_by_one_command(cli: Cli) -> None:
    server = ("--backend", "sglang", "-o", f"program={program(cli.folder, 'sglang', '--rate 500')}", "--plain")
    cli.micro("--backend", "reference", "--spec", "3")
    first = cli.newest()
    cli.write("load.yaml", LOAD)
    done = cli.run("load", "--scenario", "load.yaml", *server, "-o", f"force_al={first}")
    run, before = RunFolder.open(cli.newest()).read_run(), RunFolder.open(first).read_run()
    assert run.kind == "load", done.stdout + done.stderr
    length = before.cells[1].values["acceptance_length"].value
    config = RunFolder.open(cli.newest()).read_config()
    assert float(config.options["force_al"]) == pytest.approx(length, rel=1e-5) and config.policy.name == "load-forced"
    assert any(f"as {first.name} measured it" in warning for warning in run.warnings)
    assert {v.state.value for v in run.verdicts if v.gate == "tokens" and v.cell.endswith("spec-3")} <= {"SKIPPED"}
