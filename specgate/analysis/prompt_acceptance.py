"""Blocks of a spec cell → its acceptance record and the figures that follow, with intervals over prompts.

Each prompt is one cluster, however many blocks it has: rounds repeat the same greedy text and are no new evidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import add, itemgetter

from specgate.analysis.requests.arrivals import request_records
from specgate.analysis.stats import cluster_interval
from specgate.contract import Block, Value
from specgate.contract.acceptance import AcceptanceRecord

Count = Callable[[AcceptanceRecord], int]
PromptRecords = Mapping[tuple[int, int], AcceptanceRecord]
"""(prompt set, slot) → its record over all rounds."""


def pooled(prompts: PromptRecords) -> AcceptanceRecord:
    """The record of all prompts of a spec cell. Raises InvalidResult where a step had a draft and an identity fails."""
    return summed(prompts.values())


def summed(records: Iterable[AcceptanceRecord]) -> AcceptanceRecord:
    """The sum of `records`. Raises InvalidResult where a step had a draft and an identity fails."""
    total = reduce(add, records)
    if total.steps:
        total.check()
    return total


def total_of(blocks: Iterable[Block]) -> AcceptanceRecord:
    """The record that `pooled` makes of all prompts of `blocks`, which hold by themselves (`checks.identities`)."""
    records, counts, emitted, truncated, k = list[AcceptanceRecord](), Counter[tuple[int, int]](), 0, 0, 0
    for block in blocks:
        if block.served is not None and block.served.acceptance is not None:
            records.append(block.served.acceptance)
            continue
        k, truncated, emitted = block.role.k, truncated + sum(block.truncated), emitted + block.emitted
        counts.update(zip(chain.from_iterable(block.accepted), chain.from_iterable(block.drafted), strict=True))
    if k:
        undrafted = sum(times for (_, d), times in counts.items() if d == 0)
        records.append(AcceptanceRecord.from_counts(k, counts, emitted - undrafted, truncated))
    return summed(records)


def by_prompt(blocks: Sequence[Block], apart: bool = True) -> PromptRecords:
    """(prompt set, prompt) → its record over all rounds. Where the arrivals of a server's block do not tell its
    requests apart (`counted_by_request`), or `apart` is False, all of them are prompt 0.
    """
    of_prompt: dict[tuple[int, int], list[AcceptanceRecord]] = defaultdict(list)
    stepwise: dict[tuple[int, int], list[Block]] = defaultdict(list)
    by_request = [request_records(block) for block in blocks]
    apart &= all(block.served is None or records is not None for block, records in zip(blocks, by_request, strict=True))
    for block, records in zip(blocks, by_request, strict=True):
        if block.served is not None and block.served.acceptance is not None:
            if not apart or records is None:
                of_prompt[block.prompt_set, 0].append(block.served.acceptance)
                continue
            for prompt, record in zip(prompts_of(block), records, strict=True):
                of_prompt[block.prompt_set, prompt].append(record)
            continue
        for slot in range(len(block.tokens)):
            stepwise[block.prompt_set, slot].append(block)
    for (prompt_set, slot), own_blocks in stepwise.items():
        of_prompt[prompt_set, slot].append(record_of(own_blocks, slot))
    return {prompt: reduce(add, records) for prompt, records in of_prompt.items()}


def once_each(of: PromptRecords, lines: Mapping[tuple[int, int], int], batch: int) -> PromptRecords:
    """`of` with one record for each prompt of a file, however often a load has sent it.

    `lines`: (prompt set, slot) → its line of the file. Sets of `batch` prompts that are counted together share prompts,
    and have one record.
    """
    together, first = batch > 1 and not any(slot for _, slot in of), dict[int, tuple[int, int]]()
    records: dict[tuple[int, int], list[AcceptanceRecord]] = defaultdict(list)
    for place in sorted(of):
        line = 0 if together else lines.get(place, -1 - len(first))
        records[first.setdefault(line, place)].append(of[place])
    return {place: reduce(add, same) for place, same in records.items()}


LengthCounts = dict[tuple[int, int], tuple[int, int]]
"""(prompt set, prompt) → (accepted + steps, steps), whose ratio is its acceptance length, where it had a draft."""


def length_counts(*sides: Sequence[Block]) -> list[LengthCounts]:
    """The counts of each side's spec blocks: by request where the drafts of each are known on every side, so that
    sides can be paired.
    """
    apart = all(map(counted_by_request, sides))
    return [
        {prompt: (r.accepted + r.counted_steps, r.counted_steps) for prompt, r in records.items() if r.counted_steps}
        for records in (by_prompt(blocks, apart) for blocks in sides)
    ]


def counted_by_request(blocks: Sequence[Block]) -> bool:
    """True if the drafts of each request are known in all of these spec blocks."""
    return all(block.served is None or request_records(block) is not None for block in blocks)


def prompts_of(block: Block) -> Sequence[int]:
    """Slot → which prompt of the set it answers."""
    return (block.served.prompts if block.served is not None else ()) or range(len(block.tokens))


def record_of(blocks: Sequence[Block], slot: int) -> AcceptanceRecord:
    """The record of one slot over all `blocks`, of their steps with drafts.

    A step without a draft emits a single token, which can never be truncated.
    """
    counts, of_slot = Counter[tuple[int, int]](), itemgetter(slot)
    for b in blocks:
        counts.update(zip(map(of_slot, b.accepted), map(of_slot, b.drafted), strict=True))
    undrafted = sum(times for (_, d), times in counts.items() if d == 0)
    emitted = sum(len(b.tokens[slot]) - 1 for b in blocks) - undrafted
    return AcceptanceRecord.from_counts(blocks[0].role.k, counts, emitted, sum(b.truncated[slot] for b in blocks))


def length_values(of: Iterable[AcceptanceRecord], record: AcceptanceRecord) -> Iterator[Value]:
    """Acceptance length, draft acceptance rate and wasted verification.

    `of`: the record of every prompt. `record` is the pooled one and must have steps.
    """
    prompts = [r for r in of if r.counted_steps]
    low, high = interval_over(prompts, lambda r: r.counted_steps + r.accepted, lambda r: r.counted_steps)
    yield Value("acceptance_length", record.acceptance_length, "tok_weighted", len(prompts), low, high)
    yield Value("draft_acceptance_rate", record.draft_acceptance_rate, "tok_weighted", record.drafted)
    verified = record.drafted + record.steps
    yield Value("wasted_verify_ratio", 1 - record.emitted / verified, "tok_weighted", verified)


def category_values(of: PromptRecords, categories: Mapping[tuple[int, int], str | None], batch: int) -> Iterator[Value]:
    """Acceptance length and draft acceptance rate of every category of prompts, the intervals over its prompts.

    `categories`: (prompt set, slot) → the category of the prompt there. Where a set of `batch` prompts is counted
    together, its record counts if all of its prompts are of one category.
    """
    together = batch > 1 and not any(slot for _, slot in of)
    groups: dict[str, list[AcceptanceRecord]] = defaultdict(list)
    for (prompt_set, slot), record in of.items():
        slots = range(batch) if together else (slot,)
        categories_here = {categories.get((prompt_set, s)) for s in slots}
        if record.counted_steps and len(categories_here) == 1 and (category := categories_here.pop()) is not None:
            groups[category].append(record)
    for category, records in sorted(groups.items()):
        whole = reduce(add, records)
        if not whole.steps:
            continue
        low, high = interval_over(records, lambda r: r.counted_steps + r.accepted, lambda r: r.counted_steps)
        n = len(records)
        yield Value(f"acceptance_length[{category}]", whole.acceptance_length, "tok_weighted", n, low, high)
        yield Value(f"draft_acceptance_rate[{category}]", whole.draft_acceptance_rate, "tok_weighted", whole.drafted)


def position_values(of: Iterable[AcceptanceRecord], record: AcceptanceRecord) -> Iterator[Value]:
    """Acceptance by draft position, and the histogram of accepted draft tokens.

    `of`: the record of every prompt. `record` is the pooled one and must have steps.
    """
    prompts = [r for r in of if r.steps]

    def share(name: str, value: float | None, n: int, numerator: Count, denominator: Count) -> Value:
        low, high = interval_over(prompts, numerator, denominator)
        bounds = (max(0.0, low), min(1.0, high)) if low is not None and high is not None else (None, None)
        return Value(name, value, "tok_weighted", n, *bounds)

    for i, (at, cond) in enumerate(zip(record.acceptance_at_pos, record.cond_acceptance_at_pos, strict=True)):
        n = record.drafted_at_pos[i]
        yield share(f"acceptance_at_pos[{i + 1}]", at, n, accepted(i), drafted(i))
        yield share(f"cond_acceptance_at_pos[{i + 1}]", cond, n, accepted(i), reached(i))
    for i, count in enumerate(record.hist):
        yield Value(f"accept_hist[{i}]", float(count), "count", record.steps)


def interval_over(
    prompts: Sequence[AcceptanceRecord], numerator: Count, denominator: Count
) -> tuple[float | None, float | None]:
    """(low, high) of the ratio of two counts, clustered by prompt; (None, None) where there are too few prompts. One
    that has nothing to count says nothing of how much prompts differ.
    """
    counted = [(numerator(r), below) for r in prompts if (below := denominator(r))]
    interval = cluster_interval([above for above, _ in counted], [below for _, below in counted])
    return (interval.low, interval.high) if interval else (None, None)


def accepted(i: int) -> Count:
    """Counts the steps that accepted the draft token at index i."""
    return lambda r: r.accepted_at_pos[i]


def drafted(i: int) -> Count:
    """Counts the steps that proposed a draft token at index i."""
    return lambda r: r.drafted_at_pos[i]


def reached(i: int) -> Count:
    """Counts the steps that proposed a draft token at index i and accepted everything before it."""
    return lambda r: min(r.accepted_at_pos[i - 1] if i else r.steps, r.drafted_at_pos[i])
