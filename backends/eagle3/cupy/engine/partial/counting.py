"""Counters of partial and full verifications in a decode run. All but one number follow from what it accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specgate.backends.eagle3.cupy.step.partial import Kind
from specgate.backends.eagle3.lib.specpv.plan import BLOCK, PartialPlan
from specgate.contract.samples.counters import (
    SPECPV_CACHED,
    SPECPV_CHECKED,
    SPECPV_COUNTED,
    SPECPV_FULL,
    SPECPV_FULL_ACCEPTED,
    SPECPV_OVERRULED,
    SPECPV_PARTIAL,
    SPECPV_PARTIAL_ACCEPTED,
    SPECPV_READ,
    SPECPV_SHORT,
)


def counters_of(
    plan: PartialPlan,
    kinds: Sequence[Kind],
    accepted: Sequence[Sequence[int]],
    lengths: Sequence[int],
    overruled: int,
) -> dict[str, int]:
    """Counters of a run of steps of these `kinds` that accepted so many drafts per step and slot (negative: the slot
    did not run), behind prompts of these `lengths`. `overruled`: the tokens that full verifications would not have
    chosen.
    """
    counters = Counter(dict.fromkeys(SPECPV_COUNTED, 0))
    for slot, prompt in enumerate(lengths):
        length, verified, dropped = prompt, prompt, 0
        for kind, row in zip(kinds, accepted, strict=False):
            if (a := row[slot]) < 0:
                break
            counters[SPECPV_CACHED] += length
            if kind == "partial":
                counters.update({SPECPV_PARTIAL: 1, SPECPV_PARTIAL_ACCEPTED: a, SPECPV_READ: length - dropped})
            else:
                buffered = length - verified
                counters.update({SPECPV_FULL: 1, SPECPV_FULL_ACCEPTED: a})
                counters.update({SPECPV_READ: verified, SPECPV_CHECKED: buffered})
                counters[SPECPV_SHORT] += not plan.leaves_out(length)
                dropped = max(0, plan.first_of_window(length) - plan.sink - plan.retrieval) * BLOCK
                verified = length + a + 1
            length += a + 1
    counters[SPECPV_OVERRULED] += overruled
    return dict(counters)
