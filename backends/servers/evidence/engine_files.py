"""Findings about PERF_MODE invariants in an engine's own files: its logs, and the products that TurboMind lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from specgate.analysis.traces.gemm_shapes import has_shapes, read_shapes
from specgate.backends.servers.evidence.log_lines import LOG_LINES
from specgate.backends.servers.evidence.log_reading import findings_in
from specgate.contract import Finding, Role
from specgate.contract.protocols import cleaned
from specgate.errors import UsageError

LISTS_PRODUCTS: Final = ("lmdeploy",)
SHOWN: Final = 3
"""Products that a finding names."""
LONGEST_TAG: Final = 60


def findings_of_files(engine: str, role: Role, files: Iterable[tuple[Path, int]]) -> Iterator[Finding]:
    """Yield the findings in `files` of the engine with this adapter name in `role`. Each file is read from its byte
    offset on.
    """
    for file, start in files:
        if engine in LISTS_PRODUCTS and has_shapes(file):
            yield from products_in(file) if role.speculative else ()
        else:
            yield from findings_in(file, LOG_LINES.get(engine, ()), speculative=role.speculative, start=start)


def products_in(file: Path) -> Iterator[Finding]:
    """The products of the draft, as TurboMind lists them: evidence beside I2 that holds and breaks nothing. A list that
    cannot be read says nothing.
    """
    try:
        products = read_shapes(file)
    except UsageError:
        return
    if not products:
        return
    first = ", ".join(
        f"{cleaned(p.tag)[:LONGEST_TAG]} {p.m} × {p.k} × {p.n} ({p.count:,} times)" for p in products[:SHOWN]
    )
    more = f", and {len(products) - SHOWN} more" if len(products) > SHOWN else ""
    yield Finding(
        invariant="I2",
        reason_code="products_listed",
        breaks=False,
        count=sum(p.count for p in products),
        where=file.name,
        text=first + more,
        meaning=f"the engine lists {len(products)} shapes of matrix products, and not which of them were tuned",
    )


def check_log(file: Path) -> None:
    """Raise UsageError where a file that is given as a log is a list of products that cannot be read."""
    if has_shapes(file):
        read_shapes(file)
