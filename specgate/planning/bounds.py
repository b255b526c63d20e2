"""The largest numbers that a scenario may hold, so that none is multiplied out before it was looked at.

They lie far above what is measured anywhere, and far below what would fill memory or take minutes to lay out. A key's
own bound is declared with it (`contract.scenarios`). Here are those of products, which also hold for the settings of a
command line and for the configuration of a stored run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from specgate.contract import Scenario
from specgate.contract.reading import KeyPath, dotted, problems_of, to_data, value_at
from specgate.errors import UsageError
from specgate.files.json_text import shown

TOKENS: Final = 1 << 26
"""Token ids of all prompts of a point, and of all slots of a block: 64 Mi, about 2.4 GB in Python."""
BLOCKS: Final = 200_000
"""Blocks of a plan: two days of blocks that last a second."""
CELLS: Final = 10_000


class Excess(NamedTuple):
    """A product that is too large. `key` is the key of the scenario file that makes most of it."""

    key: KeyPath
    why: str


def unsound(s: Scenario) -> Iterator[Excess]:
    """Numbers of a scenario that a file could not have had: it was built in code, or changed by a command line."""
    if not (s.grid.context or s.workload.own):
        yield Excess(("grid", "context"), "exact prompt lengths are needed")
    data = to_data(Scenario, s)
    for problem in problems_of(Scenario, s):
        value = value_at(data, problem.key)
        yield Excess(problem.key, f"{shown(value)}: {problem.why}")


def excesses(s: Scenario) -> Iterator[Excess]:
    """The products of a scenario's numbers that are too large."""
    sets = s.workload.prompt_sets + s.workload.warmup_sets
    what = "batch" if s.load is None else "requests"
    context, batch, longest = (
        max(s.grid.context, default=1),
        s.prompts_in_set(max(s.grid.batch)),
        max(s.budget.longest(role.k) for role in s.roles),
    )
    if (tokens := sets * batch * context) > TOKENS:
        yield Excess(
            ("grid", "context"),
            f"{sets} prompt sets × {what} {batch} × context {context} = {tokens} token ids; at most {TOKENS}",
        )
    if (tokens := batch * longest) > TOKENS:
        yield Excess(("budget",), f"{what} {batch} × {longest} new tokens = {tokens} token ids; at most {TOKENS}")
    if (cells := points_in(s) * len(s.roles)) > CELLS:
        yield Excess(("grid",), f"{cells} cells; at most {CELLS}")
    if (blocks := blocks_of(s)) > BLOCKS:
        yield Excess(
            ("schedule",),
            f"{points_in(s)} points × {rounds_of(s)} rounds × {len(s.roles)} roles = {blocks} blocks; at most {BLOCKS}",
        )


def points_in(s: Scenario) -> int:
    """The points of the scenario."""
    rates = len(s.load.rates) if s.load is not None else 0
    return len(s.grid.context) * len(s.grid.batch) * max(rates, 1)


def rounds_of(s: Scenario) -> int:
    """The rounds of each point of the scenario, warm-up included."""
    return s.workload.prompt_sets * s.schedule.rounds + s.workload.warmup_sets * s.schedule.warmup_rounds


def blocks_of(s: Scenario) -> int:
    """The blocks of all points of the scenario."""
    return points_in(s) * rounds_of(s) * len(s.roles)


def check_plan(scenarios: Iterable[Scenario]) -> None:
    """Raise UsageError where one of the scenarios, or all of them together, would be too large a plan."""
    every = list(scenarios)
    for scenario in every:
        if worst := next(unsound(scenario), None) or next(excesses(scenario), None):
            where = f"{scenario.source_file or scenario.name}: {dotted(worst.key)}"
            raise UsageError(f"{where}: {worst.why}", hint="ask for less, or split the scenario")
    if (blocks := sum(map(blocks_of, every))) > BLOCKS:
        raise UsageError(f"{len(every)} scenarios: {blocks} blocks; at most {BLOCKS}", hint="run them apart")
