"""Spec blocks compared with the baseline blocks of their pairs: are the tokens the same, and how much faster are
they?
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from specgate.analysis.stats import Pairs
from specgate.core import BASELINE, Block, Cell, Comparison, Divergence, Finish, Margin, Plan, TokenCheck, Value

NO_TOKEN = -1
"""Stands in a `Divergence` for a token that is missing because the sequence had ended."""


def pairs_of(blocks: Sequence[Block], cell: Cell) -> Iterator[tuple[Block, Block]]:
    """(baseline, spec) blocks that ran in the same round and the same engine process, in running order."""
    baselines = {
        (b.prompt_set, b.round, b.worker_generation): b for b in blocks if b.cell == Cell(cell.point, BASELINE)
    }
    for block in blocks:
        key = (block.prompt_set, block.round, block.worker_generation)
        if block.cell == cell and not block.warmup and key in baselines:
            yield baselines[key], block


def find_divergences(blocks: Sequence[Block]) -> Iterator[tuple[Cell, Divergence, Block]]:
    """(cell, divergence, baseline block) for every slot in which a spec block differs from the baseline block of its
    pair.

    A divergence is the first token that differs. Its margin is not known yet.
    """
    for cell in dict.fromkeys(b.cell for b in blocks if b.role.speculative):
        for baseline, spec in pairs_of(blocks, cell):
            for slot, (expected, got) in enumerate(zip(baseline.tokens, spec.tokens, strict=True)):
                if (at := departure(baseline, spec, slot)) is not None:
                    place = (spec.prompt_set, spec.round, slot, at)
                    found = Divergence(*place, token_at(expected, at), token_at(got, at), margin=None, near_tie=False)
                    yield cell, found, baseline


def departure(baseline: Block, spec: Block, slot: int) -> int | None:
    """The index at which the two blocks of a pair part in `slot`; None where they do not.

    They part at a token that differs, or at the end of one sequence, unless it ended because its budget of steps was
    spent.
    """
    a, b = baseline.tokens[slot], spec.tokens[slot]
    if (at := first_difference(a, b)) is not None:
        return at
    shorter = baseline if len(a) < len(b) else spec
    ended = len(a) != len(b) and shorter.finish[slot] is not Finish.STEPS
    return min(len(a), len(b)) if ended else None


def token_at(tokens: Sequence[int], index: int) -> int:
    """The token at `index`, or NO_TOKEN past the end."""
    return tokens[index] if index < len(tokens) else NO_TOKEN


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which `a` and `b` differ, over the length that both have."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def check_tokens(cell: Cell, blocks: Sequence[Block], margins: Sequence[Margin], near_tie_margin: float) -> TokenCheck:
    """Compare the tokens of a spec cell with the baseline's.

    A divergence is a near tie where the recorded margin between the top-2 logits is below `near_tie_margin`. The end of
    a sequence is never a near tie.
    """
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
    """Compare a spec cell with the baseline of its point.

    With `forced` acceptance the tokens are wrong by design and are not compared.
    """
    tokens = TokenCheck(0, ()) if forced else check_tokens(cell, blocks, margins, near_tie_margin)
    whole_requests = plan.scenarios[cell.point.scenario].kind == "full"
    turns = {(r.prompt_set, r.index): n for n, r in enumerate(r for r in plan.rounds_of(cell.point) if not r.warmup)}
    found = [(a, b) for a, b in pairs_of(blocks, cell) if a.emitted and b.emitted]
    pairs = Pairs(
        log_ratios=[
            math.log(speed(spec, whole_requests) / speed(baseline, whole_requests)) for baseline, spec in found
        ],
        orders=[1 if baseline.position_in_round < spec.position_in_round else -1 for baseline, spec in found],
        prompt_sets=[spec.prompt_set for _, spec in found],
        turns=[turns[spec.prompt_set, spec.round] for _, spec in found],
    )
    columns = (tuple(pairs.log_ratios), tuple(pairs.orders), tuple(pairs.prompt_sets), tuple(pairs.turns))
    return Comparison(cell, tokens, *columns, speedup(pairs, tokens))


def speedup(pairs: Pairs, tokens: TokenCheck) -> Value:
    """The speed-up: the geometric mean over the pairs, with its interval where there are enough. None where tokens
    differ.
    """
    name, n = "speedup_vs_ar_ratio", len(pairs.turns)
    if not n:
        return Value(name, None, n=0, reason_code="no_pairs")
    if tokens.mismatches:
        return Value(name, None, n=n, reason_code="token_mismatch")
    interval = pairs.interval()
    if interval is None:
        return Value(name, math.exp(statistics.fmean(pairs.log_ratios)), "geomean", n, reason_code="few_pairs")
    return Value(name, math.exp(interval.mean), "geomean", n, math.exp(interval.low), math.exp(interval.high))


def speed(block: Block, whole_requests: bool) -> float:
    """Tokens per second of a block: of its decode run or, with `whole_requests`, of prefill and decode with the prefill
    token.
    """
    if whole_requests:
        return sum(map(len, block.tokens)) / ((block.prefill_ns + block.elapsed_ns) / 1e9)
    return block.emitted / (block.elapsed_ns / 1e9)
