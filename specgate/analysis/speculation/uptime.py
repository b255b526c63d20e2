"""Acceptance over uptime: does the acceptance length change while the engine answers more and more requests?

Engines are known whose acceptance falls with uptime, since something in them goes stale (vLLM issue 41838). A run
measures every prompt set several times, far apart in time, so that it shows this by itself: blocks of one prompt set
are compared with each other, and differences between prompts cancel.

The time is counted in requests, since an idle hour changes no cache: those of the cell's role that the engine's process
has answered, warm-up among them. A server that was running before has its count from the run's beginning on, and keeps
it when the run is resumed. What it answered before, or in between, is not known.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.grouping import collected, grouped, measured_by_cell
from specgate.analysis.intervals.slope import Slope, reach, slope_of
from specgate.analysis.prompt_acceptance import total_of
from specgate.contract import AcceptanceDrift, Block, CellResult, EngineFacts
from specgate.contract.types import fields_of

THOUSAND: Final = 1000.0
LEAST_GAP: Final = 0.1
"""Percent per 1,000 requests: no run is asked to tell less."""
FRESH: Final = "apart"
"""What a back end of servers says of them where each block has a server that was just started."""
ATTACHED: Final = "attached"
"""The same where they were running before, so that they outlive the harness's own processes."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Number of requests of a block's role that its engine had answered `before` it, and `after` it.

    `process`: what tells the processes of engines apart; None for the servers that the run was attached to.
    """

    process: int | None
    before: int
    after: int

    @property
    def middle(self) -> float:
        return (self.before + self.after) / 2


def with_drifts(
    cells: Iterable[CellResult],
    requests: Mapping[int, Answered],
    judged: Iterable[Block],
    engines: Mapping[str, EngineFacts],
) -> tuple[CellResult, ...]:
    """Return `cells` with the change of their acceptance over uptime.

    `requests`: `requests_by_block` of all blocks in the order in which they ran, warm-up and blocks that do not count
    among them. `judged`: those that count. `engines`: point key → facts.
    """
    of = measured_by_cell(judged)

    def extended(result: CellResult) -> CellResult:
        facts = engines.get(result.cell.point.key)
        unseen = facts is not None and facts.details.get("servers") == FRESH
        if unseen or result.status == "failed" or result.acceptance is None or not result.acceptance.steps:
            return result
        return replace(result, drift=drift_of(of[result.cell], requests))

    return tuple(map(extended, cells))


def requests_by_block(answered: Iterable[Block], engines: Mapping[str, EngineFacts]) -> dict[int, Answered]:
    """id of a block → the requests that its engine had answered. `engines`: point key → facts."""
    counts: Counter[tuple[int | None, str]] = Counter()
    answers = {}
    for block in answered:
        facts = engines.get(block.point.key)
        attached = facts is not None and facts.details.get("servers") == ATTACHED
        process = None if attached else block.worker_generation
        key = process, block.role.name
        before = counts[key]
        counts[key] += len(block.tokens)
        answers[id(block)] = Answered(process, before, counts[key])
    return answers


def requests_seen(spans: Iterable[Answered]) -> int:
    """The requests that one process answered from its first to its last block of `spans`, at most.

    What it answered before that, for other points too, shows no change of this cell.
    """
    of = grouped(spans, lambda span: span.process)
    return max(max(s.after for s in own) - min(s.before for s in own) for own in of.values())


def drift_of(blocks: Sequence[Block], requests: Mapping[int, Answered]) -> AcceptanceDrift | None:
    """The drift over the `blocks` of one spec cell; None where they are too few, or none had a draft."""
    ordered = sorted(blocks, key=lambda b: (b.worker_generation, requests[id(b)].before))
    drafting = [(b, length) for b in ordered if (length := length_of(b)) is not None]
    lengths, sets = [length for _, length in drafting], [b.prompt_set for b, _ in drafting]
    spans = [requests[id(b)] for b, _ in drafting]
    middles = [span.middle for span in spans]
    slope = slope_of(lengths, [x / THOUSAND for x in middles], sets)
    if slope is None:
        return None
    means = {prompt_set: statistics.fmean(of) for prompt_set, of in collected(zip(sets, lengths, strict=True)).items()}
    once = len(means) == len(lengths)
    level = statistics.fmean(lengths)
    departures = [x - (level if once else means[s]) for x, s in zip(lengths, sets, strict=True)]
    return AcceptanceDrift(
        **fields_of(Slope, slope),
        length=level,
        requests=requests_seen(spans),
        blocks=tuple(zip(middles, departures, strict=True)),
    )


def length_of(block: Block) -> float | None:
    """The acceptance length of one block, in tokens; None where no step had a draft."""
    return total_of([block]).acceptance_length


def fall_pct(drift: AcceptanceDrift, error: float) -> tuple[float, float]:
    """(least, greatest) fall of the acceptance length per 1,000 requests, in percent of itself; negative where it
    rises. `error`: the chance on each side that the true one lies beyond.
    """
    half = reach_of(drift, error)
    return 100 * (-drift.slope - half) / drift.length, 100 * (-drift.slope + half) / drift.length


def reach_of(drift: AcceptanceDrift, error: float) -> float:
    """Bound on how far the true slope lies on one side, in tokens per 1,000 requests, with the chance `error`."""
    return reach(drift.error, drift.freedom, drift.set_error, drift.sets, error)


def in_words(drift: AcceptanceDrift, errors: tuple[float, float]) -> str:
    """Return the change of acceptance in a clause, and no direction if the interval includes zero. `errors`: the chance
    that the greatest fall is exceeded, and that the least is not reached.
    """
    over = f"over {drift.requests:,} requests in {len(drift.blocks)} blocks"
    if not (drift.error or drift.set_error):
        return f"every block of a prompt set accepted the same, {over}"
    mean = -100 * drift.slope / drift.length
    least, greatest = fall_pct(drift, errors[1])[0], fall_pct(drift, errors[0])[1]
    confidence = 100 * (1 - sum(errors))
    if least <= 0 <= greatest:
        span = f"{confidence:.4g} % interval {plain(-greatest)} to {plain(-least)} % per 1,000 requests"
        return f"no trend of the acceptance length is seen ({span}), {over}"
    verb, sign = ("falls", 1) if mean >= 0 else ("rises", -1)
    low, high = sorted((sign * least, sign * greatest))
    span = f"{confidence:.4g} % interval {plain(low)} to {plain(high)} %"
    return f"acceptance length {verb} by {plain(sign * mean)} % per 1,000 requests ({span}), {over}"


def plain(percent: float) -> str:
    """A percentage without an exponent."""
    return f"{percent:,.0f}" if abs(percent) >= 10 else f"{percent:.2f}"


def requests_needed(drift: AcceptanceDrift, most: float, error: float) -> int:
    """About how many requests would tell a fall of `most` percent per 1,000 requests from the one that was measured.

    The standard error of a slope goes down with the number of blocks to the power of 3/2: there are more of them, and
    they reach further.
    """
    half = 100 * reach_of(drift, error) / drift.length
    gap = max(abs(most + 100 * drift.slope / drift.length), LEAST_GAP)
    return round(drift.requests * max(1.0, math.pow(half / gap, 2 / 3)))
