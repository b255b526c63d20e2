"""Requests whose prefill heats a GPU to its power cap, so that decoding begins at a low clock; with its samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from specgate.contract import Block, Plan, Run
from specgate.contract.conditions import Sample
from tests.support.factories import blocks_of, plan_of, scenario
from tests.support.surroundings import SECOND, lasting, sample, watched_run

Clock = Callable[[float], float]
"""Seconds since decoding began → SM clock in MHz."""
BESIDE_NS, PREFILL_NS = SECOND // 10, SECOND // 2
PREFILL_MHZ, HIGHEST_MHZ = 1530, 1980
EVERY_NS = 518_000_000
"""Between two samples: half a second and what taking one costs, as seen on an H200's host."""
LENGTHS = {"baseline": 3.2, "spec-3": 2.25}
"""Seconds of decoding, as seen with four requests of 16K tokens."""


def heated_clock(at_s: float) -> float:
    """As seen on an H200 after a prefill of 4 x 16K tokens."""
    return 1_480 if at_s < 1.5 else 1_860 if at_s < 1.75 else HIGHEST_MHZ


def answered_late(answering: Mapping[str, float], *, stating: Collection[str]) -> Run:
    """Whole requests, as seen with 32K tokens and 2,048 new ones on an H100 at its power cap: prefill takes 1.25 s, and
    its clock falls from the highest to 1,400 MHz. `answering`: role → seconds from the last token until the harness has
    the block. `stating`: the roles whose blocks say when prefill began.
    """
    lengths = {"baseline": 16.0, "spec-3": 5.8}
    plan = plan_of(replace(scenario(prompt_sets=8), kind="full"))
    prefill_ns, made = round(1.25 * SECOND), list[Block]()
    samples, begin = [sample(0, sm_clock_mhz=HIGHEST_MHZ)], SECOND
    for block in blocks_of(plan):
        stretched = lasting(block, round(lengths[block.role.name] * SECOND))
        began = begin + SECOND // 50
        decoding = began + prefill_ns
        end = decoding + stretched.elapsed_ns + round(answering[block.role.name] * SECOND)
        own = replace(stretched, prefill_ns=prefill_ns, own_prefill=True, span_ns=(begin, end))
        made.append(replace(own, began_ns=began) if block.role.name in stating else own)
        for at in range(begin, end, SECOND // 10):
            into = min(1.0, max(0.0, (at - began) / prefill_ns))
            mhz = round(HIGHEST_MHZ - 580 * into) if at < decoding else HIGHEST_MHZ
            why = 0x4 if mhz < HIGHEST_MHZ else 0
            samples.append(sample(at, sm_clock_mhz=mhz, max_sm_clock_mhz=HIGHEST_MHZ, clock_event_reasons=why))
        begin = end + SECOND // 4
    return watched_run([*samples, sample(begin, sm_clock_mhz=HIGHEST_MHZ)], made, plan)


def heated(
    clock: Clock = heated_clock,
    lengths: Mapping[str, float] = LENGTHS,
    *,
    scales: Mapping[str, float] | None = None,
    prompt_sets: int = 16,
    seed: int = 0,
    reasons: int = 0,
) -> tuple[Plan, list[Block], list[Sample]]:
    """Plan, blocks and samples. `lengths`: role → seconds of decoding. `scales`: role → its clocks, as a multiple.
    `reasons`: NVML's, of clocks below the highest.

    Every prompt set has two blocks of each role, with pauses of unequal length.
    """
    noise, scales = random.Random(seed), scales or {}
    plan = plan_of(replace(scenario(prompt_sets=prompt_sets), kind="full"))
    made: list[Block] = []
    samples = [sample(0, sm_clock_mhz=HIGHEST_MHZ)]
    begin, at = SECOND, noise.randrange(EVERY_NS)
    for block in blocks_of(plan):
        role = block.role.name
        stretched = lasting(block, round(lengths[role] * SECOND))
        decoding = begin + BESIDE_NS + PREFILL_NS
        end = decoding + stretched.elapsed_ns
        made.append(replace(stretched, prefill_ns=PREFILL_NS, span_ns=(begin, end)))
        while at < end:
            mhz = PREFILL_MHZ if at < decoding else clock((at - decoding) / SECOND)
            scaled = round(mhz * scales.get(role, 1.0))
            why = reasons if scaled < HIGHEST_MHZ else 0
            if at > begin:
                samples.append(sample(at, sm_clock_mhz=scaled, max_sm_clock_mhz=1980, clock_event_reasons=why))
            at += EVERY_NS
        begin = end + SECOND // 4 + noise.randrange(SECOND // 2)
    return plan, made, [*samples, sample(begin, sm_clock_mhz=HIGHEST_MHZ)]


def heated_run(
    clock: Clock = heated_clock,
    lengths: Mapping[str, float] = LENGTHS,
    *,
    scales: Mapping[str, float] | None = None,
    prompt_sets: int = 16,
    reasons: int = 0,
) -> Run:
    """The run of `heated`, with its conditions."""
    plan, blocks, samples = heated(clock, lengths, scales=scales, prompt_sets=prompt_sets, reasons=reasons)
    return watched_run(samples, blocks, plan)
