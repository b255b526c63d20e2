"""I4: cache spans and attention masks are intact. Checked on what the engine shows of drawn steps (`ShownSpans`).

The harness does the arithmetic of positions itself, from the prompts and the accept counts of a timed block. It asks
of each step: the slots that run have the lengths that follow; every block that a step may write is there once, is not
free, and is in no other slot's table; blocks of committed positions stay where they were. Of a tree: each node looks
at what its parent looks at, and at itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.analysis.perf_invariants.evidence import Evidence, total_of
from specgate.analysis.perf_invariants.same_texts import same_prefix
from specgate.contract import Block, BlockTrace, Held, Invariant
from specgate.contract.samples.counters import TREE_TOKENS
from specgate.contract.samples.spans import ShownSpans, StepSpans

KV, MASKS = "kv_integrity_failures", "mask_integrity_failures"
CODES: Final = {KV: "kv_integrity", MASKS: "mask_integrity"}


def intact(blocks: Sequence[Block], trace: BlockTrace | None) -> Invariant:
    """I4: the engine counts no broken span or mask in any timed block, and none is in the steps that it shows."""
    for counter, broken in CODES.items():
        if total := sum(block.counters.get(counter, 0) for block in blocks):
            message = f"{counter} = {total} over {len(blocks)} timed blocks"
            return Invariant("I4", Held.BROKEN, broken, message, {counter: total})
    trees = any(TREE_TOKENS in block.counters for block in blocks)
    spans = trace.spans if trace is not None else None
    timed = next((b for b in blocks if trace is not None and b.prompt_set == trace.prompt_set), None)
    if spans is None or timed is None or any(step.step >= len(timed.accepted) for step in spans.steps):
        return own_count(blocks, (KV, MASKS) if trees else (KV,))
    return shown_intact(spans, timed, trees=trees)


def own_count(blocks: Sequence[Block], counters: Sequence[str]) -> Invariant:
    """I4 of an engine that shows no spans: unseen, with what it counts itself."""
    counted: Evidence = {counter: 0 for counter in counters if total_of(counter, blocks) is not None}
    if missing := [counter for counter in counters if counter not in counted]:
        message = f"the engine shows no spans, and does not count {' and '.join(missing)} in every block"
        return Invariant("I4", Held.UNSEEN, "not_counted", message, counted)
    zeros = ", ".join(f"{counter} = 0" for counter in counters)
    message = f"the engine shows no spans, and says: {zeros} over {len(blocks)} timed blocks"
    return Invariant("I4", Held.UNSEEN, "engines_own_word", message, counted)


def shown_intact(spans: ShownSpans, timed: Block, *, trees: bool) -> Invariant:
    """I4 by the steps that an engine shows of the prompts and the text of `timed`."""
    evidence: Evidence = {"shown_steps": len(spans.steps), "slots": len(timed.tokens)}
    same_text = all(map(same_prefix, spans.tokens, timed.tokens))
    for step in spans.steps:
        of_timed = length_fault(step, timed) if same_text else None
        for code, fault in ((KV, of_timed or span_fault(step, spans)), (MASKS, mask_fault(step, timed.role.k))):
            if fault is not None:
                return Invariant("I4", Held.BROKEN, CODES[code], f"step {step.step}: {fault}", evidence)
    if (fault := moved_block(spans)) is not None:
        return Invariant("I4", Held.BROKEN, CODES[KV], fault, evidence)
    if not (spans.steps and same_text):
        message = "the steps that the engine shows are of another text than the timed one"
        return Invariant("I4", Held.UNSEEN, "other_text", message, evidence)
    if trees and not all(step.masks for step in spans.steps):
        return Invariant("I4", Held.UNSEEN, "no_masks", "it drafts trees, and shows no masks of them", evidence)
    what = "cache spans and masks" if trees else "cache spans"
    message = f"{what} of {len(timed.tokens)} slots are intact in {len(spans.steps)} drawn steps"
    return Invariant("I4", Held.HELD, "shown_intact", message, evidence)


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def length_fault(step: StepSpans, timed: Block) -> str | None:
    """The first slot that is not as long as the tokens make it, or has no room for the step's; None without one.

    Committed are the prompt and what earlier steps emitted. The newest token is emitted and not committed yet, so the
    prefill token does not count.
    """
    for slot, prompt in enumerate(timed.prompt_lengths):
        ended = timed.accepted[step.step][slot] < 0
        right = -1 if ended else prompt + sum(row[slot] + 1 for row in timed.accepted[: step.step])
        if step.lengths[slot] != right:
            return f"slot {slot} has {step.lengths[slot]} committed positions, and its tokens make {right}"
        needed = timed.drafted[step.step][slot] + 1
        if not ended and step.writes[slot][1] < right + needed:
            return f"slot {slot} needs {needed} positions from {right} on, and may write up to {step.writes[slot][1]}"
    return None


def span_fault(step: StepSpans, spans: ShownSpans) -> str | None:
    """The first block that is not where it should be in a step; None without one."""
    holders: dict[int, set[int]] = {}
    for slot, table in enumerate(step.tables):
        if len(set(table)) < len(table) or any(block >= spans.blocks for block in table):
            return f"the {len(table)} blocks of slot {slot} are not each one of {spans.blocks}, once"
        for block in table:
            holders.setdefault(block, set()).add(slot)
    if len(set(step.free)) < len(step.free):
        return "a block is free twice"
    if taken := set(step.free) & holders.keys():
        return f"block {min(taken)} is free, and slot {min(holders[min(taken)])} has it"
    for slot, (first, end) in enumerate(step.writes):
        if step.lengths[slot] < 0:
            continue
        table, room = step.tables[slot], len(step.tables[slot]) * spans.block
        if not first <= step.lengths[slot] < end <= room:
            place = f"from {step.lengths[slot]} on, with blocks for {room}"
            return f"slot {slot} may write positions {first} to {end}, and stands {place}"
        for block in table[first // spans.block : -(-end // spans.block)]:
            if others := holders[block] - {slot}:
                return f"slot {slot} may write block {block}, and slot {min(others)} has it, too"
    return None


def moved_block(spans: ShownSpans) -> str | None:
    """The first slot whose committed positions lie in other blocks at a later step; None without one."""
    before: dict[int, tuple[int, ...]] = {}
    for step in spans.steps:
        for slot, (length, table) in enumerate(zip(step.lengths, step.tables, strict=True)):
            if length < 0:
                continue
            kept = before.get(slot, ())
            if table[: len(kept)] != kept:
                return f"step {step.step}: committed positions of slot {slot} lie in other blocks than before"
            before[slot] = table[: -(-length // spans.block)]
    return None


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def mask_fault(step: StepSpans, levels: int) -> str | None:
    """The first node of a tree of at most so many levels that looks at the wrong nodes; None without one."""
    for slot, (parents, masks) in enumerate(zip(step.parents, step.masks, strict=True)):
        if step.lengths[slot] < 0:
            continue
        if not parents or len(parents) != len(masks):
            return f"the tree of slot {slot} has {len(parents)} parents and {len(masks)} masks"
        for node, (parent, mask) in enumerate(zip(parents, masks, strict=True)):
            if parent >= max(node, 1):
                return f"node {node} of slot {slot} has the parent {parent}: one that comes before it is right"
            right = (*masks[parent], node) if node else (0,)
            if mask != right:
                return f"node {node} of slot {slot} looks at {list(mask)}: {list(right)} is right"
        if (depth := max(map(len, masks)) - 1) > levels:
            return f"the tree of slot {slot} has {depth} levels: at most {levels} are right"
    return None
