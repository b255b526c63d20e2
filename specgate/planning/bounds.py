"""The largest numbers that a scenario may hold, so that none is multiplied out before it was looked at.

They lie far above what is measured anywhere, and far below what would fill memory or take minutes to lay out. A key's
own bound stands in its form (`scenario_form.py`). Here are those of products, which also hold for the settings of a
command line and for the configuration of a stored run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from specgate.contract import Scenario
from specgate.errors import UsageError
from specgate.sampling.settings import problems

POSITIONS: Final = 1 << 24
"""Tokens of one prompt, and positions of a RoPE scaling."""
BATCH: Final = 4096
DRAFT_TOKENS: Final = 8
VALUES: Final = 64
"""Values of one axis of a grid."""
STEPS: Final = 1 << 20
"""Engine steps, or new tokens, of one block."""
REPEATS: Final = 10_000
"""Rounds, warm-up rounds, prompt sets, warm-up sets."""
SEED: Final = (1 << 63) - 1
SECONDS: Final = 1e6
"""The longest time-out: eleven days."""
REQUESTS: Final = 1 << 16
"""Requests of one block of a load scenario, and of one of its clients."""
RATE: Final = 1e6
"""Requests per second."""
FACTOR: Final = 1e6
"""Numbers of a RoPE scaling."""
PARAMETER: Final = 1e12
"""Numbers of a policy: margins, floors and counts."""

TOKENS: Final = 1 << 26
"""Token ids of all prompts of a point, and of all slots of a block: 64 Mi, about 2.4 GB in Python."""
BLOCKS: Final = 200_000
"""Blocks of a plan: two days of blocks that last a second."""
CELLS: Final = 10_000


class Excess(NamedTuple):
    """A product that is too large. `key` is the key of the scenario file that makes most of it."""

    key: tuple[str, ...]
    why: str


def unsound(s: Scenario) -> Iterator[Excess]:
    """Numbers of a scenario that its form would not have let through: it was read from a stored run."""
    if not ((s.grid.context or s.workload.own) and s.grid.batch) or (s.budget.steps is None) == (
        s.budget.new_tokens is None
    ):
        yield Excess(("grid",), "a grid with contexts and batches, and a budget with one limit, are needed")
    numbers: tuple[tuple[tuple[str, str], Iterable[float], float, float], ...] = (
        (("grid", "context"), s.grid.context, 1, POSITIONS),
        (("grid", "batch"), s.grid.batch, 1, BATCH),
        (("grid", "spec"), s.grid.spec, 1, DRAFT_TOKENS),
        (("workload", "seed"), (s.workload.seed,), 0, SEED),
        (("workload", "prompt_sets"), (s.workload.prompt_sets,), 1, REPEATS),
        (("workload", "warmup_sets"), (s.workload.warmup_sets,), 1, REPEATS),
        (("workload", "shared_prefix"), (s.workload.shared_prefix,), 0, POSITIONS),
        (("budget", "steps"), () if s.budget.steps is None else (s.budget.steps,), 1, STEPS),
        (("budget", "new_tokens"), () if s.budget.new_tokens is None else (s.budget.new_tokens,), 1, STEPS),
        (("schedule", "rounds"), (s.schedule.rounds,), 1, REPEATS),
        (("schedule", "warmup_rounds"), (s.schedule.warmup_rounds,), 0, REPEATS),
        (("timeout_s", ""), (s.timeout_s,), 0, SECONDS),
        (("load", "requests"), () if s.load is None else (s.load.requests,), 1, REQUESTS),
        (("load", "per_client"), () if s.load is None else (s.load.per_client,), 1, REQUESTS),
        (("load", "rates"), () if s.load is None else s.load.rates, 1 / SECONDS, RATE),
        (("draws", "texts"), () if s.draws is None else (s.draws.texts,), 1, REQUESTS),
        (("draws", "tokens"), () if s.draws is None else (s.draws.tokens,), 1, STEPS),
        (("draws", "prompt_tokens"), () if s.draws is None else (s.draws.prompt_tokens,), 1, POSITIONS),
    )
    if s.sampling is not None:
        yield from (Excess(("sampling", name), f"{why} is needed") for name, why in problems(s.sampling))
    for key, values, least, most in numbers:
        if any(not least <= value <= most for value in values) or len(list(values)) > VALUES:
            yield Excess(tuple(filter(None, key)), f"{list(values)[:3]}: {least:g} to {most:g} are accepted")


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
    found = list(scenarios)
    for scenario in found:
        if worst := next(unsound(scenario), None) or next(excesses(scenario), None):
            where = f"{scenario.source_file or scenario.name}: {'.'.join(worst.key)}"
            raise UsageError(f"{where}: {worst.why}", hint="ask for less, or split the scenario")
    if (blocks := sum(map(blocks_of, found))) > BLOCKS:
        raise UsageError(f"{len(found)} scenarios: {blocks} blocks; at most {BLOCKS}", hint="run them apart")
