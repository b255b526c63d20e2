"""References of a run: the times of a cell, and an earlier run's.

Both runs have the same schedule: it follows from the scenario's seed. So round i of the one is paired with round i of
the other, which decoded the same prompts in the same order, and what differs between prompts cancels. Neighbouring
rounds may still be alike (`intervals.autocorrelation`). What differs between two processes is added for both
(`intervals.between_runs`).
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.grouping import measured_by_cell
from specgate.analysis.intervals.between_runs import OF_TIME, either, half_width
from specgate.analysis.intervals.decision import FALSE_PASS, decide
from specgate.analysis.machine.disturbed_blocks import SetAside, timed
from specgate.analysis.prompt_acceptance import by_prompt, counted_by_request, prompts_of
from specgate.analysis.requests.arrivals import step_ns, step_unit
from specgate.analysis.stats import Decision, Pairs, order_interval
from specgate.analysis.two_builds.estimates import Difference, over_prompts
from specgate.contract import BetweenRuns, Block, Cell, CellResult, Plan, RunView
from specgate.contract.references import CellTimes, EarlierRun, PromptText

DIGITS: Final = 12
"""Hexadecimal digits that are kept of a digest."""
DENSE: Final = 64
"""Up to so many tokens, digests are taken at powers of two; beyond, at its multiples."""


def cell_times(
    plan: Plan, results: Iterable[CellResult], blocks: Iterable[Block], aside: SetAside
) -> dict[str, CellTimes]:
    """Cell key → its times and texts, for the cells that have figures.

    `blocks` must come from whole rounds; warm-up is left out. `aside`: rounds whose times do not count.
    """
    of = measured_by_cell(blocks)
    cells = [result.cell for result in results if result.status != "failed"]
    return {cell.key: times_of(plan, cell, of[cell], timed(of[cell], aside)) for cell in cells if of[cell]}


def times_of(plan: Plan, cell: Cell, blocks: Sequence[Block], clocked: Sequence[Block]) -> CellTimes:
    """Times of the `clocked` blocks of a cell that emitted something, and texts of all its `blocks`."""
    turns = {(r.prompt_set, r.index): n for n, r in enumerate(r for r in plan.rounds_of(cell.point) if not r.warmup)}
    emitting = sorted((b for b in clocked if b.emitted), key=lambda b: turns[b.prompt_set, b.round])
    whole = plan.scenarios[cell.point.scenario].whole_requests
    unit = step_unit(emitting)
    return CellTimes(
        turns=tuple(turns[b.prompt_set, b.round] for b in emitting),
        prompt_sets=tuple(b.prompt_set for b in emitting),
        rounds=tuple(b.round for b in emitting),
        positions=tuple(b.position_in_round for b in emitting),
        step_ns=tuple(round(step_ns(b, unit)) for b in emitting),
        prefill_ns=tuple(b.prefill_ns for b in emitting) if whole else (),
        texts=tuple(texts_of(blocks)) if cell.role.speculative else (),
        unit=unit,
    )


def texts_of(blocks: Sequence[Block]) -> Iterator[PromptText]:
    """The prompts of a spec cell, in the order of prompt sets and slots."""
    by_slot: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    apart = counted_by_request(blocks)
    for block in blocks:
        texts = block.tokens if apart else [tuple(t for text in block.tokens for t in text)]
        for slot, text in zip(prompts_of(block) if apart else (0,), texts, strict=True):
            by_slot[block.prompt_set, slot].append(text)
    for (prompt_set, slot), record in sorted(by_prompt(blocks).items()):
        first, *others = by_slot[prompt_set, slot]
        digests = () if any(text != first for text in others) else tuple(digests_of(first))
        yield PromptText(prompt_set, slot, 1 + len(others), record.counted_steps, record.accepted, len(first), digests)


def digests_of(text: Sequence[int]) -> Iterator[str]:
    """See `PromptText.digests`."""
    digest, done = hashlib.sha256(), 0
    for end in (*ends(len(text)), len(text)):
        digest.update(array("q", text[done:end]).tobytes())
        done = end
        yield digest.hexdigest()[:DIGITS]


def ends(length: int) -> Iterator[int]:
    """1, 2, 4, … 64, 128, 192, … up to `length`."""
    end = 1
    while end <= length:
        yield end
        end += min(end, DENSE)


def same_text(a: PromptText, b: PromptText) -> bool:
    """True if two texts are equal as far as both go: to the token for equal lengths, else to the last digest there."""
    if not a.digests or not b.digests:
        return False
    if a.length == b.length:
        return a.digests[-1] == b.digests[-1]
    common = sum(1 for _ in ends(min(a.length, b.length)))
    return a.digests[:common] == b.digests[:common]


ROUNDS: Final = 16
"""Fewer rounds do not tell how far the times of a cell scatter."""
QUIET: Final = 4.0
"""So many times less than two processes must the times of two rounds differ (standard deviations)."""


def long_enough(times: CellTimes, what: str, between: BetweenRuns) -> bool:
    """True if a first run may end here: its times scatter so little that more rounds would hardly sharpen a later
    comparison with it. The difference between two processes is then larger.

    `what`: as for `paired_by_round`. `between`: what differs between two runs (`between_two_runs`). The scatter of the
    times decides, not their standard error. The latter is too uncertain here: in simulations noisy runs ended too
    often.
    """
    logs = [math.log(time) for time in getattr(times, what) if time > 0]
    if len(logs) < max(ROUNDS, len(times.turns)):
        return False
    orders = [1 if position else -1 for position in times.positions]
    interval = order_interval(logs, orders, prompt_sets=times.prompt_sets)
    return interval is not None and interval.sd <= between.process_sd / math.sqrt(2) / QUIET


def paired_by_round(old: CellTimes, new: CellTimes, what: str) -> Pairs:
    """ln(old time / new time) of every round that both runs have timed: more than 0 is a gain. None of step times that
    were counted otherwise.

    `what`: `step_ns` or `prefill_ns`. Prompt sets are not told apart, since their differences cancel. Where both ran a
    block at the same position in its round, so does the effect of that; else it is fitted.
    """
    if what == "step_ns" and old.unit is not new.unit:
        return Pairs([], [], [], [])
    before = {
        (s, r): at for s, r, *at in zip(old.prompt_sets, old.rounds, old.positions, getattr(old, what), strict=True)
    }
    paired: list[tuple[float, int, int]] = []
    columns = new.turns, new.prompt_sets, new.rounds, new.positions, getattr(new, what)
    for turn, s, r, position, time in zip(*columns, strict=True):
        position_then, time_then = before.get((s, r), (0, 0))
        if time > 0 and time_then > 0:
            order = (position > position_then) - (position < position_then)
            paired.append((math.log(time_then / time), order, turn))
    logs, orders, turns = [d for d, _, _ in paired], [o for _, o, _ in paired], [t for _, _, t in paired]
    return Pairs(logs, orders, [0] * len(paired), turns)


def between_two_runs(known: Iterable[BetweenRuns]) -> BetweenRuns:
    """Spread of the time of a role between two processes on one machine.

    `known`: what the noise profile says of the point's ratios of speculation to the baseline. The times themselves
    were not measured in several processes, so they are taken to differ by no less than these, and by no less than what
    is assumed where nothing was measured.
    """
    alone = (BetweenRuns(spread.process_sd, spread.process_freedom) for spread in known)
    widest = max((OF_TIME, *alone), key=lambda spread: half_width(spread, FALSE_PASS))
    return either(widest, widest)


def between_of_times(cell: Cell, between_runs: Mapping[str, BetweenRuns]) -> BetweenRuns:
    """Return the noise between a time of `cell` in two runs. `between_runs`: see `Run.between_runs`."""
    return between_two_runs(between for key, between in between_runs.items() if key.startswith(f"{cell.point.key}/"))


# ── which runs may be compared, and the anchor ───────────────────────────────────────────────────────────────────────


def unlike(then: EarlierRun, cell: Cell, run: RunView) -> str | None:
    """Return why `cell` of `run` cannot be compared with that of `then`; None if it can."""
    now, facts = run.scenarios[cell.point.scenario], run.engines.get(cell.point.key)
    for key in ("kind", "dtype", "rope", "budget"):
        if (was := getattr(then.scenario, key)) != (is_now := getattr(now, key)):
            return f"{then.run} ran with another {key}: it has {was}, this run {is_now}"
    if cell.key not in then.cells:
        return f"{then.run} did not measure this cell"
    if then.prompts.get(cell.point.key) != run.prompts.get(cell.point.key, {}).get("sha256"):
        return f"{then.run} decoded other prompts"
    if facts is not None and facts.target_sha256 is None:
        return f"nothing shows that {then.run} had the same weights: a server has them"
    for key in ("target_sha256", "draft_sha256", "device"):
        if facts is not None and getattr(then, key) != getattr(facts, key):
            return f"{then.run} had another {key.removesuffix('_sha256')}"
    return None


def anchors_after(name: str, last: RunView) -> tuple[EarlierRun, ...]:
    """The best green runs of the scenario `name` other than `last`, which is the last one: for each cell the run that
    no later one was proven to need less time per step than. Each has the cells that it is the best run of.

    The best of many equal runs would be a lucky one, and the next would seem slower. So a run takes the place of the
    best one only if the interval, with what differs between processes, excludes that it gained nothing. `last` says
    which runs those are, since it was compared with them. A cell that cannot be compared any more begins anew.
    """
    before = last.earlier
    if before is None or name not in before.runs:
        return ()
    left = [r.cell for r in last.cells if r.cell.point.scenario == name and r.cell.key in last.times]
    anchors = []
    for best in (*before.anchors.get(name, ()), before.runs[name]):
        mine = [cell for cell in left if cell.key in best.cells]
        left = [cell for cell in left if cell.key not in best.cells]
        kept = {c.key: best.cells[c.key] for c in mine if unlike(best, c, last) is None and not beats(last, best, c)}
        anchors += [replace(best, cells=kept, pinned=False)] if kept else []
    return tuple(anchors)


def beats(run: RunView, before: EarlierRun, cell: Cell) -> bool:
    """True if `run` surely takes less time per step of `cell` than `before`, or counts it per something else."""
    if before.cells[cell.key].unit is not run.times[cell.key].unit:
        return True
    pairs = paired_by_round(before.cells[cell.key], run.times[cell.key], "step_ns")
    rounds = max(pairs.turns, default=0) + 1
    clocks = before.clocks.get(cell.key, {}).get("step_ns"), clocks_of(run, cell).get("step_ns")
    floor, between = max(0.0, clock_change(*clocks) or 0.0), between_of_times(cell, run.between_runs)
    return decide(pairs, rounds, (rounds,), floor, between, alone=True).side == "above"


CLOCKS_APART: Final = 0.0065
"""Two runs whose mean SM clocks lie further apart than this (log scale) ran at other clocks. Readings of unchanged runs
on an H200 at its power cap differ by less in most pairs, and so small a change hides no loss.
"""


def clocks_of(run: RunView, cell: Cell) -> dict[str, float]:
    """Field of `CellTimes` → the mean SM clock of `cell` meanwhile, in MHz, as far as the watch saw it."""
    conditions = run.conditions.get(cell.point.key)
    if conditions is None:
        return {}
    parts, role = conditions.gpu.common_clocks, cell.role.name
    of = {"step_ns": parts.decoding.get(role), "prefill_ns": parts.prefill.get(role)}
    return {what: clock.mhz for what, clock in of.items() if clock is not None and clock.mhz}


def clock_change(old: float | None, new: float | None) -> float | None:
    """ln(new clock / old clock); None if they differ by no more than `CLOCKS_APART`, or nothing tells."""
    change = math.log(new / old) if old and new else 0.0
    return change if abs(change) > CLOCKS_APART else None


def decide_at_equal_clocks(decision: Decision, pairs: Pairs, floor: float, clock: float, error: float) -> Decision:
    """`decision`, on ln(old time / new time), if it is the same without what the clock may have changed; else open.

    A time falls with the SM clock by no more than in proportion: what waits for memory does not. So a change of the
    clock by `clock` (log scale) has changed the times by something between nothing and as much, and both ends must
    agree. The clock is known as a mean over the run, so all `pairs` are one look.
    """
    rounds = max(pairs.turns, default=0) + 1
    other = decide(pairs, rounds, (rounds,), floor + clock, decision.between, error, alone=True)
    return decision if other.side == decision.side else replace(decision, side="open")


@dataclass(frozen=True, slots=True)
class AcceptanceChange:
    """Acceptance of a spec cell in two runs, over the prompts that both have.

    `old`, `new`: acceptance lengths in tokens. `prompts`: how many prompts. `same`: how many of them have the same
        text in both runs.
    `of_same`: ln(new / old) over those; None where there are none. Decoding is greedy, so this is no estimate.
    `over_all`: ln(new / old) over all prompts, each of which is one sample; None where they are too few.
    """

    old: float
    new: float
    prompts: int
    same: int
    of_same: float | None
    over_all: Difference | None


def acceptance_change(old: CellTimes, new: CellTimes) -> AcceptanceChange | None:
    """None where the runs have no prompt in common that had a draft."""
    before, after = ({(t.prompt_set, t.slot): t for t in side.texts if t.steps} for side in (old, new))
    both = [key for key in before if key in after]
    if not both:
        return None
    same = [key for key in both if same_text(before[key], after[key])]
    old_length, new_length = (length([side[key] for key in both]) for side in (before, after))
    of_same = math.log(length([after[k] for k in same]) / length([before[k] for k in same])) if same else None
    counts = [{key: counted(side[key]) for key in both} for side in (before, after)]
    over_all = over_prompts(counts[0], counts[1])
    return AcceptanceChange(old_length, new_length, len(both), len(same), of_same, over_all)


def length(texts: Sequence[PromptText]) -> float:
    """The acceptance length over `texts`, each of which counts once, however often its run has repeated it."""
    return math.fsum(above for above, _ in map(counted, texts)) / math.fsum(below for _, below in map(counted, texts))


def counted(text: PromptText) -> tuple[float, float]:
    """(drafts accepted and steps, steps) of one repetition. Their ratio is the acceptance length."""
    return (text.accepted + text.steps) / text.blocks, text.steps / text.blocks
