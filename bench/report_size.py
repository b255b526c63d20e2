"""Measure the cost of the HTML page of a large run: seconds, bytes, memory.

    python -m bench.report_size

The run has 50 points (10 contexts, 5 batch sizes) of 4 roles, so 200 cells. With 50 measured blocks per cell, there are
10,000 samples. The machine is watched and every rule of a policy judged. The run is built and stored first. Another
process reads it and renders the page, so that time and memory are those of the report.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click

from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.analysis.machine.conditions import conditions_of
from specgate.files.run_folder import RunFolder
from specgate.reports.page.html import REPORT
from tests.support.budgets import MEMORY, with_traffic
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of, scenario
from tests.support.surroundings import timed, watched

MIB = 1 << 20


@click.command()
@click.option("--render", type=click.Path(path_type=Path), help="Only render the run of this folder.")
@click.option("--keep", type=click.Path(path_type=Path), help="Copy the page to this file.")
def main(render: Path | None, keep: Path | None) -> None:
    """Print the cost of reading the run and rendering its page."""
    if render is not None:
        click.echo(cost_of(render))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        command = [sys.executable, "-m", "bench.report_size", "--render", name]
        click.echo(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        if keep is not None:
            keep.write_bytes((folder / REPORT.filename).read_bytes())


def build(folder: Path) -> None:
    plan = plan_of(
        scenario(
            "large", context=range(1024, 11_264, 1024), batch=(1, 2, 3, 4, 6), spec=(2, 3, 4), prompt_sets=25, rounds=2
        )
    )
    blocks = timed(blocks_of(plan))
    run = run_of(plan, blocks, conditions=conditions_of(plan, blocks, watched(blocks)))
    budgets = cycle_budgets(plan, run.cells, run.comparisons, blocks, with_traffic(run), MEMORY)
    run = replace(run, budgets=budgets, bandwidth=MEMORY)
    samples = sum(not b.warmup for b in blocks)
    click.echo(f"{len(run.cells)} cells, {samples:,} samples, {len(judged(run, POLICY).verdicts):,} verdicts")
    RunFolder(folder).write_run(judged(run, POLICY))


def cost_of(folder: Path) -> str:
    busy = time.process_time()
    run = RunFolder(folder, read_only=True).read_run()
    read, read_busy = time.perf_counter(), time.process_time()
    page = REPORT.render(run, POLICY)
    done, done_busy = time.perf_counter(), time.process_time()
    (folder / REPORT.filename).write_text(page, encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run_size = (folder / "run.json").stat().st_size
    sizes = f"run.json {run_size / MIB:.1f} MiB; page {len(page.encode()) / MIB:.2f} MiB"
    times = (
        f"read in {read_busy - busy:.2f} s; rendered in {done - read:.2f} s, {done_busy - read_busy:.2f} s of CPU time"
    )
    return f"{sizes}; {times}; peak memory {peak / MIB:.0f} MiB"


if __name__ == "__main__":
    main()
