"""Where the time of a cycle goes, what of it is physics, and what follows for the speed-up. Nouns only.

`cycle_accounting.py` makes them of blocks; a run carries one `CycleBudget` per cell. Formulas: `docs/cycle-budget.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from specgate.core.traffic import Bytes

PartName = Literal["draft", "verify", "accept", "commit", "gap"]
TOLERANCE = 0.01
"""By which the parts of a cycle may miss its time."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Of reading the memory that an engine decodes from: `bytes_per_s` is the median over `repeats` reads of `size`
    bytes, `spread` the range between their quartiles, relative to it. `gpu_uuid` is None on a CPU.
    """

    measured: str
    device: str
    gpu_uuid: str | None
    size: int
    repeats: int
    bytes_per_s: float
    spread: float


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the mean cycle. `moved`: what it must move at least, `floor_ms`: how long that takes at the measured
    bandwidth; None where it is not known. `gap` is what no phase accounts for: the host, and waiting for it.
    """

    name: PartName
    ms: float
    moved: Bytes | None = None
    floor_ms: float | None = None

    @property
    def above_floor_ms(self) -> float | None:
        """What could be won. A part that is faster than its floor has what it reads in a cache: nothing."""
        return None if self.floor_ms is None else max(0.0, self.ms - self.floor_ms)


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a speed-up: above 1 it helps. Names as in `Waterfall`."""

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A measured speed-up as a product: speed-up = acceptance length × … × (baseline step / spec cycle) × ….

    `acceptance`: the acceptance length; `slots`: what of it is emitted (slots that have ended, tokens cut at an end,
    steps without a draft); then the baseline's step over the spec cycle, part by part: `verify`, `draft`, `accept`,
    `commit`, `gap`, each what the ratio becomes when that part of the baseline's step gives way to the cycle's, or
    `cost` as one where the engine does not split; `prefill`: what whole requests lose (1 in a micro run); `pairing`:
    mean of the pairs over the ratio of the sums.
    """

    speedup: float
    factors: tuple[Factor, ...]
    prefill_share: float = 0.0
    """Of the time that the spec cell's speed counts: 0 in a micro run."""

    @property
    def acceptance(self) -> float:
        return self.factors[0].ratio

    def with_decode(self, share: float) -> float:
        """The speed-up if decoding took `share` of its time, prefill staying as it is."""
        return self.speedup / (self.prefill_share + (1 - self.prefill_share) * share)

    @property
    def cost(self) -> float:
        """The baseline's mean step over the mean spec cycle."""
        return prod(f.ratio for f in self.factors if f.name in ("verify", "draft", "accept", "commit", "gap", "cost"))


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest speed-ups of this pair on this device, at the acceptance length that was measured.

    `highest`: the spec cycle at its floor, against the baseline as it was measured. `at_floors`: the baseline's step at
    its floor as well, so what a perfect engine would show; below the measured speed-up where the baseline is further
    from its floor than the cycle is.
    """

    highest: float
    at_floors: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a speed gate asks, in acceptance lengths: `needed` at the measured cost; `needed_at_floor` with the cycle at
    its floor, against the baseline as measured. None: no acceptance length would do (prefill alone takes too long), or
    the floor is not known.
    """

    rule: str
    min: float
    needed: float | None
    needed_at_floor: float | None
    reachable: bool | None
    """Whether `Limit.highest` is at least `min`; None where the floor is not known."""


@dataclass(frozen=True, slots=True)
class CycleBudget:
    """The mean cycle of a cell: baseline step or speculative cycle, over all measured blocks.

    `cycle_ms` is the mean of what the engine says of its steps, `depth` the mean of cached positions per slot and
    step. `parts` is empty where the engine does not split its steps; `no_floor` says why a floor is missing. A spec
    cell whose speed-up was measured has a `waterfall`, and a `limit` where both cells have floors; `ceilings` are those
    of the policy's speed rules.
    """

    cycles: int
    cycle_ms: float
    depth: float
    parts: tuple[Part, ...]
    no_floor: str | None = None
    waterfall: Waterfall | None = None
    limit: Limit | None = None
    ceilings: tuple[Ceiling, ...] = ()

    @property
    def imbalance(self) -> float:
        """By how much the parts exceed the cycle, relative to it; 0 where there are none."""
        return sum(p.ms for p in self.parts) / self.cycle_ms - 1 if self.parts and self.cycle_ms else 0.0

    @property
    def balanced(self) -> bool:
        return abs(self.imbalance) <= TOLERANCE

    @property
    def floor_ms(self) -> float | None:
        """Of the whole cycle: its parts one after the other, as the engine runs them."""
        floors = [p.floor_ms for p in self.parts if p.floor_ms is not None]
        return sum(floors) if floors and len(floors) == len(self.parts) else None

    @property
    def share_at_floor(self) -> float | None:
        """The cycle's time with every part at its floor, as a share of what was measured."""
        above = [p.above_floor_ms for p in self.parts if p.above_floor_ms is not None]
        if not above or len(above) < len(self.parts):
            return None
        return 1 - sum(above) / sum(p.ms for p in self.parts)
