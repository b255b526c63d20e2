"""Values of a scenario that are right alone and contradict each other.

They lie far above what is measured anywhere, and far below what would fill memory or take minutes to lay out. A key's
own bound is declared with it (`contract.scenarios`). Here are those of products, which also hold for the settings of a
command line and for the configuration of a stored run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from specgate.contract import Scenario
from specgate.contract.reading import Problem, problems_of, to_data, value_at
from specgate.contract.types import KeyPath, dotted
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
        s.set_sizes[-1],
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
    return s.workload.prompt_sets * s.rounds + s.workload.warmup_sets * s.schedule.warmup_rounds


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


MIN_PROMPTS: Final = 8
"""Different prompts that a cell must have. Fewer would say more about the prompts than about the engine."""


def contradictions(scenario: Scenario) -> Iterator[Problem]:
    """Problems that lie in the combination of several keys."""
    sets, rounds, batch = scenario.workload.prompt_sets, scenario.rounds, scenario.grid.batch[0]
    yield from load_contradictions(scenario)
    if not scenario.grid.spec:
        yield Problem(("grid", "spec"), "must not be empty: at least one draft length")
    if scenario.kind == "micro" and scenario.budget.steps is None:
        yield Problem(("budget",), "a micro scenario counts engine steps: set steps, not new_tokens")
    if scenario.kind == "micro" and scenario.goodput is not None:
        yield Problem(("goodput",), "a micro scenario measures no whole requests, so it has no goodput: leave it out")
    if scenario.draws is not None and scenario.sampling is None:
        yield Problem(("draws",), "greedy decoding draws nothing: set sampling, or leave this out")
    if (
        scenario.draws is not None
        and scenario.sampling is not None
        and scenario.sampling.filters
        and scenario.needs != "cpu"
    ):
        why = "engines that round differently part at a filter's last token: leave out top_p, top_k and min_p"
        yield Problem(("draws",), f"{why}, or say needs: cpu")
    if scenario.sampling is not None and scenario.kind == "load":
        yield Problem(("sampling",), "a server under load is asked greedily: leave it out")
    yield from contradicting_variants(scenario)
    yield from contradicting_prompts(scenario)
    in_set, what = batch, f"batch {batch}"
    if scenario.load is not None:
        in_set = scenario.set_sizes[0]
        what = f"{in_set} requests"
    if sets * in_set < MIN_PROMPTS:
        enough = -(-MIN_PROMPTS // in_set)
        why = f"{sets} × {what} = {sets * in_set} different prompts; {MIN_PROMPTS} are needed: {enough} or more"
        yield Problem(("workload", "prompt_sets"), why)
    if sets * rounds % 2:
        why = f"with {sets} prompt sets an odd number of rounds, so the roles' two orders cannot balance: make one even"
        yield Problem(("schedule", "rounds"), why)


def contradicting_variants(scenario: Scenario) -> Iterator[Problem]:
    """Problems that a variant has beyond those of the scenario, each with the key that has it."""
    if not scenario.variants:
        return
    plain = replace(scenario, variants={})
    known = set(contradictions(plain))
    for name, variant in scenario.variants.items():
        changes = {key: value for key in ("sampling", "draws") if (value := getattr(variant, key)) is not None}
        for problem in contradictions(replace(plain, **changes)):
            if problem not in known:
                yield Problem(("variants", name, *problem.key), problem.why)


def contradicting_prompts(scenario: Scenario) -> Iterator[Problem]:
    """Yield one problem for each contradiction between the prompts' source and their lengths."""
    work, grid = scenario.workload, scenario.grid
    if work.file is None:
        if work.source == "file":
            yield Problem(("workload", "source"), "no file: set workload.file, or a source: mixed, code, docs, …")
        if not grid.context:
            yield Problem(
                ("grid", "context"), "exact prompt lengths are needed; only prompts from a file have their own"
            )
    if work.max_tokens is not None and work.max_tokens < work.min_tokens:
        yield Problem(("workload", "max_tokens"), f"less than min_tokens, which is {work.min_tokens}")
    if work.shared_prefix and grid.batch[-1] == 1:
        yield Problem(("workload", "shared_prefix"), "sets of one prompt share nothing: ask for a larger batch")


def load_contradictions(scenario: Scenario) -> Iterator[Problem]:
    """Problems of a scenario of `kind: load`, and of `load` in any other."""
    if (scenario.kind == "load") != (scenario.load is not None):
        why = "a load scenario says what it offers: load: {requests: …}"
        yield Problem(
            ("load",), why if scenario.load is None else f"only a scenario of kind: load has it, not {scenario.kind}"
        )
    if scenario.kind != "load":
        return
    if scenario.budget.new_tokens is None:
        yield Problem(("budget",), "a load scenario sends whole requests: set new_tokens, not steps")
    if scenario.perf_mode:
        yield Problem(("perf_mode",), "the loop of a server cannot be profiled: leave it out")
    if scenario.load is not None and scenario.load.rates and len(scenario.grid.batch) > 1:
        why = "an open loop has one: the most requests that the server decodes together; its levels are its rates"
        yield Problem(("grid", "batch"), why)
    yield from contradicting_arrivals(scenario)
    if scenario.load is not None and scenario.load.rates and scenario.load.per_client > 1:
        yield Problem(("load", "per_client"), "an open loop has no clients: requests says how many a block has")


def contradicting_arrivals(scenario: Scenario) -> Iterator[Problem]:
    """Yield problems of how the requests of a load come."""
    if (load := scenario.load) is None:
        return
    if load.arrivals == "trace" and scenario.workload.file is None:
        yield Problem(("load", "arrivals"), "the timestamps are in a file of prompts: set workload.file")
    elif load.arrivals != "poisson" and load.arrivals != "trace" and not load.rates:
        yield Problem(("load", "arrivals"), "only an open loop has arrivals: set load.rates, or --rate R,…")
    if load.burstiness != 1 and load.arrivals != "gamma":
        yield Problem(("load", "burstiness"), f"arrivals are {load.arrivals}: only gamma ones have it")
    if load.search == "goodput" and scenario.goodput is None:
        remedy = "set goodput: {ttft_ms: …, tpot_ms: …}, or --goodput ttft=…,tpot=… beside --find-max-goodput"
        yield Problem(("load", "search"), f"nothing to search for: {remedy}")
    if load.duration_s is None:
        return
    if load.ramp_s >= load.duration_s:
        yield Problem(("load", "ramp_s"), f"{load.ramp_s:g} s, but duration_s is {load.duration_s:g}: less than that")
    for rate in load.rates:
        if (expected := load.expected(rate, load.duration_s)) < 1:
            why = f"{load.duration_s:g} s at {rate:g} requests/s: {expected:.2g} requests, less than one"
            yield Problem(("load", "duration_s"), f"{why}: {1 / rate + load.ramp_s / 2:.3g} or more")
