"""Check an engine's counts of the experts that its passes touched against what routing allows.

A pass of n tokens touches at least the k experts that a single token is sent to, and at most n·k of the E that there
are, in every layer. Steps, layers and rows each give the same sum.
"""

from __future__ import annotations

from collections import Counter

from specgate.analysis.experts import rows_of_steps
from specgate.contract import Block, EngineFacts
from specgate.contract.routing import ExpertCounts, PassCounts
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
    check_passes(counts, [sum(of) for of in rows], experts, where)
    if counts.fresh:
        check_fresh(counts, rows, experts, where)


def bounds(experts: ExpertTraffic, tokens: int) -> tuple[int, int]:
    """The fewest and the most experts of a layer that `tokens` tokens can touch."""
    return (experts.active, min(tokens * experts.active, experts.count)) if tokens else (0, 0)


def check_passes(counts: ExpertCounts, tokens: list[int], experts: ExpertTraffic, where: str) -> None:
    """The counts by layer are those of the same passes as the counts by step. `tokens`: of every step."""
    steps = Counter(n for n in tokens if n)
    if [p.rows for p in counts.passes] != sorted(steps):
        rows = [p.rows for p in counts.passes]
        raise InvalidResult(f"{where}: experts counted of passes with {rows} tokens, but steps have {sorted(steps)}")
    for entry in counts.passes:
        place = f"{where}, passes of {entry.rows} tokens"
        check_layers(entry, steps[entry.rows], experts, place)
        by_step = sum(touched for touched, n in zip(counts.touched, tokens, strict=True) if n == entry.rows)
        by_layer = sum(n * times for layer in entry.layers for n, times in enumerate(layer))
        if by_step != by_layer:
            raise InvalidResult(f"{place}: {by_step} experts touched by their steps, but {by_layer} by their layers")


def check_layers(entry: PassCounts, steps: int, experts: ExpertTraffic, place: str) -> None:
    """Every layer counts every pass, with as many experts as are possible."""
    if len(entry.layers) != experts.layers:
        raise InvalidResult(f"{place}: experts of {len(entry.layers)} layers, but the target has {experts.layers}")
    least, most = bounds(experts, entry.rows)
    for layer, passes in enumerate(entry.layers):
        if sum(passes) != steps:
            raise InvalidResult(f"{place}, layer {layer}: {sum(passes)} passes, but {steps} steps have as many tokens")
        wrong = [n for n, times in enumerate(passes) if times and not least <= n <= most]
        if wrong:
            raise InvalidResult(
                f"{place}, layer {layer}: a pass touched {wrong[0]} experts, but tokens of {experts.active} experts "
                f"each touch {least} to {most} of {experts.count}"
            )


def check_fresh(counts: ExpertCounts, rows: tuple[tuple[int, ...], ...], experts: ExpertTraffic, where: str) -> None:
    """The first row of a slot brings k experts to every layer, each later one at most so many, and the rows of a slot
    never more than there are. Together they bring what a pass touches, or more where slots share experts; no slot
    brings more than its pass touches.
    """
    places = Counter(place for step in rows for of in step for place in range(of))
    if len(counts.fresh) != len(places):
        raise InvalidResult(f"{where}: fresh experts of {len(counts.fresh)} rows, but slots have up to {len(places)}")
    for place, fresh in enumerate(counts.fresh):
        most = places[place] * experts.layers * experts.active
        if fresh > most or (place == 0 and fresh != most):
            right = "exactly" if place == 0 else "at most"
            raise InvalidResult(f"{where}: row {place} brings {fresh} fresh experts, but {right} {most} are possible")
        brought = sum(counts.fresh[: place + 1])
        if brought > (room := sum(room_for(min(of, place + 1), experts) for step in rows for of in step)):
            raise InvalidResult(
                f"{where}: rows 0 to {place} bring {brought} fresh experts, but with {experts.count} in a layer {room} "
                "are possible"
            )
    alone = all(len(step) <= 1 for step in rows)
    total, touched = sum(counts.fresh), sum(counts.touched)
    if touched > total or (alone and touched != total):
        raise InvalidResult(f"{where}: {touched} experts touched, but the rows bring {total} fresh ones")
    if total > (most := sum(n * len(step) for n, step in zip(counts.touched, rows, strict=True))):
        raise InvalidResult(
            f"{where}: the rows bring {total} fresh experts, but no slot brings more than its pass touches, "
            f"which are {most} in all"
        )


def room_for(rows: int, experts: ExpertTraffic) -> int:
    """The most experts that `rows` rows of a slot can touch in all layers."""
    return experts.layers * bounds(experts, rows)[1]
