"""`specgate engine bench`: time the parts of an engine, each on its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from specgate.commands.numbers import BATCHES, LONGEST_DRAFT, count
from specgate.commands.run import key_value
from specgate.contract.types import POSITIONS
from specgate.errors import EnvironmentRefused, InvalidResult, UsageError

if TYPE_CHECKING:
    from specgate.backends.eagle3.nouns.abilities import BenchesKernels, BenchesPrefill
    from specgate.contract.protocols import Availability

LENGTHS: Final = (8192, 32000)
"""Tokens of the prompts whose prefill is timed where none are given."""


@click.group(short_help="Time the parts of an engine, each on its own.")
def bench() -> None:
    """Time the parts of an engine, each on its own."""


@bench.command(short_help="Time every kernel of a step, or every part of a prefill.")
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
@click.option(
    "--prefill", is_flag=True, help="Time the parts of a prefill instead; with --spec 0, without the draft's."
)
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=count(1, POSITIONS),
    help=f"Tokens of a prompt, with --prefill.  [default: {', '.join(map(str, LENGTHS))}]",
)
@click.option("--backend", default="cupy", show_default=True, metavar="NAME", help="Engine.")
@click.option("-o", "--option", "options", multiple=True, metavar="KEY=VALUE", help="Back-end option, such as kv=fp8.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures to FILE.")
def kernels(
    name: str,
    context: int,
    batch: int,
    spec: tuple[int, ...],
    prefill: bool,
    lengths: tuple[int, ...],
    backend: str,
    options: tuple[str, ...],
    file: Path | None,
) -> None:
    """Time every kernel of a step on its own, and compare it with the bytes it must move and with a library's kernel.

    With --prefill: every part of the prefill of one prompt, in every way that is known, beside the operations and the
    bytes that it takes at least.

    The weights are random, of the pair's sizes, so that nothing has to be loaded. With --backend reference, the parts
    of the reference engine's steps are timed on the CPU. Exit code 6 if a result is not the oracle's.
    """
    from specgate.backends.eagle3.nouns.kernel_bench import KernelBenchRequest, PrefillBenchRequest
    from specgate.backends.eagle3.tuning import kernel_report, prefill_report
    from specgate.contract import Role
    from specgate.files.writing import write_json
    from specgate.pairs.resolve import resolve_pair
    from specgate.terminal import console

    named = dict(map(key_value, options))
    if prefill:
        if named:
            raise UsageError(f"--option {next(iter(named))} with --prefill", hint="its parts have no options")
        if batch != 1:
            raise UsageError(f"--batch {batch} with --prefill", hint="prompts are prefilled one at a time")
        wanted = PrefillBenchRequest(
            resolve_pair(name, None, None), tuple(dict.fromkeys(lengths)) or LENGTHS, any(spec)
        )
        parts = prefill_engine(backend).bench_prefill(wanted)
        if file is not None:
            write_json(file, prefill_report.as_record(parts))
        prefill_report.show(parts, console(width=prefill_report.WIDTH))
        wrong = sum(not part.right for part in parts.parts)
    else:
        if lengths:
            raise UsageError("--length without --prefill", hint="--context says how much of a step is cached")
        roles = tuple(Role(k) for k in dict.fromkeys(spec))
        steps = KernelBenchRequest(resolve_pair(name, None, None), context, batch, roles, named)
        found = kernels_engine(backend).bench_kernels(steps)
        if file is not None:
            write_json(file, kernel_report.as_record(found))
        kernel_report.show(found, console(width=kernel_report.WIDTH))
        wrong = sum(not kernel.right for kernel in found.kernels)
    if wrong:
        raise InvalidResult(f"{wrong} kernels do not compute what they should: their times mean nothing")


def kernels_engine(backend: str) -> BenchesKernels:
    """The engine of that name. Raises UsageError where it has no kernels of its own, EnvironmentRefused where it cannot
    run here.
    """
    from specgate import plugins
    from specgate.backends.eagle3.nouns.abilities import BenchesKernels

    engine = plugins.backend(backend)
    if not isinstance(engine, BenchesKernels):
        raise UsageError(f"--backend {backend}: it has no kernels of its own to time", hint="known: cupy, reference")
    require_usable(backend, engine.available())
    return engine


def prefill_engine(backend: str) -> BenchesPrefill:
    """As `kernels_engine`, for an engine whose prefill can be timed."""
    from specgate import plugins
    from specgate.backends.eagle3.nouns.abilities import BenchesPrefill

    engine = plugins.backend(backend)
    if not isinstance(engine, BenchesPrefill):
        raise UsageError(f"--backend {backend}: it has no prefill of its own to time", hint="known: cupy")
    require_usable(backend, engine.available())
    return engine


def require_usable(backend: str, availability: Availability) -> None:
    if not availability.usable:
        raise EnvironmentRefused(f"back end {backend}: {availability.reason}")
