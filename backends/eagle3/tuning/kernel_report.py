"""Show a kernel benchmark as JSON, and as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specgate.backends.eagle3.nouns.kernel_bench import SCHEMA, KernelBench, KernelTiming, PeerTiming, step_us

WIDTH: Final = 100
COLUMNS: Final = ("kernel", "shape", "per step", "µs", "MB", "of read", "peer")


def as_record(bench: KernelBench) -> dict[str, Any]:
    """The benchmark as JSON-ready data, with what follows from it.

    That is, per kernel, `bytes_per_s` and its `share` of the read bandwidth; and per role the time of all launches of a
    step, `step_us`, in microseconds.
    """
    plain = asdict(bench)
    plain["kernels"] = [
        {**asdict(kernel), "bytes_per_s": kernel.bytes_per_s, "share": bench.share(kernel)} for kernel in bench.kernels
    ]
    return {"schema": SCHEMA, **plain, "step_us": {role: step_us(kernels) for role, kernels in bench.roles()}}


def show(bench: KernelBench, console: Console) -> None:
    """Print one table per role, at most WIDTH columns wide, and which peers failed."""
    for role, kernels in bench.roles():
        options = "".join(f", {name}={value}" for name, value in bench.options.items())
        console.print(Text(f"{role}: {bench.pair}, {bench.batch} × {bench.context} positions{options}, {bench.device}"))
        console.print(table_of(bench, kernels))
        console.print(Text(f"all launches of a step, each as fast as it is alone: {step_us(kernels) / 1e3:.3f} ms"))
    console.print(
        Text(
            f"memory is read at {rate(bench.bytes_per_s)} (measured in this run); operands take turns beyond "
            f"{bench.l2_bytes / 1e6:.0f} MB of cache; {bench.seconds:.0f} s"
        )
    )
    for line in notes(bench):
        console.print(Text(line))


def rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:.3f} TB/s" if bytes_per_s >= 1e11 else f"{bytes_per_s / 1e9:.1f} GB/s"


def table_of(bench: KernelBench, kernels: tuple[KernelTiming, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("kernel", "shape", "peer") else "right", overflow="fold")
    for k in kernels:
        table.add_row(
            name_of(k),
            k.shape,
            str(k.per_step),
            f"{k.us:.2f}",
            f"{k.size / 1e6:.3f}" if k.size < 1e6 else f"{k.size / 1e6:.1f}",
            f"{bench.share(k):.1%}" if k.size >= 1e5 else "",
            "\n".join(beside(k, peer) for peer in k.peers),
        )
    return table


def name_of(kernel: KernelTiming) -> str:
    """The kernel's tag, with `_COMBINE` for a combining second kernel."""
    return kernel.tag if not kernel.function.endswith("_combine") else f"{kernel.tag}_COMBINE"


def beside(kernel: KernelTiming, peer: PeerTiming) -> str:
    """The peer's time in microseconds, and that time divided by our kernel's."""
    return f"{peer.name} failed" if peer.us is None else f"{peer.name} {peer.us:.2f} ({peer.us / kernel.us:.2f}×)"


def notes(bench: KernelBench) -> Iterator[str]:
    """Yield the peers that did not run, each reason once."""
    failed = {(p.name, p.reason): k for k in reversed(bench.kernels) for p in k.peers if p.us is None}
    for (name, reason), k in failed.items():
        yield f"{name} failed beside {name_of(k)} {k.shape}: {reason}"
