"""Figures of load, and in words.

A block lasts from the first sending to the last token of all, so the ramp at its beginning and the drain at its end,
when fewer requests are left than clients, count. That is the duration by which `vllm bench serve` (0.25.1,
`benchmark_duration`) divides, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from specgate.analysis.load.break_even import support
from specgate.analysis.load.sweeps import lag_values
from specgate.analysis.paired_blocks import speed
from specgate.analysis.requests.goodput import limits_in_words
from specgate.contract import Block, LatencyLimits, Role, Served, Value
from specgate.contract.load import BestDraft, BreakEven, LevelRatio, MaxGoodput


def load_values(blocks: Sequence[Block]) -> Iterator[Value]:
    """The figures of one cell of a load scenario beside the times of its requests; nothing without blocks.

    Speeds are medians over blocks, as in other runs. Requests in flight follow from Little's law: the mean number in
    flight is the sum of the times that requests took, over the time of the block.
    """
    live = [(block, block.served) for block in blocks if block.served is not None]
    if not live:
        return
    tokens = [speed(block, whole_requests=True) for block, _ in live]
    yield Value("output_tok_s", statistics.median(tokens), "p50", len(live))
    per_user = [tok_s / clients_of(block) for tok_s, (block, _) in zip(tokens, live, strict=True)]
    yield Value("output_tok_s_per_user", statistics.median(per_user), "p50", len(live))
    requests = [len(served.requests) / seconds(block) for block, served in live]
    yield Value("throughput_req_s", statistics.median(requests), "p50", len(live))
    in_flight = [in_flight_ns(served) / 1e9 / seconds(block) for block, served in live]
    yield Value("in_flight_avg", statistics.fmean(in_flight), "mean", len(live))
    sent = sum(len(served.requests) + len(served.refused) for _, served in live)
    yield Value("refused_requests", float(sum(len(served.refused) for _, served in live)), "count", sent)
    yield from lag_values([served for _, served in live])


def seconds(block: Block) -> float:
    """From the beginning of a block to the last token of all its requests."""
    return (block.prefill_ns + block.elapsed_ns) / 1e9


def in_flight_ns(served: Served) -> int:
    """The times of all requests together, each from its sending to its last token."""
    return sum(r.chunk_ns[-1] - r.sent_ns for r in served.requests)


def clients_of(block: Block) -> float:
    """Number of users that share the output of a block: its clients, or in an open loop the mean requests in flight."""
    if block.point.rate is None:
        return min(block.point.batch, len(block.tokens))
    assert block.served is not None
    return in_flight_ns(block.served) / 1e9 / seconds(block)


CLIENTS = "clients"
RATE = "requests/s"


def unit_of(open_loop: bool) -> str:
    """Unit of the levels of a sweep."""
    return RATE if open_loop else CLIENTS


def counted(level: float, unit: str) -> str:
    """Return a level with its unit: `1 client`, `8 clients`."""
    return f"{level:g} {'client' if level == 1 and unit == CLIENTS else unit}"


def in_words(break_even: BreakEven) -> str:
    """The break-even of a sweep, and the levels of which it says nothing, since their ratio has no interval."""
    unit = unit_of(break_even.open_loop)
    judged = [level for level in break_even.levels if level.ci_low is not None]
    known = [level.level for level in judged]
    without = ", ".join(f"{level.level:g}" for level in break_even.levels if level not in judged)
    if not known:
        return f"no difference from the baseline is proven at any level: nothing is known of {without} {unit}"
    first, last = known[0], known[-1]
    whole, level = f"from {first:g} to {last:g} {unit}", "known level" if without else "level"
    if first == last:
        word = {"everywhere": "pays", "nowhere": "costs"}.get(break_even.outcome, "is not told from the baseline")
        more = f"; nothing is known of {without} {unit}" if without else ""
        return f"speculation {word} at {counted(first, unit)}, the only {level}{more}"
    at = "the estimate lies outside" if break_even.value is None else f"the estimate is {break_even.value:.3g}"
    low, high = bound(break_even.low, f"below {first:g}"), bound(break_even.high, f"beyond {last:g}")
    interval = f"{100 * break_even.confidence:.4g} % interval {low} to {high}"
    stops = f"speculation pays up to {bound(break_even.value, '?')} {unit}, {interval}"
    if break_even.value is not None:
        stops += f", {rests_on(known, break_even.value)}"
    sentence = {
        "everywhere": f"speculation pays at every {level} {whole}",
        "nowhere": f"speculation costs at every {level} {whole}",
        "crosses": stops,
        "beyond": f"speculation pays up to {low} {unit} at least; where it stops is unknown ({at})",
        "below": f"speculation costs from {high} {unit} on; where that begins is unknown ({at})",
        "mixed": f"speculation costs at one level and pays at a greater one, {whole}",
        "partly": f"speculation differs from the baseline at some levels only, {whole}",
        "unclear": f"no difference from the baseline is proven at any {level} {whole}",
    }[break_even.outcome]
    return f"{sentence}; nothing is known of {without} {unit}" if without else sentence


def most_in_words(roles: Sequence[MaxGoodput], limits: LatencyLimits) -> str:
    """Return the greatest load within the limits, of every role of one sweep."""
    share = f"for {100 * limits.share:g} % of requests"
    return f"within {limits_in_words(limits)} {share}: {', '.join(map(most_of_role, roles))}"


def most_of_role(most: MaxGoodput) -> str:
    """Return that of one role, with its interval."""
    levels = [level.level for level in most.levels if level.use is not None]
    if not levels:
        return f"{Role(most.k)} unknown"
    low, high = bound(most.low, f"below {levels[0]:g}"), bound(most.high, f"beyond {levels[-1]:g}")
    at = {
        "crosses": f"up to {bound(most.value, '?')}",
        "everywhere": f"at all levels up to {levels[-1]:g}",
        "nowhere": f"not even at {levels[0]:g}",
    }.get(most.outcome, "unknown")
    unit = unit_of(most.open_loop)
    return f"{Role(most.k)} {at} {unit} ({100 * most.confidence:.4g} % interval {low} to {high})"


def best_in_words(levels: Sequence[BestDraft]) -> str:
    """Return the best draft length of every level of a sweep, with its lead over the next one."""
    return f"best draft length: {'; '.join(map(best_at, levels))}"


def best_at(best: BestDraft) -> str:
    """Return that of one level, and the draft lengths that are not told from it."""
    unit = unit_of(best.open_loop)
    alike = "".join(f" or {draft_length(k)}" for k in best.as_good)
    lead = f"{best.ratio:.3f}x {draft_length(best.next_k)}, {best.ci_low:.3f}–{best.ci_high:.3f}"
    return f"{draft_length(best.k)}{alike} at {counted(best.level, unit)} ({lead})"


def draft_length(k: int) -> str:
    return str(Role(k)) if k else "no speculation"


def rests_on(known: Sequence[float], value: float) -> str:
    """The levels that a break-even of `value` follows from. Two alone cannot show a bend between them."""
    i = max(i for i, level in enumerate(known[:-1]) if level <= value or i == 0)
    used = [known[j] for j in support(known, i)]
    if len(used) > 2:
        return f"by the levels {', '.join(f'{level:g}' for level in used[:-1])} and {used[-1]:g}"
    line = f"by a straight line between {used[0]:g} and {used[1]:g}"
    return f"{line}: levels of {used[0] / 2:g} and {2 * used[1]:g} would show whether it bends"


def bound(value: float | None, none: str) -> str:
    return none if value is None else f"{value:.3g}"


def level_in_words(level: LevelRatio, unit: str) -> str:
    """The ratio at one level, with its interval."""
    span = "" if level.ci_low is None or level.ci_high is None else f" ({level.ci_low:.3f}–{level.ci_high:.3f})"
    ratio = "no ratio" if level.ratio is None else f"{level.ratio:.3f}x"
    return f"{ratio}{span} at {counted(level.level, unit)}"
