"""Describe in sentences the host during the blocks of a point. Gates and reports say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from specgate.analysis.grouping import collected
from specgate.analysis.machine.disturbed_blocks import limit_of
from specgate.contract.conditions import HostJudgement

CAUSES: Final[Mapping[str, str]] = {
    "other_cpu_share": "others used up to {} of the CPU time",
    "cpu_wait": "a thread waited for a CPU for up to {} of the block",
    "stolen": "a hypervisor took up to {} of a CPU",
    "throttled": "the control group's limit held threads back for up to {} of the block",
    "pressure": "some task waited for a CPU for up to {} of the block",
}
"""Reason code of a disturbance → what happened."""
COUNTERS: Final[Mapping[str, str]] = {
    "cpu": "the counters of a block",
    "busy_ns": "the CPUs' busy time",
    "ours_ns": "our own CPU time",
    "waited_ns": "the run-queue delay",
    "pressure_ns": "the pressure on the CPUs",
    "throttled_ns": "the control group's limit",
}
"""Counter → its name."""


def causes(host: HostJudgement) -> str:
    """List the causes of disturbance with block counts, largest share and limit; the most frequent cause first."""
    of = collected((disturbance.reason_code, disturbance.share) for disturbance in host.disturbed)
    ordered = sorted(of.items(), key=lambda item: -len(item[1]))
    return ", ".join(
        f"{CAUSES[code].format(f'{max(shares):.0%}')} (at most {limit_of(code, host.limits):.0%}) in {len(shares)}"
        for code, shares in ordered
    )


def set_aside_in_words(host: HostJudgement) -> str:
    """Number of rounds that were set aside, and the reason. There must be some."""
    return f"{len(host.set_aside)} of {host.rounds} rounds set aside: {disturbed(host)}"


def too_many_in_words(host: HostJudgement) -> str:
    """Sentence that more is disturbed than may be set aside, and by what."""
    allowed = f"{host.limits.max_set_aside:.0%} may be set aside"
    return f"{host.too_many} of {host.rounds} rounds are disturbed, and at most {allowed}: {disturbed(host)}"


def disturbed(host: HostJudgement) -> str:
    return f"of {host.blocks} blocks {len(host.disturbed)} disturbed; {causes(host)}"


def asides(host: HostJudgement) -> Iterator[str]:
    """Yield further facts for a reader: that the engine waits for itself, and counters that were not seen."""
    if host.starved:
        blind = host.blocks - host.seen.get("cpu_wait", 0)
        yield (
            f"the engine's threads want {host.cpus_wanted:.1f} CPUs and there are {host.cpus:g}: it waits for itself, "
            f"so its waits were not judged in {blind} of {host.blocks} blocks"
        )
    if host.unseen:
        yield "not seen: " + ", ".join(f"{COUNTERS.get(name, name)} ({why})" for name, why in host.unseen.items())
