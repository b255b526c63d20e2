"""Acceptance over uptime on the command line: judged where a policy asks, shown on the page, and verified."""

from __future__ import annotations

import pytest

from specgate.files.run_folder import RunFolder
from tests.support.command import POLICY, Cli

KEEPS = (
    "  - {id: keeps-up, gate: acceptance-drift, required: true, role: spec-3, max_fall_pct: 2.0, min_requests: 16}\n"
)


@pytest.mark.parametrize(("stale", "code"), [(0, 0), (1, 1)])
def test_an_engine_that_goes_stale_is_found_by_any_run(cli: Cli, stale: int, code: int) -> None:
    """Every block accepts nothing in one step more than the block before. There are 32 blocks of 2 requests a role."""
    cli.scenario(spec=[3], rounds=8, budget="steps: 100")
    cli.write("policy.yaml", POLICY.replace("MIN", "1.0") + KEEPS)
    done = cli.micro("--backend", "fake", "-o", f"stale_steps={stale}", "-o", "step_ns=1000", "-o", "draft_ns=100")
    assert done.returncode == code, done.stdout + done.stderr
    run = RunFolder(cli.newest()).read_run()
    drifts = {c.cell.role.name: c.drift for c in run.cells}
    spec = drifts["spec-3"]
    assert drifts["baseline"] is None and spec is not None
    assert (spec.slope < 0) is bool(stale)
    first = next(v for v in run.verdicts if v.rule == "keeps-up")
    assert first.reason_code == ("falls" if stale else "keeps_up")
    assert "Acceptance over uptime" in (cli.newest() / "report.html").read_text()
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
