"""A trace as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from specgate.analysis.traces.cuda_calls import allocations, count_copies, waits
from specgate.analysis.traces.families import Product, attention_in
from specgate.analysis.traces.recording import About, Recording
from specgate.analysis.traces.steps import Loop
from specgate.contract import Invariant, LoopFigures
from specgate.files.json_text import to_plain

SHOWN: Final = 20
"""Kernels in the table."""
LONGEST_NAME: Final = 84


def as_text(file: Path, recording: Recording, loop: Loop, invariants: Sequence[Invariant]) -> str:
    return "\n".join(lines(file, recording, loop, invariants))


def lines(file: Path, recording: Recording, loop: Loop, invariants: Sequence[Invariant]) -> Iterator[str]:
    gpus = f", {', '.join(dict.fromkeys(recording.devices))}" if recording.devices else ""
    yield f"trace {file.name}: {recording.profiler}{gpus}"
    yield from (f"  {note}" for note in loop.notes)
    yield f"  {'':24}{'per step':>16}{'in all':>16}"
    for name, number in counts(loop).items():
        yield f"  {name:24}" + "".join(f"{cell:>16}" for cell in cells(loop, name, number))
    reasons = dict.fromkeys(why for name in FIGURES if (why := loop.why_not(*FIGURES[name])))
    yield from (f"  not observable: {reason}" for reason in reasons)
    if (figures := loop.figures) is not None and loop.why_not(*BUSY) is None:
        yield from busy_lines(loop, figures)
    else:
        yield "GPU busy: not observable"
    if loop.phases:
        yield f"phases, ms per step {'host':>10}{'GPU':>10}" if loop.steps else f"phases, ms {'host':>19}{'GPU':>10}"
        for name, phase in loop.phases.items():
            times = (ns / (loop.steps or 1) / 1e6 for ns in (phase.host_ns, phase.gpu_ns))
            yield f"  {name:18}" + "".join(f"{ms:>10.3f}" for ms in times) + f"{phase.ranges:>9,} ranges"
    if loop.kernels:
        yield "kernels by their time on the GPU" + (", of those that were read" if loop.why_not("work") else "")
        total = sum(loop.kernel_ns.values()) or 1
        for name in sorted(loop.kernels, key=lambda name: -loop.kernel_ns[name])[:SHOWN]:
            share = loop.kernel_ns[name] / total
            yield f"  {share:6.1%}{loop.kernels[name]:>9,}  {shortened(name)}"
        if (left := len(loop.kernels) - SHOWN) > 0:
            yield f"  and {left} more (--json has all)"
    if attending := attention_in(loop.kernels):
        yield f"attention: {', '.join(attending)}"
    for invariant in invariants:
        yield f"{invariant.id} {invariant.held.value}: {invariant.message}"


def busy_lines(loop: Loop, figures: LoopFigures) -> Iterator[str]:
    each = f", {figures.window_ns / loop.steps / 1e6:.3f} ms per step" if loop.steps else ""
    yield f"GPU busy for {figures.busy_share:.1%} of {figures.window_ns / 1e6:,.3f} ms{each}"
    yield (
        f"  {figures.gaps:,} gaps: median {us(figures.gap_p50_ns)}, 99th percentile {us(figures.gap_p99_ns)}, "
        f"longest {us(figures.longest_gap_ns)}"
    )
    if figures.bytes_to_host is not None:
        size = loop.per_step(figures.bytes_to_host)
        yield f"  {figures.bytes_to_host:,} bytes to the host" + (f", {size:,.0f} per step" if size is not None else "")
    if figures.waits_elsewhere is not None:
        yield f"  {figures.waits_elsewhere:,} of the waits on other threads than the loop's"


FIGURES: Final[Mapping[str, tuple[About, ...]]] = {
    "kernels": ("work",),
    "copies to the host": ("work", "copies"),
    "other copies and sets": ("work", "copies"),
    "waits": ("calls", "waits"),
    "allocations": ("calls", "waits"),
    "CUDA calls": ("calls",),
}
"""Figure → the parts of a recording that it follows from."""
BUSY: Final[tuple[About, ...]] = ("work", "busy")
"""The parts that the use of the GPU's time follows from."""


def counts(loop: Loop) -> dict[str, int]:
    """Counts of calls and work, by name: as many as were seen."""
    to_host = count_copies(loop.copies, True)
    seen = (
        sum(loop.kernels.values()),
        to_host,
        sum(loop.copies.values()) - to_host,
        waits(loop.calls),
        allocations(loop.calls),
        sum(loop.calls.values()),
    )
    return dict(zip(FIGURES, seen, strict=True))


def cells(loop: Loop, name: str, number: int) -> tuple[str, str]:
    """A count per step and in all. One that cannot be told is at least what was seen."""
    if loop.why_not(*FIGURES[name]) is not None:
        return "not observable", f"≥ {number:,}"
    each = loop.per_step(number)
    return "—" if each is None else f"{each:,.2f}", f"{number:,}"


def us(ns: int) -> str:
    return f"{ns / 1e3:,.1f} µs"


def shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def as_data(file: Path, recording: Recording, loop: Loop, invariants: Sequence[Invariant]) -> dict[str, object]:
    return {
        "schema": "specgate.trace/v1",
        "file": file.name,
        "profiler": recording.profiler,
        "devices": recording.devices,
        "steps": loop.steps,
        "told_by": loop.window.told_by,
        "notes": loop.notes,
        "unseen": loop.unseen,
        "partial": loop.partial,
        "counts": {name: None if loop.why_not(*FIGURES[name]) else n for name, n in counts(loop).items()},
        "at_least": counts(loop),
        "kernels": {name: {"launches": n, "gpu_ns": loop.kernel_ns[name]} for name, n in loop.kernels.items()},
        "copies": dict(loop.copies),
        "calls": dict(loop.calls),
        "loop": to_plain(LoopFigures, loop.figures) if loop.figures and loop.why_not(*BUSY) is None else None,
        "phases": {name: asdict(phase) for name, phase in loop.phases.items()},
        "attention": attention_in(loop.kernels),
        "invariants": [to_plain(Invariant, invariant) for invariant in invariants],
    }


def products_as_text(file: Path, products: Sequence[Product]) -> str:
    head = f"{file.name}: {len(products)} shapes of matrix products, {sum(p.count for p in products):,} products"
    rows = [f"  {p.count:>12,}  {p.m:>5} × {p.k:>6} × {p.n:>6}  {p.tag}" for p in products]
    return "\n".join([head, f"  {'count':>12}  {'M':>5}   {'K':>6}   {'N':>6}  tag", *rows])


def products_as_data(products: Sequence[Product]) -> dict[str, object]:
    return {
        "schema": "specgate.gemm_shapes/v1",
        "products": [{"tag": p.tag, "M": p.m, "K": p.k, "N": p.n, "count": p.count} for p in products],
    }
