"""The acceptance summary over many requests, and its layout.

There are two means of the acceptance length. The token-weighted one, 1 + accepted / steps over all requests, is that of
every figure elsewhere, and that of vLLM, SGLang and LMDeploy: a request with many steps weighs more. The mean over
requests gives each request the same weight. They differ where long answers are accepted otherwise than short ones.

Counts are pooled, never means. Each interval is over prompts: the steps of one prompt are alike, and rounds, runs and
engines that answer the same prompt once more are no new evidence on other prompts.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Final, Literal, TypeVar

from specgate.analysis.grouping import collected, grouped
from specgate.analysis.prompt_acceptance import interval_over, length_values, position_values, record_of
from specgate.analysis.requests.arrivals import request_records
from specgate.analysis.tokens.repetition import LOOPS
from specgate.contract import AcceptanceSource, Block, Value
from specgate.contract.acceptance import AcceptanceRecord

T = TypeVar("T")
Prompt = tuple[str, int]
"""SHA-256 of a prompt set, and the slot of the prompt in it. The same in every run that measured this set."""


@dataclass(frozen=True, slots=True)
class Request:
    """Counts of one request, or of all requests of a block that a server counts together.

    `run`: id of the run. `cell`: key of its cell. `pair`: the name of target and draft, other weights another name.
    `engine`: the engine in words. `prompt_class`: the category of the prompt, else its kind of text.
    `requests`: how many requests it stands for.
    `undrafted`: request-steps without a draft, which the record leaves out; None where a server does not tell.
    `repeated`: share of the 8-grams of its text that occurred before, the mean over its requests.
    `decoding`: what is not greedy decoding with whole chains, in words; empty where nothing is.
    """

    run: str
    cell: str
    pair: str
    acceptance: AcceptanceSource
    engine: str
    context: int
    prompt_class: str
    prompt: Prompt
    record: AcceptanceRecord
    requests: int
    undrafted: int | None
    repeated: float
    decoding: str = ""

    @property
    def loops(self) -> bool:
        """True if its text counts as looping."""
        return self.repeated > LOOPS


@dataclass(frozen=True, slots=True)
class Group:
    """Key of requests that are summed up. Other pairs, sources of acceptance, draft lengths and ways of decoding are
    never pooled.

    `value`: of the layout's key, which all requests of the group have; None without a key.
    """

    pair: str
    acceptance: AcceptanceSource
    k: int
    value: str | int | None = None
    decoding: str = ""


@dataclass(frozen=True, slots=True)
class AcceptanceSummary:
    """Acceptance of a group over all its requests.

    `prompts`: the different ones; of a server that counts requests together, the different sets of prompts.
    `requests`: how many were answered; rounds repeat the same texts. `together`: whether some of them were
        counted together.
    `num_drafts`: request-steps with a draft. `undrafted`: those without one; None where an engine does not tell.
    `total_draft_tokens`, `total_accepted_tokens`: over the steps with a draft.
    `values`: name → the figures of `analysis.prompt_acceptance` over the group, with intervals over prompts:
        `acceptance_length`, `draft_acceptance_rate`, and by position `acceptance_at_pos[i]` (of the steps that proposed
        draft i), `cond_acceptance_at_pos[i]` (of those that also accepted the draft before). Empty without a draft;
        no position where an engine does not count by position.
    `accepted_at_pos[i]`: share of all steps with a draft that accepted draft token i + 1. Where all steps
        have a draft, their sum is the acceptance length less 1. () where not observable.
    `request_mean_acceptance_length`: the mean over requests that had a draft; `request_stdev`: their spread. None where
        requests are counted together.
    `repeated_8gram_share`: share of repeats in the texts, the mean over prompts.
    `looping_prompts`: prompts with a text of which more than LOOPS are repeats. `without_loops`: the acceptance length
        of the requests whose text does not loop; None where all of them do, or none.
    """

    group: Group
    runs: int
    cells: int
    prompts: int
    requests: int
    together: bool
    num_drafts: int
    undrafted: int | None
    total_draft_tokens: int
    total_accepted_tokens: int
    values: Mapping[str, Value]
    accepted_at_pos: tuple[float, ...]
    request_mean_acceptance_length: float | None
    request_stdev: float | None
    repeated_8gram_share: float
    looping_prompts: int
    without_loops: Value | None

    @property
    def positions(self) -> int:
        """Number of draft positions that were counted."""
        return sum(name.startswith("acceptance_at_pos[") for name in self.values)

    def value(self, name: str) -> float | None:
        """The figure `name`; None where there is none."""
        figure = self.values.get(name)
        return figure.value if figure else None


def summary_of(group: Group, requests: Sequence[Request]) -> AcceptanceSummary:
    """The summary of a group of at least one request. Raises InvalidResult where its counts contradict each other."""
    prompts = by_prompt(requests, lambda request: request.record)
    of = {prompt: reduce(add, records) for prompt, records in prompts.items()}
    total = reduce(add, of.values())
    values: dict[str, Value] = {}
    if total.steps:
        total.check()
        values = {v.metric: v for v in (*length_values(of.values(), total), *position_values(of.values(), total))}
        values["acceptance_length"] = possible(values["acceptance_length"], group.k)
    together = any(request.requests > 1 for request in requests)
    lengths = [length for r in requests if (length := r.record.acceptance_length) is not None and not together]
    shares = by_prompt(requests, lambda request: request.repeated)
    undrafted = [request.undrafted for request in requests]
    looping = {request.prompt for request in requests if request.loops}
    return AcceptanceSummary(
        group=group,
        runs=len({request.run for request in requests}),
        cells=len({(request.run, request.cell) for request in requests}),
        prompts=len(prompts),
        requests=sum(request.requests for request in requests),
        together=together,
        num_drafts=total.steps,
        undrafted=None if None in undrafted else sum(n for n in undrafted if n is not None),
        total_draft_tokens=total.drafted,
        total_accepted_tokens=total.accepted,
        values=values,
        accepted_at_pos=tuple(n / total.steps for n in total.accepted_at_pos) if total.steps else (),
        request_mean_acceptance_length=statistics.fmean(lengths) if lengths else None,
        request_stdev=statistics.stdev(lengths) if len(lengths) > 1 else None,
        repeated_8gram_share=statistics.fmean(statistics.fmean(of_one) for of_one in shares.values()),
        looping_prompts=len(looping),
        without_loops=length_of([r for r in requests if not r.loops]) if looping else None,
    )


def length_of(requests: Sequence[Request]) -> Value | None:
    """Their acceptance length, token-weighted, with its interval over prompts; None without a draft."""
    of = [reduce(add, records) for records in by_prompt(requests, lambda request: request.record).values()]
    drafted = [record for record in of if record.counted_steps]
    if not drafted:
        return None
    low, high = interval_over(drafted, lambda r: r.counted_steps + r.accepted, lambda r: r.counted_steps)
    whole = reduce(add, drafted)
    length = Value("acceptance_length", whole.acceptance_length, "tok_weighted", len(drafted), low, high)
    return possible(length, whole.k)


def possible(length: Value, k: int) -> Value:
    """An acceptance length whose interval ends where lengths do: at 1 and at K + 1. Few prompts reach beyond."""
    if length.ci_low is None or length.ci_high is None:
        return length
    return replace(length, ci_low=max(1.0, length.ci_low), ci_high=min(k + 1.0, length.ci_high))


def by_prompt(requests: Sequence[Request], of: Callable[[Request], T]) -> Mapping[Prompt, list[T]]:
    """Prompt → what `of` says of each of its requests."""
    return collected((request.prompt, of(request)) for request in requests)


def counted(block: Block) -> Iterator[tuple[int, AcceptanceRecord]]:
    """(slot, record) of every request of a spec block. Where a server's arrivals do not tell its requests apart, all of
    them are slot 0.
    """
    if block.served is None:
        for slot in range(len(block.tokens)):
            yield slot, record_of([block], slot)
    elif block.served.acceptance is not None:
        yield from enumerate(request_records(block) or (block.served.acceptance,))


def undrafted_in(block: Block, slot: int) -> int | None:
    """Request-steps of a slot without a draft; of a server, those of all slots, None where it does not tell."""
    if block.served is not None:
        return block.steps_without_draft
    return sum(drafted[slot] == 0 for drafted in block.drafted)


Key = Literal["engine", "class", "context", "position"]
VALUES: Final[Mapping[Key, Callable[[Request], str | int]]] = {
    "engine": lambda r: r.engine,
    "class": lambda r: r.prompt_class,
    "context": lambda r: r.context,
}
"""Key → its value of a request. The key `position` has none: each summary is shown position by position."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A table. `by`: its key; None for the whole.

    `unlike`: of a table by engine, rows that differ in nothing but the engine and rest on other prompts, in words.
    """

    by: Key | None
    rows: tuple[AcceptanceSummary, ...]
    unlike: tuple[str, ...] = ()

    @property
    def by_position(self) -> bool:
        """True if its rows are draft positions."""
        return self.by == "position"


@dataclass(frozen=True, slots=True)
class SummedRun:
    """A run whose requests are summed up.

    `left_out`: keys of cells that are not, since their records are no evidence, and why.
    `other_text`: keys of cells whose text is not the baseline's, near ties apart.
    `cut_short`: why blocks of it are missing; None where it is complete.
    """

    id: str
    engine: str
    pair: str
    acceptance: str
    requests: int
    left_out: Mapping[str, str]
    other_text: tuple[str, ...]
    cut_short: str | None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The subject of the view `acceptance`: runs, and the tables of their requests. The first one is of the whole."""

    runs: tuple[SummedRun, ...]
    layouts: tuple[Layout, ...]


def layouts_of(requests: Sequence[Request]) -> tuple[Layout, ...]:
    """The whole, then a table per key that says more than the whole, by draft position last.

    Raises InvalidResult where counts of requests contradict each other.
    """
    whole = layout_of(requests, None)
    parts = (layout_of(requests, key) for key in VALUES)
    return whole, *(part for part in parts if len(part.rows) > len(whole.rows)), layout_of(requests, "position")


def layout_of(requests: Sequence[Request], by: Key | None) -> Layout:
    """The table by the key `by`: one summary per group, in ascending order of pair, draft length and the key."""
    groups = grouped(requests, lambda request: group_of(request, by))
    ordered = sorted(groups.items(), key=lambda item: order(item[0]))
    unlike = tuple(unlike_prompts(ordered)) if by == "engine" else ()
    return Layout(by, tuple(summary_of(group, members) for group, members in ordered), unlike)


def group_of(request: Request, by: Key | None) -> Group:
    value = VALUES[by](request) if by is not None and by in VALUES else None
    return Group(request.pair, request.acceptance, request.record.k, value, request.decoding)


def order(group: Group) -> tuple[object, ...]:
    """Sorts groups of the same key: numbers as numbers."""
    return group.pair, group.acceptance, group.k, group.decoding, *([] if group.value is None else [group.value])


def unlike_prompts(groups: Sequence[tuple[Group, Sequence[Request]]]) -> Iterator[str]:
    """Yield, in words, rows that differ in nothing but the engine and rest on other prompts."""
    alike: dict[Group, dict[str, set[Prompt]]] = defaultdict(dict)
    for group, members in groups:
        alike[replace(group, value=None)][str(group.value)] = {r.prompt for r in members}
    for engines in alike.values():
        common = set.intersection(*engines.values())
        if any(members != common for members in engines.values()):
            sizes = ", ".join(f"{engine} {len(members)}" for engine, members in engines.items())
            yield f"prompts of {sizes}; {len(common)} in common"
