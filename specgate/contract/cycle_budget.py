"""Split of a cycle's time, the part of it that memory bandwidth dictates, and the limits of the speed-up.

Data classes only. `specgate.analysis.cycle_accounting` computes them from blocks; a run carries one `CycleBudget` per
cell. `docs/results.md` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from specgate.contract.routing import ExpertUse
from specgate.contract.traffic import Bytes

PartName = Literal["draft", "verify", "accept", "commit", "gap"]
TOLERANCE = 0.01
"""How far the sum of a cycle's parts may differ from the cycle's time, as a share of it."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The measured read bandwidth of the memory that an engine decodes from.

    `measured`: when, in ISO 8601.
    `gpu_uuid`: None on a CPU.
    `size`: bytes per read.
    `bytes_per_s`: the median over `repeats` reads.
    `spread`: interquartile range of the read times as a share of their median.
    `cache_bytes`: the last-level caches in front of it together; None where that is not known.
    """

    measured: str
    device: str
    gpu_uuid: str | None
    size: int
    repeats: int
    bytes_per_s: float
    spread: float
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the mean cycle. `gap` is the time that no phase accounts for: the host, and waiting for it.

    `ms`: milliseconds per cycle.
    `moved`: what it must move through memory at least, per cycle; None where that is not known.
    `floor_ms`: how long that takes at the measured bandwidth; None where that is not known.
    """

    name: PartName
    ms: float
    moved: Bytes | None = None
    floor_ms: float | None = None

    @property
    def above_floor_ms(self) -> float | None:
        """Milliseconds that could be saved; None without a floor.

        A part that is faster than its floor reads from a cache: nothing can be saved.
        """
        return None if self.floor_ms is None else max(0.0, self.ms - self.floor_ms)


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a speed-up. A ratio above 1 helps. `Waterfall` explains the names."""

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A measured speed-up as a product: speed-up = acceptance length × … × (baseline step / spec cycle) × ….

    `acceptance`: the acceptance length.
    `slots`: emitted tokens per step over the baseline's, as a share of the acceptance length. It is below 1 where slots
        have ended, tokens were cut off at the end of a request, or steps had no draft.
    `verify`, `draft`, `accept`, `commit`, `gap`: the baseline's step over the spec cycle, part by part. Each factor is
        the change of that ratio when this part of the baseline's step is replaced by the cycle's, one part after the
        other.
    `cost`: the whole of that ratio, in the place of its parts, where the engine does not split its steps.
    `prefill`: what whole requests lose by their prefill. A micro run has no such factor.
    `pairing`: the mean over pairs of blocks, divided by the ratio of the sums.
    """

    speedup: float
    factors: tuple[Factor, ...]
    prefill_share: float = 0.0
    """The share of prefill in the time that the spec cell's speed counts: 0 in a micro run."""

    @property
    def acceptance(self) -> float:
        """The acceptance length, which is the first factor."""
        return self.factors[0].ratio

    def with_decode(self, share: float) -> float:
        """The speed-up if decoding took `share` of its measured time and prefill took as long as it did."""
        return self.speedup / (self.prefill_share + (1 - self.prefill_share) * share)

    @property
    def cost(self) -> float:
        """The baseline's mean step time over the mean time of a spec cycle."""
        return prod(f.ratio for f in self.factors if f.name in ("verify", "draft", "accept", "commit", "gap", "cost"))


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest speed-ups that this pair can have on this device at the measured acceptance length.

    `highest`: the spec cycle at its floor, against the baseline as it was measured.
    `at_floors`: the baseline's step at its floor as well, which is what a perfect engine would show. It is below the
        measured speed-up where the baseline is further from its floor than the cycle is.
    """

    highest: float
    at_floors: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Acceptance lengths that a speed gate with the floor `min` needs.

    `needed`: the acceptance length at the measured cost; None where none would do, because prefill alone takes too
        long.
    `needed_at_floor`: with the cycle at its floor, against the baseline as it was measured; None where that floor is
        not known either.
    """

    rule: str
    min: float
    needed: float | None
    needed_at_floor: float | None
    reachable: bool | None
    """Whether `Limit.highest` is at least `min`; None where the floor is not known."""
    needed_overlap: float | None = None
    """The least overlap of experts at which the floor would be `reachable`, all else being as measured; 0 where
    independent tokens would do. None where not even equal choice would do, where the floor is not known, and for a
    target without experts.
    """


@dataclass(frozen=True, slots=True)
class CycleBudget:
    """The mean cycle of a cell over all its measured blocks: a baseline step or a speculative cycle.

    `cycle_ms`: the mean of the step times that the engine gives.
    `depth`: the mean number of cached positions per slot and step.
    `parts`: empty where the engine does not split its steps.
    `no_floor`: why a floor is missing; None where there is one.
    `waterfall`: of a spec cell whose speed-up was measured.
    `limit`: of such a cell where both it and its baseline have floors.
    `ceilings`: one per speed rule of the policy.
    `experts`: of a target with a mixture of experts, whose engine states its traffic.
    `link_bytes`: what each of several GPUs that share the target sends to the others per cycle; None for one. What the
        parts move is then what each GPU moves.
    """

    cycles: int
    cycle_ms: float
    depth: float
    parts: tuple[Part, ...]
    no_floor: str | None = None
    waterfall: Waterfall | None = None
    limit: Limit | None = None
    ceilings: tuple[Ceiling, ...] = ()
    experts: ExpertUse | None = None
    link_bytes: float | None = None

    @property
    def imbalance(self) -> float:
        """By how much the parts exceed the cycle, as a share of it; 0 where there are no parts."""
        return sum(p.ms for p in self.parts) / self.cycle_ms - 1 if self.parts and self.cycle_ms else 0.0

    @property
    def balanced(self) -> bool:
        """True if the parts add up to the cycle within TOLERANCE."""
        return abs(self.imbalance) <= TOLERANCE

    @property
    def floor_ms(self) -> float | None:
        """The floor of the whole cycle: the sum over its parts, which the engine runs one after the other. None without
        floors.
        """
        floors = [p.floor_ms for p in self.parts if p.floor_ms is not None]
        return sum(floors) if floors and len(floors) == len(self.parts) else None

    @property
    def share_at_floor(self) -> float | None:
        """The cycle's time with every part at its floor, as a share of the measured time. None without floors."""
        above = [p.above_floor_ms for p in self.parts if p.above_floor_ms is not None]
        if not above or len(above) < len(self.parts):
            return None
        return 1 - sum(above) / sum(p.ms for p in self.parts)
