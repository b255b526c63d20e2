"""PERF_MODE requires a tuned configuration for every product. What an engine has run is logged for the tuner."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MANY_ROWS
from specgate.backends.eagle3.cupy.tuned.gemms import Lookup
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.contract import PairRef
from specgate.errors import EnvironmentRefused

SHOWN = 3
"""Shapes that a message names."""
COMMAND_OF_PARTS = (
    "run once without PERF_MODE and with -o log_shapes=shapes.json, then "
    "specgate engine tune gemm --missing --shapes shapes.json"
)
"""A pair's own sizes do not tell those of the parts that several GPUs have of it."""


def describe(tuned: Tuned, lookups: Sequence[Lookup]) -> str:
    """Such as `11 of 11 from nvidia-h200.json`. Without folders, because runs are shared with others.

    It says which products a warpgroup sums: in all steps, as the engine's largest step decides.
    """
    files = " and ".join(source.file.name for source in tuned.sources)
    by_rule = sum(not lookup.searched for lookup in lookups)
    beside = f", {by_rule} of more than {MANY_ROWS} rows by a rule" if by_rule else ""
    of_groups = sum(lookup.by_wgmma for lookup in lookups)
    beside += f", {of_groups} by wgmma in every step, as the largest decides" if of_groups else ""
    known = "" if tuned.knows_device else f", never tuned on {tuned.device}"
    hits = f"{sum(lookup.hit for lookup in lookups)} of {len(lookups)}"
    return hits + (f" from {files}" if files else "") + beside + known


def never_tuned(tuned: Tuned, pair: PairRef, ranks: int = 1) -> tuple[str, ...]:
    """Return a warning on a kind of GPU on which nothing was tuned; see `require`."""
    if tuned.knows_device:
        return ()
    how = command(pair) if ranks == 1 else COMMAND_OF_PARTS
    return (f"nothing was tuned on {tuned.device}: kernels divide their work by its limits. Tune them: {how}",)


def require(tuned: Tuned, lookups: Sequence[Lookup], pair: PairRef, *, perf_mode: bool, ranks: int = 1) -> None:
    """Print what was found; raise EnvironmentRefused in PERF_MODE where a weight is not tuned. `ranks`: among how many
    GPUs the target is divided, so that a product is that of a part.
    """
    print(f"tuned products: {describe(tuned, lookups)}", flush=True)
    if perf_mode and not all(lookup.searched for lookup in lookups):
        print(f"PERF_MODE: a rule divides products of more than {MANY_ROWS} rows, which breaks I2", flush=True)
    missed = [lookup.shape for lookup in lookups if not lookup.found]
    if not missed:
        return
    how = command(pair) if ranks == 1 else COMMAND_OF_PARTS
    if perf_mode:
        raise EnvironmentRefused(
            f"PERF_MODE on {tuned.device}: no tuned configuration for {len(missed)} of {len(lookups)} products: "
            f"{explained(tuned, missed)}",
            hint=f"tune them: {how}",
        )
    print(f"not tuned: {explained(tuned, missed)}\n  tune them: {how}", flush=True)


def explained(tuned: Tuned, missed: Sequence[GemmShape]) -> str:
    """Return the products without a configuration, and on further lines the reasons."""
    return "\n  ".join((named(missed), *tuned.misses(missed)))


def named(shapes: Sequence[GemmShape]) -> str:
    weights = list(dict.fromkeys(map(str, shapes)))
    more = f" and {len(weights) - SHOWN} more" if len(weights) > SHOWN else ""
    return ", ".join(weights[:SHOWN]) + more


def command(pair: PairRef) -> str:
    """The command that tunes those products of `pair` that are not tuned yet."""
    draft = ["--draft", str(pair.draft)] if pair.draft else []
    return shlex.join(["specgate", "engine", "tune", "gemm", "--missing", "--target", str(pair.target), *draft])


class ShapeLog:
    """A file of products that grows when steps are made, never while one runs. What it held before stays in it, because
    one run may have several engines.
    """

    def __init__(self, file: Path) -> None:
        """Raises UsageError where `file` holds something else."""
        from specgate.backends.eagle3.nouns.gemms import read_shapes

        self.file = file
        self.shapes = set(read_shapes(file) if file.exists() else ())

    def add(self, shapes: Iterable[GemmShape]) -> None:
        """Raises EnvironmentRefused where the file cannot be written."""
        from specgate.backends.eagle3.nouns.gemms import write_shapes

        self.shapes.update(shapes)
        write_shapes(self.file, self.shapes)
