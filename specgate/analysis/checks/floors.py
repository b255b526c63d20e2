"""Step times against the bytes that a step must read: no step is faster than memory allows.

A lower bound that holds for every engine whose memory was measured: the bytes of all steps of a cell, without what the
caches of the chip could keep from one step to the next, at the measured bandwidth and a tolerance for its measurement.
Bytes are what the engine states (`EngineFacts.traffic`), with the experts that it counted, or else with as many as a
single token reaches; but never less than the harness's own count of the target's weights
(`EngineFacts.least_weight_bytes`). Of several GPUs that share a target, each reads its part, and the bandwidth is that
of one; how many there are the harness sees by itself.

Not judged: servers, which show no steps; engines on another device than the one whose bandwidth was measured; machines
whose bandwidth was not measured. The cycle budget of a cell names the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specgate.analysis.cycle_accounting import moved_by
from specgate.contract import Block, EngineFacts
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.traffic import PassTraffic, Traffic
from specgate.errors import InvalidResult

GPU_CACHE_BYTES: Final = 256 << 20
"""Twice the largest last-level cache of a GPU of 2026."""
CPU_CACHE_BYTES: Final = 2304 << 20
"""The last-level caches of a host with two of the largest CPUs of 2026, for one that does not say what it has."""
TOLERANCE: Final = 0.10
"""Error of the measured bandwidth, beside twice its spread: clocks, and another pattern of reads."""


def check_floor(blocks: Sequence[Block], facts: EngineFacts | None, bandwidth: Bandwidth | None) -> None:
    """Check the mean step time of one cell. Raises InvalidResult with time and floor."""
    if facts is None or bandwidth is None or facts.device != bandwidth.device:
        return
    timed = [b for b in blocks if b.served is None and b.step_ns]
    steps = sum(len(b.step_ns) for b in timed)
    moved = least_bytes(timed, facts) - steps * cache_bytes(bandwidth)
    if not steps or moved <= 0:
        return
    tolerance = TOLERANCE + 2 * bandwidth.spread
    floor_ms = moved / steps / (bandwidth.bytes_per_s * (1 + tolerance)) * 1e3
    mean_ms = sum(sum(b.step_ns) for b in timed) / steps / 1e6
    if mean_ms < floor_ms:
        raise InvalidResult(
            f"{timed[0].cell.key}: faster than memory allows: a step takes {mean_ms:.4g} ms on average, but it reads "
            f"{moved / steps / 1e9:.4g} GB at least, which takes {floor_ms:.4g} ms at the measured "
            f"{bandwidth.bytes_per_s / 1e9:.4g} GB/s and {tolerance:.0%} more"
        )


def least_bytes(blocks: Sequence[Block], facts: EngineFacts) -> float:
    """The least that all steps of `blocks` read and write together."""
    steps = sum(max(row, default=-1) >= 0 for b in blocks for row in b.accepted)
    weights = steps * (facts.least_weight_bytes or 0)
    if facts.traffic is None:
        return weights
    fewest = Traffic(with_fewest_experts(facts.traffic.target), facts.traffic.draft)
    counted = [b for b in blocks if b.experts is not None]
    others = [b for b in blocks if b.experts is None]
    parts = (*moved_by(counted, facts.traffic).values(), *moved_by(others, fewest).values())
    return max(weights, sum(part.total for part in parts))


def with_fewest_experts(traffic: PassTraffic) -> PassTraffic:
    """The same pass where all its tokens are routed to the same experts."""
    if (experts := traffic.experts) is None:
        return traffic
    routed = experts.layers * experts.active * experts.expert_bytes
    return replace(traffic, weight_bytes=traffic.weight_bytes + routed, experts=None)


def cache_bytes(bandwidth: Bandwidth) -> int:
    """Bytes that the caches in front of the measured memory can keep from one step to the next."""
    if bandwidth.cache_bytes is not None:
        return bandwidth.cache_bytes
    return GPU_CACHE_BYTES if bandwidth.gpu_uuid else CPU_CACHE_BYTES
