"""The command line on transformers: a run with its evidence, beside a run of the reference engine."""

from __future__ import annotations

from specgate.contract import Held
from specgate.files.run_folder import RunFolder
from tests.support.command import Cli


def test_a_run_says_which_transformers_it_was_and_can_be_laid_beside_another_engines(cli: Cli) -> None:
    cli.write("tiny.yaml", (cli.folder / "tiny.yaml").read_text() + "perf_mode: true\n")
    done = cli.micro("--backend", "transformers", "--plain", "-o", "device=cpu")
    assert done.returncode in (0, 1), done.stdout + done.stderr  # on a busy machine, speed may be anything
    folder = cli.newest()
    run = RunFolder.open(folder).read_run()
    assert all(c.tokens.identical for c in run.comparisons)
    for cell in run.cells:
        assert "step_ms" in cell.values
        holding = {i.id for i in run.certificates[cell.cell.key] if i.held is Held.HELD}
        assert {"I3", "I5", "I7"} <= holding
    assert run.fingerprint["engine:attention"] == "sdpa" and run.fingerprint["engine:cuda_graphs"] == "none"
    assert cli.run("runs", "verify", folder, pair=False).returncode == 0
    other = cli.micro("--backend", "reference", "--plain")
    assert other.returncode in (0, 1), other.stdout + other.stderr
    beside = cli.run("runs", "compare", folder, cli.newest(), pair=False)
    assert beside.returncode == 0 and "transformers" in beside.stdout and "reference" in beside.stdout
