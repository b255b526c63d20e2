"""Acceptance over all requests of a run and of several runs: one summary per draft length.

There are two means of the acceptance length. The token-weighted one, 1 + accepted / steps over all requests, is that of
every figure elsewhere, and that of vLLM, SGLang and LMDeploy: a request with many steps weighs more. The mean over
requests gives each request the same weight. They differ where long answers are accepted otherwise than short ones.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from specgate.analysis.prompt_acceptance import interval_over, record_of
from specgate.core import AcceptanceSource, Block
from specgate.core.acceptance import AcceptanceRecord


@dataclass(frozen=True, slots=True)
class Group:
    """What is summed up: requests that share a draft length, a pair and where acceptance comes from."""

    k: int
    pair: str
    acceptance: AcceptanceSource


@dataclass(frozen=True, slots=True)
class AcceptanceSummary:
    """Acceptance of a group over all its requests.

    `blocks`, `cells`: how many there are. `prompts`: different prompts; rounds repeat the same greedy texts.
    `requests`: how many counted by themselves; None where a server counts several requests together.
    `num_drafts`: request-steps with a draft. `total_draft_tokens`, `total_accepted_tokens`: over these.
    `mean_acceptance_rate`: accepted / draft tokens.
    `mean_acceptance_length`: token-weighted, bonus token included. `ci_low`, `ci_high`: its interval over prompts.
    `request_mean_acceptance_length`: the mean over requests that had a draft; `request_stdev`: their spread.
    `accepted_at_pos[i]`: share of the steps that accepted draft token i + 1; () where not counted by position.
    """

    group: Group
    blocks: int
    cells: int
    prompts: int
    requests: int | None
    num_drafts: int
    total_draft_tokens: int
    total_accepted_tokens: int
    mean_acceptance_rate: float | None
    mean_acceptance_length: float | None
    ci_low: float | None
    ci_high: float | None
    request_mean_acceptance_length: float | None
    request_stdev: float | None
    accepted_at_pos: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FromRun:
    """A measured block, the run that it is from, and the SHA-256 of its prompt set.

    Blocks of the same prompts in several runs are evidence on the same prompts.
    """

    run: str
    prompts: str
    block: Block


def summaries(groups: Mapping[Group, Sequence[FromRun]]) -> tuple[AcceptanceSummary, ...]:
    """One summary per group with spec blocks, in ascending order of K."""
    found = (summary_of(group, blocks) for group, blocks in groups.items() if blocks)
    return tuple(sorted(found, key=lambda s: (s.group.k, s.group.pair, s.group.acceptance)))


def grouped(runs: Iterable[tuple[str, AcceptanceSource, Sequence[FromRun]]]) -> Mapping[Group, list[FromRun]]:
    """The spec blocks of `runs`, which are (pair, where acceptance comes from, blocks), by group."""
    groups: dict[Group, list[FromRun]] = defaultdict(list)
    for pair, acceptance, blocks in runs:
        for found in blocks:
            if found.block.role.speculative:
                groups[Group(found.block.role.k, pair, acceptance)].append(found)
    return groups


def summary_of(group: Group, blocks: Sequence[FromRun]) -> AcceptanceSummary:
    """The summary of the spec blocks of one group. Raises InvalidResult where their counts contradict each other."""
    prompts: dict[tuple[str, int], list[AcceptanceRecord]] = defaultdict(list)
    single: list[AcceptanceRecord] = []
    together = False
    for found in blocks:
        requests = list(requests_of(found.block))
        together = together or len(requests) < len(found.block.tokens)
        single += [record for _, record in requests]
        for slot, record in requests:
            prompts[found.prompts, slot].append(record)
    total = reduce(add, single)
    if total.steps:
        total.check()
    by_prompt = [reduce(add, records) for records in prompts.values()]
    low, high = interval_over([r for r in by_prompt if r.steps], lambda r: r.steps + r.accepted, lambda r: r.steps)
    lengths = [r.acceptance_length for r in single if r.acceptance_length is not None]
    return AcceptanceSummary(
        group=group,
        blocks=len(blocks),
        cells=len({(found.run, found.block.cell.key) for found in blocks}),
        prompts=len(prompts),
        requests=None if together else len(single),
        num_drafts=total.steps,
        total_draft_tokens=total.drafted,
        total_accepted_tokens=total.accepted,
        mean_acceptance_rate=total.draft_acceptance_rate,
        mean_acceptance_length=total.acceptance_length,
        ci_low=low,
        ci_high=high,
        request_mean_acceptance_length=statistics.fmean(lengths) if lengths and not together else None,
        request_stdev=statistics.stdev(lengths) if len(lengths) > 1 and not together else None,
        accepted_at_pos=tuple(n / total.steps for n in total.accepted_at_pos) if total.steps else (),
    )


def requests_of(block: Block) -> Iterator[tuple[int, AcceptanceRecord]]:
    """(slot, record) of every request of a spec block. A server counts the requests of a block together: slot 0."""
    if block.served is None:
        for slot in range(len(block.tokens)):
            yield slot, record_of([block], slot)
    elif block.served.acceptance is not None:
        yield 0, block.served.acceptance
