"""Blocks → cycle budgets. Pure: the same journal gives the same budgets.

`docs/results.md` has the formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

from specgate.analysis.experts import use_of
from specgate.analysis.speedup_limits import limit_of
from specgate.analysis.waterfall import sums_of, waterfall
from specgate.contract import BASELINE, Block, Cell, CellResult, Comparison, EngineFacts, Plan, Traffic
from specgate.contract.cycle_budget import Bandwidth, CycleBudget, Part, PartName
from specgate.contract.samples.counters import SPECPV_READ
from specgate.contract.traffic import Bytes, ExpertTraffic, Slot, draft_bytes, pass_bytes

PHASES: Final[tuple[PartName, ...]] = ("draft", "verify", "accept", "commit")
NOT_SPLIT: Final = "the engine does not split its steps"
NOT_TOLD: Final = "the engine does not say what its passes must move"
DRAFT_NOT_TOLD: Final = "the engine does not say what its draft must move"
NOT_MEASURED: Final = "no bandwidth measured here: specgate doctor --bandwidth"
"""Stored runs have this sentence, and are recomputed: it keeps the name that `machine doctor` had."""


def cycle_budgets(
    plan: Plan,
    cells: Sequence[CellResult],
    comparisons: Sequence[Comparison],
    blocks: Sequence[Block],
    engines: Mapping[str, EngineFacts],
    bandwidth: Bandwidth | None,
) -> dict[str, CycleBudget]:
    """Cell key → budget, for every cell whose times may be quoted: it was measured, and its tokens are the baseline's.

    `bandwidth`: of this machine's memory; None where it was not measured, which leaves the floors out.
    """
    unquotable = {r.cell for r in cells if r.status == "failed"} | {c.cell for c in comparisons if c.tokens.defects}
    mine: dict[Cell, list[Block]] = {cell: [] for cell in plan.cells}
    for block in blocks:
        if not block.warmup and block.step_ns and block.cell in mine:
            mine[block.cell].append(block)
    budgets = {
        cell: budget_of(cell_blocks, engines.get(cell.point.key), bandwidth)
        for cell, cell_blocks in mine.items()
        if cell_blocks and cell not in unquotable
    }
    acceptance = {r.cell: r.acceptance for r in cells if r.acceptance}
    for comparison in comparisons:
        cell, base, speedup = comparison.cell, Cell(comparison.cell.point, BASELINE), comparison.speedup.value
        if cell in budgets and base in budgets and speedup is not None:
            whole_requests = plan.scenarios[cell.point.scenario].whole_requests
            sums = sums_of(mine[base], whole_requests), sums_of(mine[cell], whole_requests)
            record = acceptance.get(cell)
            length = record.acceptance_length if record else None
            split = waterfall(speedup, length or 1.0, budgets[base], budgets[cell], *sums)
            limit = limit_of(split, budgets[base], budgets[cell], sums[0].prefill_share)
            budgets[cell] = replace(budgets[cell], waterfall=split, limit=limit)
    return {cell.key: budget for cell, budget in budgets.items()}


def budget_of(blocks: Sequence[Block], engine: EngineFacts | None, bandwidth: Bandwidth | None) -> CycleBudget:
    """The budget of one cell, as means over all steps of its blocks. Each block must have at least one step."""
    cycles = sum(len(b.step_ns) for b in blocks)
    times = phase_times(blocks)
    moved = {name: total * (1 / cycles) for name, total in moved_by(blocks, engine.traffic if engine else None).items()}
    why = why_no_floor(times, moved, engine, bandwidth)
    speed = bandwidth.bytes_per_s if bandwidth and why is None else None
    depths = [depth for b in blocks for depth in cached_positions(b)]
    return CycleBudget(
        cycles=cycles,
        cycle_ms=sum(sum(b.step_ns) for b in blocks) / cycles / 1e6,
        depth=sum(depths) / len(depths) if depths else 0.0,
        parts=tuple(part(name, ns / cycles / 1e6, moved.get(name), speed) for name, ns in times.items()),
        no_floor=why,
        experts=use_of(blocks, experts) if (experts := experts_of(engine)) else None,
        link_bytes=link_bytes(blocks, engine.traffic) if engine and engine.traffic else None,
    )


def link_bytes(blocks: Sequence[Block], traffic: Traffic) -> float | None:
    """Bytes that each GPU sends to the others, as a mean over the cycles; None if one GPU has the whole target."""
    if traffic.link is None:
        return None
    steps = [step for b in blocks for step in steps_of(b)]
    verified = sum(slot.rows for step in steps for slot in step.verify)
    drafted = sum(sum(step.drafts) for step in steps)
    sent = traffic.link.row_bytes * verified + traffic.link.draft_row_bytes * drafted
    return sent / sum(len(b.step_ns) for b in blocks)


def experts_of(engine: EngineFacts | None) -> ExpertTraffic | None:
    """The mixture of experts of the target, where it has one and the engine says so."""
    return engine.traffic.target.experts if engine and engine.traffic else None


def part(name: PartName, ms: float, moved: Bytes | None, bytes_per_s: float | None) -> Part:
    """A part that takes `ms` per cycle. It has a floor where both `moved` and the bandwidth are known."""
    return Part(name, ms, moved, moved.total / bytes_per_s * 1e3 if moved and bytes_per_s else None)


def phase_times(blocks: Sequence[Block]) -> dict[PartName, int]:
    """Part → nanoseconds summed over all blocks; `gap` is the time that no phase accounts for.

    Empty where a block has no phases.
    """
    if not all(b.phase_ns for b in blocks):
        return {}
    times = {name: sum(b.phase_ns[name] for b in blocks) for name in PHASES if all(name in b.phase_ns for b in blocks)}
    return {**times, "gap": max(0, sum(b.elapsed_ns for b in blocks) - sum(times.values()))}


def why_no_floor(
    times: Mapping[PartName, int],
    moved: Mapping[PartName, Bytes],
    engine: EngineFacts | None,
    bandwidth: Bandwidth | None,
) -> str | None:
    """Return the reason that the parts of a cell have no floors; None if they have."""
    if not times:
        return NOT_SPLIT
    if engine is None or engine.traffic is None:
        return NOT_TOLD
    if not times.keys() <= moved.keys():
        return DRAFT_NOT_TOLD
    if bandwidth is None:
        return NOT_MEASURED
    if bandwidth.device != engine.device:
        return f"the bandwidth measured here is that of {bandwidth.device}, the engine ran on {engine.device}"
    return None


# ── what the passes of a block work on ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Step:
    """The slots that one step works on.

    `verify`: every active slot, as the target's pass finds it.
    `draft`: the slots that draft, as the extension pass of the draft finds them.
    `drafts`: how many tokens each of the latter drafts.
    """

    verify: Sequence[Slot]
    draft: Sequence[Slot]
    drafts: Sequence[int]


def cached_positions(block: Block) -> Iterator[int]:
    """The cached positions that the target's pass finds, for every step and every slot that is active in it."""
    cached = list(block.prompt_lengths)
    for accepts in block.accepted:
        for slot, accepted in enumerate(accepts):
            if accepted >= 0:
                yield cached[slot]
                cached[slot] += accepted + 1


def steps_of(block: Block) -> Iterator[Step]:
    """The steps of a block, with the cached positions (`cached_positions`) that each slot had by then.

    A slot begins with its prompt in the cache and the prefill token as its last token. The target's pass adds that
    token and the drafts. The draft's extension pass adds the tokens that the step before emitted, which it has not seen
    yet.
    """
    cached, unseen = list(block.prompt_lengths), [1] * len(block.tokens)
    for accepts, drafts in zip(block.accepted, block.drafted, strict=True):
        active = [slot for slot, accepted in enumerate(accepts) if accepted >= 0]
        drafting = [slot for slot in active if drafts[slot] > 0]
        yield Step(
            verify=[Slot(cached[slot], drafts[slot] + 1) for slot in active],
            draft=[Slot(cached[slot] - unseen[slot], unseen[slot]) for slot in drafting],
            drafts=[drafts[slot] for slot in drafting],
        )
        for slot in active:
            unseen[slot] = accepts[slot] + 1
            cached[slot] += unseen[slot]


def moved_by(blocks: Sequence[Block], traffic: Traffic | None) -> dict[PartName, Bytes]:
    """Part → the least that its passes move, summed over all blocks. There is no `draft` where the engine does not
    state it. Of experts, those that a block counts, or else those that independent tokens are expected to reach.
    """
    if traffic is None:
        return {}
    drafted = any(d > 0 for b in blocks for row in b.drafted for d in row)
    # Rounds over the same prompts repeat the same steps, so each distinct block is counted once, times its occurrences.
    alike = {(b.point, b.prompt_lengths, b.accepted, b.drafted, b.experts): b for b in blocks}
    times = Counter((b.point, b.prompt_lengths, b.accepted, b.drafted, b.experts) for b in blocks)
    verify, draft = Bytes(), Bytes()
    for key, block in alike.items():
        touched, of_target = repeat(None) if block.experts is None else block.experts.touched, Bytes()
        for step, reached in zip(steps_of(block), touched, strict=False):
            of_target += pass_bytes(traffic.target, step.verify, touched=reached)
            if traffic.draft:
                draft += draft_bytes(traffic.draft, step.draft, step.drafts) * times[key]
        if (read := block.counters.get(SPECPV_READ)) is not None:  # not all of the cache, but what was counted
            position = sum(a.layers * a.position_bytes for a in traffic.target.attention)
            of_target = replace(of_target, kv_read=read * position)
        verify += of_target * times[key]
    nothing = Bytes()
    parts: dict[PartName, Bytes] = {"verify": verify, "accept": nothing, "commit": nothing, "gap": nothing}
    return parts if drafted and not traffic.draft else {"draft": draft, **parts}
