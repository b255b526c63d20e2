"""Where the minutes of a run went, by the harness's clock: starts of engines, answers, and checks beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specgate.contract import Block, EngineStart, Scenario


def seconds_of(blocks: Iterable[Block], scenarios: Mapping[str, Scenario]) -> float:
    """Seconds that `blocks` took, with the prefills that several of them share."""
    return sum(seconds for _, seconds in timed_seconds(blocks, scenarios))


def timed_seconds(blocks: Iterable[Block], scenarios: Mapping[str, Scenario]) -> Iterable[tuple[Block, float]]:
    """Yield every block that the harness's clock timed, with its seconds. Blocks of a micro run share a prefill, which
    counts with the first of them.
    """
    prefilled = set[tuple[object, ...]]()
    for block in blocks:
        if block.span_ns is None:
            continue
        took = block.span_ns[1] - block.span_ns[0]
        visit = (block.point, block.worker_generation, block.warmup, block.prompt_set, block.warmup or block.round)
        if not (scenarios[block.point.scenario].whole_requests or block.own_prefill or visit in prefilled):
            prefilled.add(visit)
            took += block.prefill_ns
        yield block, took / 1e9


def minutes_of(
    blocks: Iterable[Block], starts: Iterable[EngineStart], scenarios: Mapping[str, Scenario]
) -> dict[str, float]:
    """Seconds by `starts`, `first` (the first answer of each role after a start), `warmup` (other untimed blocks) and
    `measured`; {} where no start is known.
    """
    began = [start.span_ns for start in starts]
    if not began:
        return {}
    minutes = {"starts": sum(end - begin for begin, end in began) / 1e9, "first": 0.0, "warmup": 0.0, "measured": 0.0}
    answered = set[tuple[object, ...]]()
    for block, seconds in timed_seconds(blocks, scenarios):
        role = (block.worker_generation, block.role)
        kind = "measured" if not block.warmup else "warmup" if role in answered else "first"
        answered.add(role)
        minutes[kind] += seconds
    return minutes
