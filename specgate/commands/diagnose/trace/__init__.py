"""`specgate diagnose trace`: what a decode loop did on the GPU, by the file of a profiler.

showing.py    the same as text and as data
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.contract import BlockTrace
from specgate.errors import ExitCode
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.analysis.traces.recording import Recording
    from specgate.analysis.traces.steps import Loop
    from specgate.contract import BlockTrace


@command(short_help="Show what a profiler's trace says of a decode loop.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--run", type=click.Path(path_type=Path), help="Run folder that the trace is to belong to.")
@click.option("--cell", metavar="KEY", help="Cell of the run, if it has several: POINT/ROLE.")
@click.option("--steps", type=click.IntRange(1, 1_000_000), help="Decode steps in the trace, where it does not tell.")
@click.option(
    "--kernels", type=click.Path(path_type=Path, dir_okay=False), help="Patterns of the kernels allowed in it."
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def trace(
    file: Path, run: Path | None, cell: str | None, steps: int | None, kernels: Path | None, as_json: bool
) -> None:
    """Show kernels, copies, waits and gaps per decode step of the trace FILE.

    \b
    Example: specgate diagnose trace FILE --run RUN

    FILE is what torch's profiler wrote (.json, .json.gz), as vLLM and SGLang do on /start_profile and /stop_profile, or
    an SQLite export of Nsight Systems (nsys profile --cuda-graph-trace=node; nsys export --type sqlite). vLLM, SGLang,
    TensorRT-LLM and TurboMind (FT_NVTX=ON) mark their steps; only whole decode steps are counted then. Phases are shown
    where ranges tell them. What the trace does not tell, or is not
    recognised in it, is "not observable".

    A list of matrix products that TurboMind writes (eagle3_gemm_shapes_*.json) is shown as a table.

    Exit codes: 0 where nothing is broken, 1 where invariant I1 (no fall-back kernel) or I6 (no copy to the host, wait
    or allocation) is, 6 where the trace cannot be one of the run's cell.
    """
    from specgate.analysis.perf_invariants.certificate import from_outside
    from specgate.analysis.perf_invariants.loop import own_kernels, quiet_loop
    from specgate.analysis.traces.families import has_shapes, read_patterns, read_shapes
    from specgate.analysis.traces.steps import loop_of
    from specgate.analysis.traces.trace_file import read_trace
    from specgate.commands.diagnose.trace import showing
    from specgate.contract import Held

    if has_shapes(file):
        products = read_shapes(file)
        if as_json:
            echo_json(showing.products_as_data(products))
        else:
            echo(showing.products_as_text(file, products))
        return
    recording = read_trace(file)
    loop = loop_of(recording, steps)
    belongs = belonging(recording, loop, run, cell, steps)
    block_trace = block_of(recording, loop, belongs, read_patterns(kernels) if kernels else None)
    invariants = [
        from_outside(own_kernels(None, block_trace), block_trace),
        from_outside(quiet_loop(block_trace), block_trace),
    ]
    if as_json:
        echo_json(showing.as_data(file, recording, loop, invariants, belongs))
    else:
        echo(showing.as_text(file, recording, loop, invariants, belongs))
    if any(invariant.held is Held.BROKEN for invariant in invariants):
        sys.exit(ExitCode.FAIL)


def belonging(recording: Recording, loop: Loop, folder: Path | None, key: str | None, stated: int | None) -> str | None:
    """The key of the cell that the trace belongs to; None where no run is named.

    Raises UsageError for a cell that the run does not have, InvalidResult where the trace cannot be one of it.
    """
    from specgate.analysis.traces.same_run import objections
    from specgate.errors import InvalidResult, UsageError
    from specgate.files.run_folder import RunFolder
    from specgate.promotion.ending import refuse_cut

    wrong = []
    if stated and loop.window.ranges is not None and stated != loop.window.ranges:
        wrong.append(f"--steps {stated}: its ranges tell {loop.window.ranges} decode steps")
    if folder is None:
        if key:
            raise UsageError("--cell without --run", hint="--run FOLDER names the run that the cell is of")
    else:
        opened = RunFolder.open(folder, read_only=True)
        refuse_cut(folder)
        run = opened.read_run()
        cells = {result.cell.key: result.cell for result in run.cells}
        if key is None and len(cells) == 1:
            key = next(iter(cells))
        if key not in cells:
            problem = "--cell is missing" if key is None else f"--cell {key}: the run has no such cell"
            raise UsageError(f"{folder}: {problem}", hint=f"it has: {', '.join(cells)}")
        wrong += objections(recording, loop, run, cells[key], opened.keyed(BlockTrace).get(key))
    if wrong:
        raise InvalidResult("the trace is of another run: " + "; ".join(wrong))
    return key


def block_of(recording: Recording, loop: Loop, cell: str | None, allowed: tuple[str, ...] | None) -> BlockTrace:
    """The trace as a run would store it. Without its steps it shows no loop, since prefill is in it."""
    from specgate.analysis.traces.ranges import ranges_in
    from specgate.contract import BlockTrace

    unseen = loop.unseen
    if unseen is None and loop.window.thread is None and loop.steps is None:
        unseen = f"nothing tells the decode steps from the prefill: no --steps, and {ranges_in(recording)}"
    return BlockTrace(
        cell=cell or "",
        prompt_set=0,
        worker_generation=0,
        source="server-profiler",
        steps=loop.steps or 0,
        tokens=(),
        kernels=loop.kernels,
        copies=loop.copies,
        calls=loop.calls,
        unseen=unseen,
        partial=loop.partial,
        loop=loop.figures,
        allowed=allowed,
    )
