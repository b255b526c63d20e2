"""Show a benchmark of a prefill's parts as JSON, and as tables on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specgate.backends.eagle3.nouns.kernel_bench import PREFILL_SCHEMA, WHOLE, PartTiming, PrefillBench, used_parts_us
from specgate.backends.eagle3.tuning.kernel_report import WIDTH as WIDTH

COLUMNS: Final = ("part", "by", "times", "ms", "floor", "share", "TFLOP/s", "TB/s", "MHz", "W")
LEFT: Final = ("part", "by")


def as_record(bench: PrefillBench) -> dict[str, Any]:
    """The benchmark as JSON-ready data, with what follows from it.

    That is, per part, its larger floor (`floor_us`), the `share` that this is of its time, and whether its result is
    `right`; and per length, in microseconds of one prefill, `used_parts_us`, all parts as the engine does them. An
    error that is not finite is stored as null.
    """
    plain = asdict(bench)
    plain["parts"] = [
        {
            **asdict(part),
            "error": part.error if math.isfinite(part.error) else None,
            "right": part.right,
            "floor_us": bench.floor_us(part),
            "share": bench.share(part),
        }
        for part in bench.parts
    ]
    sums = {str(length): used_parts_us(parts) for length, parts in bench.lengths()}
    return {"schema": PREFILL_SCHEMA, **plain, "used_parts_us": sums}


def show(bench: PrefillBench, console: Console) -> None:
    """Print one table per length, at most WIDTH columns wide, and what went wrong."""
    for length, parts in bench.lengths():
        console.print(
            Text(f"{bench.pair}, a prompt of {length} tokens, attention by {bench.attention}, {bench.device}")
        )
        console.print(table_of(bench, parts))
        console.print(Text(summary(bench, parts)))
    console.print(
        Text(
            "ms and floors are of one prefill; *: the fused way, by the best library; "
            f"floors at {bench.flops_per_s / 1e12:.0f} TFLOP/s (a square product) and "
            f"{bench.bytes_per_s / 1e12:.3f} TB/s (a plain read), both measured in this run; {bench.seconds:.0f} s"
        )
    )
    for line in notes(bench):
        console.print(Text(line))


def table_of(bench: PrefillBench, parts: tuple[PartTiming, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in LEFT else "right", overflow="fold")
    for part in parts:
        table.add_row(
            Text(part.part if part.right else f"{part.part} WRONG", style="" if part.right else "bold red"),
            f"{part.how}{' *' if part.used else ''}",
            str(part.times),
            *figures(bench, part),
        )
    return table


def figures(bench: PrefillBench, part: PartTiming) -> Iterator[str]:
    if part.us is None or (share := bench.share(part)) is None:
        yield "failed"
        yield from [""] * (len(COLUMNS) - 4)
        return
    yield f"{part.us_per_prompt / 1e3:.2f}"
    yield f"{bench.floor_us(part) * part.times / 1e3:.2f}"
    yield f"{share:.1%}"
    yield f"{part.flops / part.us / 1e6:.0f}" if part.flops else ""
    yield f"{part.size / part.us / 1e6:.2f}"
    yield f"{part.sm_clock_mhz:.0f}" if part.sm_clock_mhz is not None else ""
    yield f"{part.power_w:.0f}" if part.power_w is not None else ""


def summary(bench: PrefillBench, parts: tuple[PartTiming, ...]) -> str:
    """The parts' sum beside the whole: what is left lies between the parts."""
    alone = used_parts_us(parts)
    whole = next((part.us for part in parts if part.part == WHOLE and part.used), None)
    said = f"all parts, each as fast as it is alone: {alone / 1e3:.2f} ms"
    return (
        said
        if whole is None
        else f"{said}; the whole {whole / 1e3:.2f} ms, between the parts {(whole - alone) / 1e3:.2f} ms"
    )


def notes(bench: PrefillBench) -> Iterator[str]:
    """What went wrong: results that differ from the oracle's, and, each reason once, what could not be done."""
    for part in bench.parts:
        if not part.right:
            limit = f"at most {part.tolerance:g} is right"
            yield f"{part.length}: {part.part} by {part.how}: relative error {part.error:.3g}, {limit}"
    failed = {(part.part, part.how, part.reason): part for part in reversed(bench.parts) if part.us is None}
    for (name, how, reason), part in failed.items():
        yield f"{part.length}: {name} by {how} failed: {reason}"
