"""GPU clocks of the roles beside each other, and in words.

A clock changes along a block. A long prefill heats the GPU to its power cap, so decoding begins at a low clock and ends
at the highest. The role that decodes for a shorter time then has the lower mean, although nothing differed. So only the
part that every role has is compared, and each stretch of it counts alike for all roles (direct standardisation:
Fleiss, Levin & Paik, Statistical Methods for Rates and Proportions, 3rd edition, chapter 19).

Samples within a block are not independent, so the standard error is that of a mean over clusters, a cluster being a
block, stratified by stretches (Cochran, Sampling Techniques, 3rd edition, chapters 5 and 9A).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from specgate.analysis.grouping import collected, grouped
from specgate.analysis.stats import t_quantile
from specgate.contract import Block
from specgate.contract.conditions import POWER_CAPS, ClockComparison, GpuConditions, RoleClock, Sample, clock_readings

STRETCH_S: Final = 0.25
"""Readings whose times since the part began lie in the same stretch of this many seconds are at the same time. It is
half of what lies between two whole samples, so a few blocks reach every stretch even where nothing else was read.
"""
IN_STRETCH: Final = 2
"""A stretch is compared where every role has this many samples in it: one alone does not tell how far they scatter."""
FREEDOM: Final = 3
"""With fewer degrees of freedom, samples do not tell how far clocks scatter: clocks move in steps, and two or three
agree by chance.
"""
LOWERED: Final = 0.99
"""A clock below this share of the highest one is lowered: the steps of a GPU's clocks are smaller."""
MOSTLY: Final = 0.5
"""A power cap explains the lower clock of a role where it is the reason of at least this share of its lowered clocks.
The others are those on the way up again, which have no reason.
"""
CONFIDENCE: Final = 0.99865
"""Of a difference, on one side: that of three standard errors under a normal distribution."""

Spans = Callable[[Block], tuple[int, int]]
"""Block → begin and end of a part of it, in nanoseconds on the monotonic clock."""


_Clock = tuple[int, int, bool | None, bool | None]
"""(ns on the monotonic clock, MHz, lowered, at a power cap), as in `_Reading`."""


class _Reading(NamedTuple):
    """One sample of a role: its block, its stretch, its clock in MHz, whether it is lowered, and whether the GPU was at
    a power cap. None where nothing tells.
    """

    block: int
    stretch: int
    mhz: int
    lowered: bool | None
    capped: bool | None


class ClockShift(NamedTuple):
    """Distance between the clocks of two roles, and the least distance that the samples could tell.

    `part`: "decoding" or "prefill". `shift`, `margin`: as shares of the higher clock. Where one is None, nothing tells.
    `of_power`: the power cap has lowered the lower one, and that role is at the cap at least as often as the other.
        Both run in turn, so its own work does that, and what the clock costs it is a part of what it costs.
    `roles`: which two they are.
    """

    part: str
    shift: float | None
    margin: float | None
    of_power: bool = False
    roles: tuple[str, str] = ("", "")

    def beyond(self, limit: float) -> bool:
        """True if the clocks surely differ, and by more than `limit`."""
        return self.shift is not None and self.margin is not None and self.shift > max(limit, self.margin)

    def told(self, limit: float) -> bool:
        """True if the samples tell a difference of `limit`, or the one that they show."""
        return self.margin is not None and (self.margin <= limit or self.beyond(limit))


def compared_clocks(samples: Sequence[Sample], blocks: Sequence[Block], parts: Mapping[str, Spans]) -> ClockComparison:
    """The clocks of every role in `blocks`. `parts`: "decoding", and "prefill" where blocks hold their own."""
    clocks = sorted((clock for s in samples for clock in _clocks_of(s)), key=lambda clock: clock[0])
    return ClockComparison(**{part: _role_clocks(clocks, blocks, span_of) for part, span_of in parts.items()})


def _clocks_of(sample: Sample) -> Iterator[_Clock]:
    """The clock that was read with a sample, and those that were read since the sample before it."""
    if sample.gpu is None:
        return
    highest = sample.gpu.max_sm_clock_mhz
    for at, mhz, reasons, _ in clock_readings(sample):
        if mhz:
            capped = None if reasons is None else bool(reasons & POWER_CAPS)
            yield at, mhz, None if highest is None else mhz < LOWERED * highest, capped


def clock_shifts(clocks: ClockComparison) -> list[ClockShift]:
    """Every pair of roles, in decoding and then in prefill."""
    parts = (("decoding", clocks.decoding), ("prefill", clocks.prefill))
    return [_shift(part, of[a], of[b])._replace(roles=(a, b)) for part, of in parts for a, b in combinations(of, 2)]


def untold_parts(clocks: ClockComparison, limit: float) -> list[str]:
    """The parts in which the samples of some two roles do not tell whether their clocks differ by `limit`."""
    return list(dict.fromkeys(shift.part for shift in clock_shifts(clocks) if not shift.told(limit)))


def common_s(of: Mapping[str, RoleClock]) -> float:
    """For how many seconds of a part the roles are compared: the shortest of their typical lengths."""
    return min(clock.part_s for clock in of.values())


def _shift(part: str, a: RoleClock, b: RoleClock) -> ClockShift:
    if not a.mhz or not b.mhz:
        return ClockShift(part, None, None)
    lower = a if a.mhz < b.mhz else b
    half, highest = _margin(a, b), max(a.mhz, b.mhz)
    other = b if lower is a else a
    of_power = (lower.explained or 0.0) >= MOSTLY and (lower.capped or 0.0) >= (other.capped or 0.0)
    return ClockShift(part, abs(a.mhz - b.mhz) / highest, None if half is None else half / highest, of_power)


def _margin(a: RoleClock, b: RoleClock) -> float | None:
    """Half the width, in MHz, of the interval of the difference; degrees of freedom by Welch and Satterthwaite."""
    if a.standard_error_mhz is None or b.standard_error_mhz is None:
        return None
    variances = [(clock.standard_error_mhz or 0.0) ** 2 for clock in (a, b)]
    total = sum(variances)
    if not total:
        return 0.0
    freedom = total**2 / sum(v**2 / clock.freedom for v, clock in zip(variances, (a, b), strict=True))
    return t_quantile(CONFIDENCE, freedom) * math.sqrt(total)


def _role_clocks(clocks: Sequence[_Clock], blocks: Sequence[Block], span_of: Spans) -> dict[str, RoleClock]:
    """Role name → its clock over the part of its blocks that `span_of` gives, as far as every role has it.

    `clocks`: in order of time.
    """
    spans = ((block.role.name, *span_of(block)) for block in blocks)
    lengths = collected((role, max(0, end - begin) / 1e9) for role, begin, end in spans)
    typical = {role: statistics.median(seconds) for role, seconds in lengths.items()}
    common = min(typical.values(), default=0.0)
    readings: dict[str, list[_Reading]] = {role: [] for role in typical}
    for number, block in enumerate(blocks):
        readings[block.role.name] += _readings(number, span_of(block), common, clocks)
    weights = _weights(readings.values())
    return {role: _clock(seconds, weights, typical[role]) for role, seconds in readings.items()}


def _readings(block: int, span: tuple[int, int], common_s: float, clocks: Sequence[_Clock]) -> Iterator[_Reading]:
    begin, end = span
    last = min(end, begin + round(common_s * 1e9))
    first, beyond = (bisect_left(clocks, at, key=lambda clock: clock[0]) for at in (begin, last + 1))
    for at, mhz, lowered, capped in clocks[first:beyond]:
        yield _Reading(block, int((at - begin) / 1e9 / STRETCH_S), mhz, lowered, capped)


def _weights(roles: Iterable[Sequence[_Reading]]) -> dict[int, float]:
    """Stretch → its weight for every role: the fewest samples that one of them has in it. They add up to 1."""
    counts = [Counter(reading.stretch for reading in role_readings) for role_readings in roles]
    fewest = {stretch: min(count[stretch] for count in counts) for stretch in set().union(*counts)}
    shared = {stretch: n for stretch, n in sorted(fewest.items()) if n >= IN_STRETCH}
    return {stretch: n / sum(shared.values()) for stretch, n in shared.items()}


def _clock(readings: Sequence[_Reading], weights: Mapping[int, float], part_s: float) -> RoleClock:
    """The weighted mean of one role over its stretches, and the standard error of that over blocks.

    A sample deviates from the mean of its stretch, so how the clock changes along the part is no scatter.
    """
    of = grouped((r for r in readings if r.stretch in weights), lambda r: r.stretch)
    if not of:
        return RoleClock(None, None, 0, 0, 0, part_s)
    means = {stretch: statistics.fmean(r.mhz for r in stretch_readings) for stretch, stretch_readings in of.items()}
    deviations: dict[int, float] = defaultdict(float)
    for stretch, stretch_readings in of.items():
        unbiased = math.sqrt(len(stretch_readings) / (len(stretch_readings) - 1))
        for r in stretch_readings:
            deviations[r.block] += weights[stretch] / len(stretch_readings) * unbiased * (r.mhz - means[stretch])
    blocks, count = len(deviations), sum(map(len, of.values()))
    freedom = min(blocks - 1, count - len(of))
    error = math.sqrt(math.fsum(d * d for d in deviations.values())) if freedom >= FREEDOM else None
    mean = math.fsum(weights[stretch] * mhz for stretch, mhz in means.items())
    with_reasons = [r for stretch_readings in of.values() for r in stretch_readings if r.capped is not None]
    explained = _capped([r for r in with_reasons if r.lowered])
    return RoleClock(mean, error, freedom, blocks, count, part_s, _capped(with_reasons), explained)


def _capped(readings: Sequence[_Reading]) -> float | None:
    return statistics.fmean(bool(r.capped) for r in readings) if readings else None


def compared_in_words(clocks: ClockComparison) -> str:
    """The clock of every role in decoding, then in prefill, with how many samples it is the mean of."""
    decoding = f"{_clocks(clocks.decoding)} over the first {common_s(clocks.decoding):.2f} s {_of_what(clocks)}"
    has_prefill = any(clock.mhz is not None for clock in clocks.prefill.values())
    return f"{decoding}; in prefill {_clocks(clocks.prefill)}" if has_prefill else decoding


def samples_in_words(clocks: ClockComparison) -> str:
    """Number of samples of each role that were compared: `decoding: baseline 9, spec-3 7`."""
    parts = (("decoding", clocks.decoding), ("prefill", clocks.prefill))
    return "; ".join(f"{part}: {_counts(of)}" for part, of in parts if of)


def untold_in_words(clocks: ClockComparison, limit: float) -> str | None:
    """In which part the samples do not tell clocks apart that differ by the share `limit`; None where all tell."""
    where = {"decoding": "while decoding", "prefill": "in prefill"}
    of = {"decoding": clocks.decoding, "prefill": clocks.prefill}
    parts = [
        f"{where[part]} ({_counts(of[part])} at the same times)"
        for part in untold_parts(clocks, limit)
        if part == "decoding" or any(clock.samples for clock in of[part].values())  # else it is over before a sample
    ]
    return f"too few samples to compare the roles' clocks {' and '.join(parts)}" if parts else None


def power_in_words(clocks: ClockComparison, shifts: Collection[ClockShift]) -> Iterator[str]:
    """Yield a sentence per part in which the power cap explains one of `shifts`: it lowers one role's clock more."""
    for part, of in (("decoding", clocks.decoding), ("prefill", clocks.prefill)):
        if any(s.part == part and s.of_power for s in shifts):
            low = min((role for role in of if of[role].mhz), key=lambda role: of[role].mhz or 0.0)
            others = ", ".join(_at_cap(role, clock) for role, clock in of.items() if clock.mhz and role != low)
            yield (
                f"in {part} the power cap lowers the clock of {_at_cap(low, of[low])}, below {others}: that is a part "
                f"of what {low} costs on this GPU"
            )


def _at_cap(role: str, clock: RoleClock) -> str:
    return f"{role} ({clock.mhz:,.0f} MHz, at the cap in {clock.capped or 0.0:.0%} of the samples)"


def same_time_in_words(gpu: GpuConditions) -> str | None:
    """The clocks at the same times, beside `sm_clock_mhz` and in its order; None where they are the same."""
    common = gpu.common_clocks
    known = {role: clock.mhz for role, clock in common.decoding.items() if clock.mhz is not None}
    if all(round(known.get(role, mhz)) == round(mhz) for role, mhz in gpu.sm_clock_mhz.items()):
        return None
    clocks = ", ".join(f"{role} {known[role]:,.0f}" for role in gpu.sm_clock_mhz if role in known)
    return f"over the first {common_s(common.decoding):.2f} s {_of_what(common)} {clocks}"


def _of_what(clocks: ClockComparison) -> str:
    return "of decoding" if clocks.prefill else "of the blocks"


def _clocks(of: Mapping[str, RoleClock]) -> str:
    return ", ".join(f"{role} {_clock_in_words(clock)} ({clock.samples} samples)" for role, clock in of.items())


def _clock_in_words(clock: RoleClock) -> str:
    return "?" if clock.mhz is None else f"{clock.mhz:.0f} MHz"


def _counts(of: Mapping[str, RoleClock]) -> str:
    return ", ".join(f"{role} {clock.samples}" for role, clock in of.items())
