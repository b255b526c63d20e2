"""Blocks → what a later run is held against."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from specgate.analysis.machine.disturbed_blocks import SetAside, timed
from specgate.analysis.prompt_acceptance import by_prompt
from specgate.contract import Block, Cell, CellResult, Plan
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
