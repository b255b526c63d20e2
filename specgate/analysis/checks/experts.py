"""Check an engine's counts of the experts that its passes touched against what routing allows.

A pass of n tokens touches at least the k experts that a single token is sent to, and at most n·k of the E that there
are, in every layer. Steps and rows give the same sum.
"""

from __future__ import annotations

from specgate.analysis.experts import rows_of_steps
from specgate.contract import Block, EngineFacts
from specgate.contract.routing import ExpertCounts
from specgate.contract.traffic import ExpertTraffic
from specgate.errors import InvalidResult


def check_experts(block: Block, facts: EngineFacts | None, where: str) -> None:
    """Check the counts of a block, where it has any. Raises InvalidResult with the place and the figures.

    `facts`: of the engine that decoded. Without its traffic nothing is known of its experts, and nothing is checked.
    """
    counts = block.experts
    if counts is None or facts is None or facts.traffic is None:
        return
    experts = facts.traffic.target.experts
    if experts is None:
        raise InvalidResult(f"{where}: experts are counted, but by its traffic the engine's target has none")
    rows = rows_of_steps(block)
    if len(counts.touched) != len(rows):
        raise InvalidResult(f"{where}: experts touched in {len(counts.touched)} steps, but the block has {len(rows)}")
    for step, (touched, of) in enumerate(zip(counts.touched, rows, strict=True)):
        least, most = bounds(experts, sum(of))
        if not experts.layers * least <= touched <= experts.layers * most:
            raise InvalidResult(
                f"{where} step {step}: {touched} experts touched in {experts.layers} layers by {sum(of)} tokens of "
                f"{experts.active} experts each: {experts.layers * least} to {experts.layers * most} are possible"
            )
    if counts.fresh:
        check_fresh(counts, rows, where)


def bounds(experts: ExpertTraffic, tokens: int) -> tuple[int, int]:
    """The fewest and the most experts of a layer that `tokens` tokens can touch."""
    return (experts.active, min(tokens * experts.active, experts.count)) if tokens else (0, 0)


def check_fresh(counts: ExpertCounts, rows: tuple[tuple[int, ...], ...], where: str) -> None:
    """The rows of all slots together bring what their passes touch, or more where slots share experts."""
    places = max((of for step in rows for of in step), default=0)
    if len(counts.fresh) != places:
        raise InvalidResult(f"{where}: fresh experts of {len(counts.fresh)} rows, but slots have up to {places}")
    alone = all(len(step) <= 1 for step in rows)
    total, touched = sum(counts.fresh), sum(counts.touched)
    if touched > total or (alone and touched != total):
        raise InvalidResult(f"{where}: {touched} experts touched, but the rows bring {total} fresh ones")
