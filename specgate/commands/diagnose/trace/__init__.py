"""`specgate diagnose trace`: what a decode loop did on the GPU, by the file of a profiler.

showing.py    the same as text and as data
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.contract import BlockTrace
from specgate.errors import ExitCode, UsageError
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.analysis.traces.recording import Recording
    from specgate.analysis.traces.steps import Loop
    from specgate.contract import BlockTrace


@command(short_help="Show what a profiler's trace says of a decode loop.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--steps", type=click.IntRange(1, 1_000_000), help="Decode steps in the trace, where it does not tell.")
@click.option(
    "--kernels", type=click.Path(path_type=Path, dir_okay=False), help="Patterns of the kernels allowed in it."
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def trace(file: Path, steps: int | None, kernels: Path | None, as_json: bool) -> None:
    """Show kernels, copies, waits and gaps per decode step of the trace FILE.

    \b
    Example: specgate diagnose trace FILE --steps 64

    FILE is what torch's profiler wrote (.json, .json.gz), as vLLM and SGLang do on /start_profile and /stop_profile, or
    an SQLite export of Nsight Systems (nsys profile --cuda-graph-trace=node; nsys export --type sqlite). vLLM, SGLang,
    TensorRT-LLM and TurboMind (FT_NVTX=ON) mark their steps; only whole decode steps are counted then. Phases are shown
    where ranges tell them. What the trace does not tell, or is not recognised in it, is "not observable".

    A list of matrix products that TurboMind writes (eagle3_gemm_shapes_*.json) is shown as a table.

    Exit codes: 0 where nothing is broken, 1 where invariant I1 (no fall-back kernel) or I6 (no copy to the host, wait
    or allocation) is.
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
    if steps and loop.window.ranges is not None and steps != loop.window.ranges:
        raise UsageError(
            f"--steps {steps}: ranges of the trace begin {loop.window.ranges} decode steps", hint="leave --steps out"
        )
    block_trace = block_of(recording, loop, read_patterns(kernels) if kernels else None)
    invariants = [
        from_outside(own_kernels(None, block_trace), block_trace),
        from_outside(quiet_loop(block_trace), block_trace),
    ]
    if as_json:
        echo_json(showing.as_data(file, recording, loop, invariants))
    else:
        echo(showing.as_text(file, recording, loop, invariants))
    if any(invariant.held is Held.BROKEN for invariant in invariants):
        sys.exit(ExitCode.FAIL)


def block_of(recording: Recording, loop: Loop, allowed: tuple[str, ...] | None) -> BlockTrace:
    """Return the trace as a run would store it. Without its steps it shows no loop, since prefill is in it."""
    from specgate.analysis.traces.ranges import ranges_in
    from specgate.analysis.traces.steps import observed_in
    from specgate.contract import BlockTrace
    from specgate.contract.traces import Observed
    from specgate.contract.types import fields_of

    unseen = loop.unseen
    if unseen is None and loop.window.thread is None and loop.steps is None:
        unseen = f"nothing tells the decode steps from the prefill: no --steps, and {ranges_in(recording)}"
    return BlockTrace(
        cell="",
        prompt_set=0,
        worker_generation=0,
        source="server-profiler",
        steps=loop.steps or 0,
        tokens=(),
        **fields_of(Observed, replace(observed_in(loop, unseen), allowed=allowed)),
    )
