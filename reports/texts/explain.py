"""The report `explain`: where the time of every cell's cycle goes, how much of it the memory bandwidth makes
unavoidable, and what follows for the speed gates. It consists of plain lines of at most 80 columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from specgate.contract import Cell, CellResult, CycleBudget, Run
from specgate.contract.cycle_budget import TOLERANCE, Bandwidth, Ceiling, Part
from specgate.contract.metrics import BATCH_SPEEDUPS
from specgate.contract.routing import ExpertUse
from specgate.reports.common.figures import NONE, number, percent, ratio
from specgate.reports.common.tables import title
from specgate.reports.texts.console import LEAST, ConsoleReport

MEANING = {
    "acceptance": "acceptance length",
    "slots": "what is emitted of it: slots end, tokens are cut",
    "verify": "the target's pass, over the drafts as well",
    "draft": "drafting",
    "accept": "comparing",
    "commit": "bookkeeping",
    "gap": "the host between the phases",
    "cost": "baseline step over spec cycle, not split",
    "prefill": "whole requests wait for their prefill too",
    "pairing": "mean of the pairs over the ratio of the sums",
}
NEAR = 0.9
"""If the floor is more than this share of the cycle time, there is little left to gain in the cycle."""


def explain_lines(run: Run) -> Iterator[str]:
    yield from wrapped(bandwidth_line(run.bandwidth))
    for point in dict.fromkeys(r.cell.point for r in run.cells):
        yield ""
        yield title(run, point)
        for result in run.cells:
            if result.cell.point == point:
                yield ""
                yield from cell_lines(run, result)


def bandwidth_line(bandwidth: Bandwidth | None) -> str:
    if bandwidth is None:
        return "bandwidth: none was measured when the run began (specgate machine doctor --bandwidth)"
    speed = f"{number(bandwidth.bytes_per_s / 1e9, 4)} GB/s"
    apart = f"quartiles {percent(bandwidth.spread)} apart"
    return f"bandwidth: {speed} of {bandwidth.device}, measured {bandwidth.measured}, {apart}"


def cell_lines(run: Run, result: CellResult) -> Iterator[str]:
    budget = run.budgets.get(result.cell.key)
    if budget is None:
        lines = list(served_lines(run, result))
        yield from lines or wrapped(f"{result.cell.role_name}: no times may be quoted: {why_none(run, result)}")
        return
    what = "cycle" if result.cell.role.speculative else "step"
    yield from wrapped(
        f"{result.cell.role_name}: {number(budget.cycle_ms, 4)} ms per {what}, mean of {budget.cycles:,}, at "
        f"{budget.depth:,.0f} cached positions per slot"
    )
    yield from part_lines(budget)
    yield from link_lines(budget)
    yield from expert_lines(budget)
    if not budget.balanced:
        yield from wrapped(
            f"the parts do not add up to the cycle: they are {percent(budget.imbalance)} off, more than "
            f"{percent(TOLERANCE)}",
            2,
        )
    yield from waterfall_lines(budget)
    yield from limit_lines(run, result.cell, budget)
    yield from wrapped(advice(result.cell, budget), 2)


def served_lines(run: Run, result: CellResult) -> Iterator[str]:
    """Yield what a server's run says without steps: the cost of a step with drafts, and the acceptance at which it
    pays. Nothing where the speed-up or the acceptance length may not be quoted.
    """
    comparison = run.comparison(result.cell.key)
    length = result.acceptance.acceptance_length if result.acceptance else None
    if comparison is None or length is None or comparison.tokens.defects:
        return
    ratios = (v for v in (comparison.speedup, *comparison.beside) if v.metric in BATCH_SPEEDUPS)
    faster = next((v.value for v in ratios if v.value is not None), None)  # the one that is judged, if it has a value
    if faster is None or run.kind == "load":
        return
    cost = length / faster
    yield from wrapped(
        f"{result.cell.role_name}: decodes {ratio(faster)} as fast with {number(length)} tokens per step: "
        f"a step with drafts costs {number(cost)} steps of the baseline (a server shows no parts of a step)"
    )
    yield from wrapped(
        f"it pays above {number(cost)} tokens per step; at this cost 2× would take {number(2 * cost)}", 2
    )


def why_none(run: Run, result: CellResult) -> str:
    """Return the reason why no times of the cell may be quoted."""
    comparison = run.comparison(result.cell.key)
    if comparison is not None and comparison.tokens.defects:
        return "its tokens are not the baseline's"
    return result.reason or "no step was measured (a server shows none)"


# ── the cycle ────────────────────────────────────────────────────────────────────────────────────────────────────────


def part_lines(budget: CycleBudget) -> Iterator[str]:
    if budget.parts:
        yield f"  {'part':8}{'ms':>9}{'share':>9}{'moves':>12}{'floor ms':>11}{'floor/time':>12}"
    for part in budget.parts:
        yield row(part.name, part.ms, budget, moves(part), part.floor_ms)
    if budget.parts and budget.floor_ms is not None:
        total = sum(p.moved.total for p in budget.parts if p.moved)
        yield row("all", sum(p.ms for p in budget.parts), budget, size(total), budget.floor_ms)
    if budget.no_floor:
        yield from wrapped(f"no floors: {budget.no_floor}", 2)


def row(name: str, ms: float, budget: CycleBudget, moved: str, floor: float | None) -> str:
    of_floor = (NONE, NONE) if not floor else (number(floor), percent(floor / ms if ms else None))
    return f"  {name:8}{number(ms):>9}{percent(ms / budget.cycle_ms):>9}{moved:>12}{of_floor[0]:>11}{of_floor[1]:>12}"


def moves(part: Part) -> str:
    """The bytes that a part of the cycle must move at least, in words."""
    return size(part.moved.total) if part.moved and part.moved.total else NONE


def size(of: float) -> str:
    return f"{number(of / 1e9)} GB" if of >= 1e9 else f"{number(of / 1e6)} MB"


def link_lines(budget: CycleBudget) -> Iterator[str]:
    """Yield the traffic between GPUs that share the target; the floors know only memory."""
    if budget.link_bytes is not None:
        yield from wrapped(
            f"several GPUs share the target: what is shown is what each of them moves; each sends "
            f"{size(budget.link_bytes)} per cycle to the others, which no floor counts",
            2,
        )


def expert_lines(budget: CycleBudget) -> Iterator[str]:
    """Yield the number of experts that a pass touches, and their overlap between neighbouring tokens."""
    if (use := budget.experts) is None:
        return
    counted = "" if use.counted else " if routed independently (the engine does not count them)"
    text = f"experts: {touched_words(use)}{counted}, {size(use.bytes_per_pass)} of the target's pass"
    if use.counted and max(use.slots[0].rows) * len(use.slots[0].rows) > 1:
        text += f"; independent tokens would touch {use.independent:.1f}"
    if use.overlap is not None:
        text += f": overlap {use.overlap:.2f}"
    yield from wrapped(text, 2)


def touched_words(use: ExpertUse) -> str:
    return f"{use.touched:.1f} of {use.count} per layer and pass"


# ── the speed-up ─────────────────────────────────────────────────────────────────────────────────────────────────────


def waterfall_lines(budget: CycleBudget) -> Iterator[str]:
    """The factors of the speed-up, one per line, with their product so far."""
    if budget.waterfall is None:
        return
    yield f"  speed-up {ratio(budget.waterfall.speedup)}, factor by factor and multiplied up:"
    product = 1.0
    for factor in budget.waterfall.factors:
        product *= factor.ratio
        yield f"    {factor.name:11}{factor.ratio:>6.2f}×{product:>7.2f}×  {MEANING[factor.name]}"


def limit_lines(run: Run, cell: Cell, budget: CycleBudget) -> Iterator[str]:
    """Yield the highest speed-up with the cycle at its floor, and the acceptance that each speed gate would need."""
    if budget.limit is not None and budget.waterfall is not None:
        highest, at_floors = ratio(budget.limit.highest), ratio(budget.limit.at_floors)
        yield from wrapped(
            f"at AL {budget.waterfall.acceptance:.2f} at most {highest} against this baseline, with the cycle at its "
            f"floor; {at_floors} with the baseline's step at its floor too",
            2,
        )
    for ceiling in budget.ceilings:
        yield from wrapped(f"{ceiling.rule} (min {ceiling.min:g}×): {asked(run, cell, budget, ceiling)}", 2)


def asked(run: Run, cell: Cell, budget: CycleBudget, ceiling: Ceiling) -> str:
    """Describe the acceptance length that would pass the gate."""
    assert budget.waterfall is not None
    now, most = budget.waterfall.acceptance, cell.role.k + 1
    device = run.bandwidth.device if run.bandwidth else "this device"
    if ceiling.needed is None:
        return "prefill alone takes longer than the gate allows: no acceptance length would do"
    met = budget.waterfall.speedup >= ceiling.min
    text = f"AL {'could fall to' if met else 'would have to be'} {max(1.0, ceiling.needed):.2f} (it is {now:.2f})"
    if ceiling.needed > most:
        text += f", more than accepting every draft gives ({most})"
    if ceiling.needed_at_floor is not None:
        text += f"; with the cycle at its floor, {max(1.0, ceiling.needed_at_floor):.2f} would do"
    return text + beyond(budget, ceiling, device)


def beyond(budget: CycleBudget, ceiling: Ceiling, device: str) -> str:
    """Say if the gate can be reached at all; with experts, at what overlap. A whole sentence, or nothing."""
    use = budget.experts
    if use is None:
        return f". It cannot be reached on {device} with this pair" if ceiling.reachable is False else ""
    if ceiling.reachable is None:
        return ""
    now = "" if use.overlap is None else f" (it is {use.overlap:.2f})"
    if ceiling.reachable:
        least = ceiling.needed_overlap
        return f". It can be reached down to an expert overlap of {least:.2f}{now}" if least else ""
    text = f". It cannot be reached on {device} with this pair"
    if ceiling.needed_overlap is None:
        return f"{text}, not even if all tokens of a request chose the same experts"
    if ceiling.needed_overlap < 0.005:
        return f"{text} unless the expert overlap is at least that of independent tokens{now}"
    return f"{text} unless the expert overlap is {ceiling.needed_overlap:.2f} or more{now}"


def advice(cell: Cell, budget: CycleBudget) -> str:
    """Name the change that would help most, in one sentence."""
    if not budget.parts:
        return "What would help most cannot be told: the engine does not split its steps."
    above = [(p.above_floor_ms, p) for p in budget.parts if p.above_floor_ms is not None]
    if budget.share_at_floor is None or not above:
        largest = max(budget.parts, key=lambda p: p.ms)
        return f"The largest part is {largest.name} ({percent(largest.ms / budget.cycle_ms)}); its floor is not known."
    won, part = max(above, key=lambda entry: entry[0])
    if budget.share_at_floor > NEAR and budget.waterfall and (most := cell.role.k + 1) > budget.waterfall.acceptance:
        longest = budget.waterfall.speedup * most / budget.waterfall.acceptance
        return (
            f"The cycle is within {percent(1 - budget.share_at_floor)} of its floor: only a longer acceptance length "
            f"would help ({ratio(longest)} at AL {most})."
        )
    text = f"Most would be won in {part.name}, {number(won)} ms above its floor"
    if budget.waterfall is None:
        return f"{text}."
    left = 1 - won / sum(p.ms for p in budget.parts)
    return f"{text}: without these {ratio(budget.waterfall.with_decode(left))} for {ratio(budget.waterfall.speedup)}."


def wrapped(text: str, indent: int = 0) -> Iterator[str]:
    """`text` in lines of at most 80 columns. A number and its percent sign stay on one line."""
    pad = " " * indent
    joined = text.replace(" %", "\u00a0%")
    return (
        line.replace("\u00a0", " ")
        for line in textwrap.wrap(joined, LEAST, initial_indent=pad, subsequent_indent=pad + "  ")
    )


REPORT = ConsoleReport("explain", explain_lines)
