"""Runs on a machine that had no CPU for them: told by the run's own samples, and made again.

The checks of clocks are not loosened for it. A scripted engine keeps no clock that sees a stall, so that a thread which
gets no CPU for seconds looks like an engine that leaves seconds out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specgate.analysis.checks.clocks import unexplained_ns
from specgate.contract import Block
from specgate.files.run_folder import RunFolder

STARVED_NS: Final = 30_000_000
"""A thread of a run that could have run, and waited for a CPU for so long within one block, was starved."""
STOOD_STILL_NS: Final = 200_000_000
"""More than this is not the call to an engine's process."""
ATTEMPTS: Final = 4
CLOCKS: Final = ("clocks_disagree", "slow_where_timed", "faster_than_verification")
"""Reasons for which a run is INVALID, and which a machine without a CPU for its engine can bring about."""


def starved_ns(run: Path) -> int:
    """The longest time for which a thread of this run waited for a CPU, or a CPU was stolen, within one block."""
    cpus = [block.cpu for block in RunFolder.open(run).lines(Block) if block.cpu is not None]
    return max((max(cpu.waited_ns or 0, cpu.stolen_ns or 0, cpu.throttled_ns or 0) for cpu in cpus), default=0)


def stood_still(run: Path) -> bool:
    """True if a block of this run took far longer than the engine says."""
    blocks = (block for block in RunFolder.open(run).lines(Block) if block.span_ns is not None)
    return any(unexplained_ns(block, whole=False) > STOOD_STILL_NS for block in blocks)


def spoilt(folder: Path) -> bool:
    """True if the clocks of a run or a comparison contradict each other, and the machine had no CPU for it."""
    if (comparison := folder / "ab.json").exists():
        return "of the time is unexplained" in comparison.read_text()
    clocks = any(result.reason_code in CLOCKS for result in RunFolder.open(folder).read_run().cells)
    return clocks and (starved_ns(folder) >= STARVED_NS or stood_still(folder))
