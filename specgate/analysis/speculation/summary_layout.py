"""Acceptance over many requests, laid out by engine, prompt class, context and more: a table per choice of keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from specgate.analysis.speculation.summary import AcceptanceSummary, Group, Prompt, Request, summary_of

Key = Literal["engine", "class", "context", "position", "spec", "batch", "scenario", "run"]
VALUES: Final[Mapping[str, Callable[[Request], str | int]]] = {
    "engine": lambda r: r.engine,
    "class": lambda r: r.prompt_class,
    "context": lambda r: r.context,
    "batch": lambda r: r.batch,
    "scenario": lambda r: r.scenario,
    "run": lambda r: r.run,
}
"""Key → its value of a request."""
ALWAYS: Final = "spec"
"""A key of every table: draft lengths are never pooled."""
BY_POSITION: Final = "position"
"""The key that is no property of a request: each summary is shown position by position."""
KEYS: Final[tuple[Key, ...]] = ("engine", "class", "context", "position", "spec", "batch", "scenario", "run")
USUAL: Final[tuple[tuple[Key, ...], ...]] = (("engine",), ("class",), ("context",), ("position",))
"""The tables where nobody asks for others."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A table. `by`: its keys; () for the whole.

    `unlike`: of a table by engine, rows that differ in nothing but the engine and rest on other prompts, in words.
    """

    by: tuple[Key, ...]
    rows: tuple[AcceptanceSummary, ...]
    unlike: tuple[str, ...] = ()

    @property
    def grouped_by(self) -> tuple[Key, ...]:
        """The keys that tell its groups apart, beside pair, source and draft length."""
        return tuple(key for key in self.by if key not in (ALWAYS, BY_POSITION))

    @property
    def by_position(self) -> bool:
        """True if its rows are draft positions."""
        return BY_POSITION in self.by


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


def layouts_of(requests: Sequence[Request], tables: Sequence[tuple[Key, ...]]) -> tuple[Layout, ...]:
    """The whole, then a table per entry of `tables`; where that is empty, those of USUAL that say more than the whole.

    Raises InvalidResult where counts of requests contradict each other.
    """
    chosen = tables or [by for by in USUAL if BY_POSITION in by or tells_apart(requests, by)]
    return layout_of(requests, ()), *(layout_of(requests, by) for by in chosen)


def layout_of(requests: Sequence[Request], by: tuple[Key, ...]) -> Layout:
    """The table by the keys `by`: one summary per group, in ascending order of pair, draft length and the keys."""
    bare = Layout(by, ())
    groups: dict[Group, list[Request]] = defaultdict(list)
    for request in requests:
        groups[group_of(request, bare.grouped_by)].append(request)
    ordered = sorted(groups.items(), key=lambda item: order(item[0]))
    unlike = tuple(unlike_prompts(ordered)) if "engine" in bare.grouped_by else ()
    return Layout(by, tuple(summary_of(group, members) for group, members in ordered), unlike)


def group_of(request: Request, keys: Sequence[Key]) -> Group:
    values = tuple((key, VALUES[key](request)) for key in keys)
    return Group(request.pair, request.acceptance, request.record.k, values, request.decoding)


def order(group: Group) -> tuple[object, ...]:
    """Sorts groups of the same keys: numbers as numbers."""
    return group.pair, group.acceptance, group.k, group.decoding, *(value for _, value in group.values)


def tells_apart(requests: Sequence[Request], by: Sequence[Key]) -> bool:
    """True if the keys divide requests that the whole has in one row."""
    return len({group_of(r, by) for r in requests}) > len({group_of(r, ()) for r in requests})


def unlike_prompts(groups: Sequence[tuple[Group, Sequence[Request]]]) -> Iterator[str]:
    """Yield, in words, rows that differ in nothing but the engine and rest on other prompts."""
    alike: dict[Group, dict[str, set[Prompt]]] = defaultdict(dict)
    for group, members in groups:
        others = tuple(pair for pair in group.values if pair[0] != "engine")
        engine = str(dict(group.values)["engine"])
        alike[Group(group.pair, group.acceptance, group.k, others, group.decoding)][engine] = {
            r.prompt for r in members
        }
    for engines in alike.values():
        common = set.intersection(*engines.values())
        if any(members != common for members in engines.values()):
            sizes = ", ".join(f"{engine} {len(members)}" for engine, members in engines.items())
            yield f"prompts of {sizes}; {len(common)} in common"
