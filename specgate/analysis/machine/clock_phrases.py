"""The roles' SM clocks, compared like with like, in sentences. Gates and reports say the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from specgate.analysis.machine.clock_comparison import ClockShift, common_s, untold_parts
from specgate.contract.conditions import ClockComparison, GpuConditions, RoleClock


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


def unequal_lengths_in_words(gpu: GpuConditions, limit: float) -> Iterator[str]:
    """Roles whose mean clocks over all of their decoding lie further apart than the share `limit`, although over the
    same time they do not, or nothing is told there.
    """
    clocks, whole = gpu.common_clocks, gpu.sm_clock_mhz
    if clocks is None or len(whole) < 2:
        return
    low, high = min(whole, key=lambda role: whole[role]), max(whole, key=lambda role: whole[role])
    if whole[low] >= (1 - limit) * whole[high]:
        return
    shorter = clocks.decoding[low].part_s < clocks.decoding[high].part_s
    is_told = "decoding" not in untold_parts(clocks, limit)
    if (
        is_told and clocks.prefill and shorter and whole[high] > (clocks.decoding[high].mhz or 0)
    ):  # the clock rose later on
        yield (
            f"{low} decodes for a shorter time, more of it at the low clock after its prefill ({whole[low]:,.0f} MHz "
            f"over all of it, {high} {whole[high]:,.0f}), so the ratio understates its speed"
        )
    else:
        yield f"over all {_of_what(clocks)} {low} ran at {whole[low]:,.0f} MHz, {high} at {whole[high]:,.0f}"


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
    return ", ".join(f"{role} {_clock(clock)} ({clock.samples} samples)" for role, clock in of.items())


def _clock(clock: RoleClock) -> str:
    return "?" if clock.mhz is None else f"{clock.mhz:.0f} MHz"


def _counts(of: Mapping[str, RoleClock]) -> str:
    return ", ".join(f"{role} {clock.samples}" for role, clock in of.items())
