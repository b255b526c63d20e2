"""`specgate bench`: time the parts of an engine, each on its own."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.numbers import BATCHES, LONGEST_DRAFT, count
from specgate.errors import EnvironmentRefused, InvalidResult, UsageError
from specgate.planning.bounds import POSITIONS
from specgate.terminal import console


@click.group(short_help="Time the parts of an engine, each on its own.")
def bench() -> None:
    """Time the parts of an engine, each on its own."""


@bench.command(short_help="Time every kernel of a step.")
@click.option(
    "--pair", "name", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR", help="Pair."
)
@click.option(
    "--context", default=32768, show_default=True, type=count(64, POSITIONS), help="Cached positions per sequence."
)
@click.option("--batch", default=1, show_default=True, type=BATCHES, help="Sequences.")
@click.option(
    "--spec",
    multiple=True,
    default=(3,),
    show_default=True,
    type=count(0, LONGEST_DRAFT),
    help="Draft tokens per cycle; 0: the baseline.",
)
@click.option("--backend", default="cupy", show_default=True, metavar="NAME", help="Engine.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures to FILE.")
def kernels(name: str, context: int, batch: int, spec: tuple[int, ...], backend: str, file: Path | None) -> None:
    """Time every kernel of a step on its own, and compare it with the bytes it must move and with a library's kernel.

    The weights are random, of the pair's sizes, so that nothing has to be loaded. With --backend reference, the parts
    of the reference engine are timed on the CPU. Exit code 6 if a kernel's result is not the oracle's.
    """

    from specgate import plugins
    from specgate.api import BenchesKernels
    from specgate.core import Role
    from specgate.core.kernel_bench import KernelBenchRequest
    from specgate.files.writing import write_json
    from specgate.pairs.resolve import resolve_pair
    from specgate.tuning.kernel_report import WIDTH, as_record, show

    engine = plugins.backend(backend)
    if not isinstance(engine, BenchesKernels):
        raise UsageError(f"--backend {backend}: it has no kernels of its own to time", hint="known: cupy, reference")
    if not (availability := engine.available()).usable:
        raise EnvironmentRefused(f"back end {backend}: {availability.reason}")
    roles = tuple(Role(k) for k in dict.fromkeys(spec))
    found = engine.bench_kernels(KernelBenchRequest(resolve_pair(name, None, None), context, batch, roles))
    if file is not None:
        write_json(file, as_record(found))
    show(found, console(width=WIDTH))
    if wrong := [k for k in found.kernels if not k.right]:
        raise InvalidResult(f"{len(wrong)} kernels do not compute what they should: their times mean nothing")
