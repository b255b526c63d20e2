"""Spec blocks against the baseline blocks they were paired with: the same tokens? how much faster?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from specgate.analysis.stats import Pairs
from specgate.core import BASELINE, Block, Cell, Comparison, Divergence, Finish, Margin, Plan, TokenCheck, Value

NO_TOKEN = -1
"""In a `Divergence`: the sequence had ended."""


def pairs_of(blocks: Sequence[Block], cell: Cell) -> Iterator[tuple[Block, Block]]:
    """(baseline, spec) blocks of one round of one process, in running order."""
    baselines = {
        (b.prompt_set, b.round, b.worker_generation): b for b in blocks if b.cell == Cell(cell.point, BASELINE)
    }
    for block in blocks:
        key = (block.prompt_set, block.round, block.worker_generation)
        if block.cell == cell and not block.warmup and key in baselines:
            yield baselines[key], block


def find_divergences(blocks: Sequence[Block]) -> Iterator[tuple[Cell, Divergence, Block]]:
    """The first token of every slot at which a spec block leaves the baseline block of its pair, which comes along."""
    for cell in dict.fromkeys(b.cell for b in blocks if b.role.speculative):
        for baseline, spec in pairs_of(blocks, cell):
            for slot, (expected, got) in enumerate(zip(baseline.tokens, spec.tokens, strict=True)):
                if (at := departure(baseline, spec, slot)) is not None:
                    place = (spec.prompt_set, spec.round, slot, at)
                    found = Divergence(*place, token_at(expected, at), token_at(got, at), margin=None, near_tie=False)
                    yield cell, found, baseline


def departure(baseline: Block, spec: Block, slot: int) -> int | None:
    """Where two sequences part: at a token, or where one ended for another reason than its budget of steps."""
    a, b = baseline.tokens[slot], spec.tokens[slot]
    if (at := first_difference(a, b)) is not None:
        return at
    shorter = baseline if len(a) < len(b) else spec
    ended = len(a) != len(b) and shorter.finish[slot] is not Finish.STEPS
    return min(len(a), len(b)) if ended else None


def token_at(tokens: Sequence[int], index: int) -> int:
    return tokens[index] if index < len(tokens) else NO_TOKEN


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which `a` and `b` differ, over the length both have."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def check_tokens(cell: Cell, blocks: Sequence[Block], margins: Sequence[Margin], near_tie_margin: float) -> TokenCheck:
    known = {(m.prompt_set, m.round, m.slot, m.position): m.top1 - m.top2 for m in margins if m.cell == cell.key}
    divergences = []
    for found, d, _ in find_divergences(blocks):
        if found == cell:
            margin = known.get((d.prompt_set, d.round, d.slot, d.position))
            near = margin is not None and margin < near_tie_margin and NO_TOKEN not in (d.expected, d.got)
            place = (d.prompt_set, d.round, d.slot, d.position)
            divergences.append(Divergence(*place, d.expected, d.got, margin, near))
    compared = sum(
        min(len(x), len(y)) for a, b in pairs_of(blocks, cell) for x, y in zip(a.tokens, b.tokens, strict=True)
    )
    return TokenCheck(compared, tuple(divergences))


def compare(
    plan: Plan, cell: Cell, blocks: Sequence[Block], margins: Sequence[Margin], near_tie_margin: float, forced: bool
) -> Comparison:
    """Where acceptance was `forced`, tokens are wrong by design and are not compared."""
    tokens = TokenCheck(0, ()) if forced else check_tokens(cell, blocks, margins, near_tie_margin)
    whole = plan.scenarios[cell.point.scenario].kind == "full"
    turns = {(r.prompt_set, r.index): n for n, r in enumerate(r for r in plan.rounds_of(cell.point) if not r.warmup)}
    found = [(a, b) for a, b in pairs_of(blocks, cell) if a.emitted and b.emitted]
    pairs = Pairs(
        log_ratios=[math.log(speed(spec, whole) / speed(baseline, whole)) for baseline, spec in found],
        orders=[1 if baseline.position_in_round < spec.position_in_round else -1 for baseline, spec in found],
        prompt_sets=[spec.prompt_set for _, spec in found],
        turns=[turns[spec.prompt_set, spec.round] for _, spec in found],
    )
    columns = (tuple(pairs.log_ratios), tuple(pairs.orders), tuple(pairs.prompt_sets), tuple(pairs.turns))
    return Comparison(cell, tokens, *columns, speedup(pairs, tokens))


def speedup(pairs: Pairs, tokens: TokenCheck) -> Value:
    name, n = "speedup_vs_ar_ratio", len(pairs.turns)
    if not n:
        return Value(name, None, n=0, reason_code="no_pairs")
    if tokens.mismatches:
        return Value(name, None, n=n, reason_code="token_mismatch")
    interval = pairs.interval()
    if interval is None:
        return Value(name, math.exp(statistics.fmean(pairs.log_ratios)), "geomean", n, reason_code="few_pairs")
    return Value(name, math.exp(interval.mean), "geomean", n, math.exp(interval.low), math.exp(interval.high))


def speed(block: Block, whole: bool) -> float:
    """Tokens per second: of the decode stretch, or of whole requests with their prefill and its token."""
    if whole:
        return sum(map(len, block.tokens)) / ((block.prefill_ns + block.elapsed_ns) / 1e9)
    return block.emitted / (block.elapsed_ns / 1e9)
