"""Speed-ups against what verification costs: a cycle is no shorter than a baseline step.

To verify K drafts, the target runs over K + 1 tokens where the baseline runs over one, and reads the same weights and
the same cache. Drafting comes on top. So a cell is faster than its baseline by no more than the tokens that it emits
per step: speed-up = tokens per step × (baseline step / cycle), and the second factor is at most 1.

What breaks this either does not verify (it answers from memory, say) or has a baseline that is slower than it need be.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from specgate.analysis.checks.identities import place_of
from specgate.analysis.paired_blocks import speed
from specgate.analysis.requests.joint_decoding import joint_decoding, judged_jointly
from specgate.analysis.stats import Pairs
from specgate.contract import Block, Scenario
from specgate.contract.samples.counters import JOINED_OUTPUTS
from specgate.errors import InvalidResult

TOLERANCE: Final = 0.10
"""How far a cycle may be shorter than a baseline step, as a share of it: a draft may cost next to nothing, and kernels
may run no slower over K + 1 tokens than over one.
"""
FEW: Final = 2.0
"""With too few pairs for an interval, how many times faster than possible a cell must be to be refused."""


def check_verification(pairs: Sequence[tuple[Block, Block]], scenario: Scenario) -> None:
    """Check the speed-up of (baseline, spec) pairs of one cell. Raises InvalidResult with both figures.

    It must be above the bound with the confidence that a speed verdict asks for.
    """
    judged = [(a, b, most) for a, b in pairs if a.emitted and b.emitted and (most := tokens_per_step(b)) is not None]
    if not judged:
        return
    beyond = Pairs(
        log_ratios=[log_ratio(a, b, scenario) - math.log(most) for a, b, most in judged],
        orders=[1 if a.position_in_round < b.position_in_round else -1 for a, b, _ in judged],
        prompt_sets=[b.prompt_set for _, b, _ in judged],
        turns=list(range(len(judged))),
    )
    interval, mean = beyond.interval(), statistics.fmean(beyond.log_ratios)
    least = interval.low if interval else mean - math.log(FEW)
    if least <= math.log1p(TOLERANCE):
        return
    per_step = statistics.geometric_mean(most for _, _, most in judged)
    ratio = math.exp(mean) * per_step
    raise InvalidResult(
        f"{place_of(judged[0][1])} and {len(judged) - 1} more: faster than verification allows: {ratio:.3g} times the "
        f"baseline's speed with {per_step:.3g} tokens per step, so that a cycle would take {per_step / ratio:.2g} of a "
        "baseline step, which reads no more than a cycle has to"
    )


def log_ratio(baseline: Block, spec: Block, scenario: Scenario) -> float:
    """ln(spec / baseline) of a pair's speeds, as a speed rule takes them, or of decoding where none is to be had."""
    if judged_jointly(scenario, spec):
        joint = joint_decoding(baseline), joint_decoding(spec)
        if joint[0] is not None and joint[1] is not None:
            return math.log(joint[1].tok_s / joint[0].tok_s)
    return math.log(speed(spec, scenario.whole_requests) / speed(baseline, scenario.whole_requests))


def tokens_per_step(block: Block) -> float | None:
    """The most tokens that a request of a spec block emitted per step of its own; None where that is not known, as
    where a server lost steps from its counters.

    A server counts its steps over all requests of a block. Their mean is a bound only if all requests are equally long.
    """
    if block.served is None:
        steps = [sum(row[slot] >= 0 for row in block.accepted) for slot in range(len(block.tokens))]
        return max(((len(t) - 1) / n for t, n in zip(block.tokens, steps, strict=True) if n), default=None)
    record = block.served.acceptance
    if record is None or block.counters.get(JOINED_OUTPUTS) or len({len(tokens) for tokens in block.tokens}) > 1:
        return None
    counted = record.steps + block.counters.get("undrafted_steps", 0)
    return block.emitted / counted if counted else None
