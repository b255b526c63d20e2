"""`specgate engine bench`: time the parts of an engine, each on its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import Group
from specgate.commands.numbers import BATCHES, count
from specgate.commands.options import key_value
from specgate.contract.types import DRAFT_TOKENS, POSITIONS
from specgate.errors import EnvironmentRefused, UsageError

if TYPE_CHECKING:
    from specgate.backends.eagle3.nouns.abilities import BenchesKernels


@click.group(cls=Group, short_help="Time the parts of an engine, each on its own.")
def bench() -> None:
    """Time the parts of an engine, each on its own.

    \b
    Example: specgate engine bench kernels --context 32768
    """


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
    type=count(0, DRAFT_TOKENS),
    help="Draft tokens per cycle; 0: the baseline.",
)
@click.option("--backend", default="cupy", show_default=True, metavar="NAME", help="Engine.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Back-end option: kv, draft_kv, tree or tree_width.",
)
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures to FILE.")
def kernels(
    name: str,
    context: int,
    batch: int,
    spec: tuple[int, ...],
    backend: str,
    options: tuple[str, ...],
    file: Path | None,
) -> None:
    """Time every kernel of a step on its own, and compare it with the bytes it must move and with a library's kernel.

    \b
    Example: specgate engine bench kernels --context 32768

    The weights are random, of the pair's sizes, so that nothing has to be loaded.
    """
    from specgate.backends.eagle3.nouns.kernel_bench import KernelBenchRequest
    from specgate.backends.eagle3.tuning import kernel_report
    from specgate.contract import Role
    from specgate.files.writing import write_json
    from specgate.pairs.resolve import resolve_pair
    from specgate.terminal import console

    roles = tuple(Role(k) for k in dict.fromkeys(spec))
    request = KernelBenchRequest(resolve_pair(name, None, None), context, batch, roles, dict(map(key_value, options)))
    results = kernels_engine(backend).bench_kernels(request)
    if file is not None:
        write_json(file, kernel_report.as_record(results))
    kernel_report.show(results, console(width=kernel_report.WIDTH))


def kernels_engine(backend: str) -> BenchesKernels:
    """Return the engine of that name. Raises UsageError where it has no kernels of its own, EnvironmentRefused where it
    cannot run here.
    """
    from specgate import plugins
    from specgate.backends.eagle3.nouns.abilities import BenchesKernels

    engine = plugins.backend(backend)
    if not isinstance(engine, BenchesKernels):
        raise UsageError(f"--backend {backend}: it has no kernels of its own to time", hint="known: cupy")
    if not (availability := engine.available()).usable:
        raise EnvironmentRefused(f"back end {backend}: {availability.reason}")
    return engine
