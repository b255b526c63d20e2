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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.intervals.between_runs import OF_TIME, either, half_width
from specgate.analysis.intervals.decision import FALSE_PASS
from specgate.analysis.machine.disturbed_blocks import SetAside, timed
from specgate.analysis.prompt_acceptance import by_prompt
from specgate.analysis.stats import Pairs, order_interval
from specgate.analysis.two_builds.estimates import Difference, over_prompts
from specgate.contract import BetweenRuns, Block, Cell, CellResult, Plan
from specgate.contract.references import CellTimes, PromptText

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
    of: dict[Cell, list[Block]] = defaultdict(list)
    for block in blocks:
        if not block.warmup:
            of[block.cell].append(block)
    cells = [result.cell for result in results if result.status != "failed"]
    return {cell.key: times_of(plan, cell, of[cell], timed(of[cell], aside)) for cell in cells if of[cell]}


def times_of(plan: Plan, cell: Cell, blocks: Sequence[Block], clocked: Sequence[Block]) -> CellTimes:
    """Times of the `clocked` blocks of a cell that emitted something, and texts of all its `blocks`."""
    turns = {(r.prompt_set, r.index): n for n, r in enumerate(r for r in plan.rounds_of(cell.point) if not r.warmup)}
    emitting = sorted((b for b in clocked if b.emitted), key=lambda b: turns[b.prompt_set, b.round])
    whole = plan.scenarios[cell.point.scenario].whole_requests
    return CellTimes(
        turns=tuple(turns[b.prompt_set, b.round] for b in emitting),
        prompt_sets=tuple(b.prompt_set for b in emitting),
        rounds=tuple(b.round for b in emitting),
        positions=tuple(b.position_in_round for b in emitting),
        step_ns=tuple(map(step_ns, emitting)),
        prefill_ns=tuple(b.prefill_ns for b in emitting) if whole else (),
        texts=tuple(texts_of(blocks)) if cell.role.speculative else (),
    )


def step_ns(block: Block) -> int:
    """Nanoseconds per engine step; of a server's block, per output token of a request."""
    if block.served is not None or not block.step_ns:
        return round(block.decoding_ns / block.emitted)
    return round(block.elapsed_ns / len(block.step_ns))


def texts_of(blocks: Sequence[Block]) -> Iterator[PromptText]:
    """The prompts of a spec cell, in the order of prompt sets and slots."""
    by_slot: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for block in blocks:
        together = block.served is not None
        texts = [tuple(t for text in block.tokens for t in text)] if together else block.tokens
        for slot, text in enumerate(texts):
            by_slot[block.prompt_set, slot].append(text)
    for (prompt_set, slot), record in sorted(by_prompt(blocks).items()):
        first, *others = by_slot[prompt_set, slot]
        digests = () if any(text != first for text in others) else tuple(digests_of(first))
        yield PromptText(prompt_set, slot, 1 + len(others), record.steps, record.accepted, len(first), digests)


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
QUIET: Final = 3.0
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
    """ln(old time / new time) of every round that both runs have timed: more than 0 is a gain.

    `what`: `step_ns` or `prefill_ns`. Prompt sets are not told apart, since their differences cancel. Where both ran a
    block at the same position in its round, so does the effect of that; else it is fitted.
    """
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
