"""Machines of a fleet, and whether they are alike enough to share a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from specgate.analysis.machine.gpu_clocks import seen_by
from specgate.machine import inventory

Files = Mapping[str, bytes]
"""Name relative to a folder → content."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that measures one task at a time: a GPU of a host, or a share of a host's CPUs.

    `identity` tells it from all other places: the GPU's UUID, or the host's identity and a number. `name` is for
    people.
    """

    name: str
    identity: str


class NodeLost(Exception):
    """A task ended without a result: its process, its host or the connection to it was lost. The message says how."""


class Machines(Protocol):
    """Provides slots, and carries tasks out in them. `carry_out` is called from one thread for each slot."""

    @property
    def slots(self) -> Sequence[Slot]: ...

    def carry_out(self, slot: Slot, files: Files) -> Files:
        """Run the task in `files` in `slot`, and return the files that it left. Raises NodeLost."""

    def stop(self) -> None:
        """End whatever is being carried out: every `carry_out` under way raises NodeLost."""


GPU: Final = ("name", "memory_bytes", "driver", "power_limit_mw", "max_sm_clock_mhz")
CUDA: Final = "CUDA_VISIBLE_DEVICES"
"""Each slot has its own."""
HOST: Final = ("machine", "cpu", "cpus_usable")
"""Memory of the host is left out: virtual machines get more of it while they run."""


def unlike(environment: Mapping[str, Any], facts: Mapping[str, str | None], here: Mapping[str, str]) -> Iterator[str]:
    """Yield the differences of this machine from the one with this `environment` (env.json) and these `facts` (the
    run's fingerprint). `here`: the software of this machine.
    """
    for key, value in here.items():
        if (then := facts.get(key)) != value:
            yield f"{key}: {value} here, {then} where the run began"
    now: dict[str, Any] = inventory.environment()
    began, mine_too = (dict(of.get("variables") or {}) for of in (environment, now))
    for name in sorted({*began, *mine_too} - {CUDA}):
        if began.get(name) != mine_too.get(name):
            yield f"{name}: {mine_too.get(name)} here, {began.get(name)} where the run began"
    pairs = (
        ("host", HOST, environment.get("host") or {}, now["host"]),
        ("GPU", GPU, measured_gpu(environment), inventory.visible_gpu() or {}),
    )
    for label, keys, there, mine in pairs:
        for key in keys:
            if there.get(key) != mine.get(key):
                yield f"{label} {key}: {mine.get(key)} here, {there.get(key)} where the run began"


def measured_gpu(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    """The GPU that the machine of env.json measures on; {} without one."""
    return next(iter(seen_by(environment)), {})
