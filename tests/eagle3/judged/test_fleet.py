"""`specgate micro --on gpus` on the reference engine."""

from __future__ import annotations

import pytest

from specgate.files.run_folder import RunFolder
from tests.fleet.test_fleet import check_whole, spread
from tests.support.command import NOT_SCORED, Cli


@pytest.mark.slow("starts a node with two engines")
def test_a_second_engine_scores_what_the_runs_id_draws_where_a_point_was_measured(cli: Cli) -> None:
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text().replace(NOT_SCORED, ""))
    ran = spread(cli, "--slots", "1", "--backend", "reference", "-o", "device=cpu", contexts="16")
    assert "scores other tokens" not in ran.stdout
    path = check_whole(cli, points=1)
    run = RunFolder.open(path, read_only=True).read_run()
    checks = {cell.cell.key: cell.rescored for cell in run.cells}
    assert all(check is not None and check.scored and not check.wrong for check in checks.values()), checks
