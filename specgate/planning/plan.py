"""Scenarios → `contract.Plan`: every block of a run in running order, whether it fits, and how long it will take.

Per point, warm-up rounds run first, on the warm-up prompt sets (`Round.prompt_set` counts within that pool). A round
runs every role once, with `baseline` first or last. Then come the measured rounds: one on every prompt set, and again,
until every set has had its `rounds`. Two neighbouring rounds are an ABBA group: A B · B A or B A · A B. The scenario's
seed draws the kind by lot, so that nothing periodic on the machine meets one role alone. Half of the groups are of
either kind. Every second time, each set runs in the other order than the time before:

    first:   set 0: A B    set 1: B A   ·   set 2: B A    set 3: A B   …
    second:  set 0: B A    set 1: A B   ·   set 2: A B    set 3: B A   …

After every second time, each prompt has been measured equally often in both orders. A point can end there if its gates
have decided. That the rounds of a prompt set lie far apart shows what drifts slowly, which would otherwise be taken for
a difference between prompts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from specgate.analysis.load.level_search import search_order
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import BASELINE, LEAST_BUDGET_S, PASS_ROUNDS, Plan, Point, Role, Round, Scenario
from specgate.errors import UsageError
from specgate.planning.contradictions import check_plan


def build_plan(scenarios: Sequence[Scenario], backend: str) -> Plan:
    """The plan of a run: the scenarios one after the other, and for each its points.

    Raises UsageError where that would be more than `contradictions.py` allows.
    """
    check_plan(scenarios)
    rounds = (r for s in scenarios for point in points_of(s, backend) for r in rounds_of(s, point))
    return Plan({s.name: s for s in scenarios}, tuple(rounds))


def points_of(scenario: Scenario, backend: str) -> Iterator[Point]:
    """The points of a scenario's grid; the levels of a load in the order of its search."""
    for context in scenario.grid.context:
        points = [
            Point(scenario.name, backend, context, batch, rate)
            for batch in scenario.grid.batch
            for rate in (scenario.load.rates if scenario.load is not None else ()) or (None,)
        ]
        load = scenario.load
        yield from search_order(points) if load is not None and load.search == "goodput" else points


def rounds_of(scenario: Scenario, point: Point) -> Iterator[Round]:
    """The rounds of a point, warm-up first, in running order."""
    workload, schedule = scenario.workload, scenario.schedule
    for prompt_set in range(workload.warmup_sets):
        for i in range(schedule.warmup_rounds):
            yield Round(point, prompt_set, i, running_order(scenario.roles, prompt_set + i), warmup=True)
    yield from groups_by_load(scenario, point) if scenario.schedule.by_load else groups_by_lot(scenario, point)


def groups_by_lot(scenario: Scenario, point: Point) -> Iterator[Round]:
    """The measured rounds: groups of two neighbouring rounds, drawn by lot."""
    sets = scenario.workload.prompt_sets
    turns: list[int] = []
    for index in range(scenario.rounds):
        turns = [1 - turn for turn in turns] if index % PASS_ROUNDS else drawn_turns(scenario, point, index)
        for prompt_set in range(sets):
            order = running_order(scenario.roles, turns[prompt_set])
            yield Round(point, prompt_set, index, order, warmup=False)


def groups_by_load(scenario: Scenario, point: Point) -> Iterator[Round]:
    """The measured rounds for an engine that holds one role at a time: A A … B B …, then B B … A A …, and so on.

    Neighbouring rounds of one order share their loads, and two groups share the one between them. A prompt set runs in
    the orders by turns, as in any plan: rounds with an even index forward, those with an odd one backward.
    """
    block = scenario.load_passes * PASS_ROUNDS
    for begin in range(0, scenario.rounds, block):
        for turn in range(PASS_ROUNDS):
            for index in range(begin + turn, min(begin + block, scenario.rounds), PASS_ROUNDS):
                for prompt_set in range(scenario.workload.prompt_sets):
                    yield Round(point, prompt_set, index, running_order(scenario.roles, turn), warmup=False)


def loads_of(rounds: Sequence[Round]) -> int:
    """Number of times that an engine which holds one role at a time is loaded for these measured rounds."""
    running = (role for order, _ in groupby(q.order for q in rounds) for role in order)
    return sum(1 for _ in groupby(running))


def drawn_turns(scenario: Scenario, point: Point, index: int) -> list[int]:
    """Prompt set → whether its round number `index` runs forward (0) or backward (1).

    Half of the groups begin forward. The lot is a hash, which is the same in every version of Python.
    """
    sets = scenario.workload.prompt_sets
    lots = {
        group: hashlib.sha256(f"{scenario.workload.seed} {point.key} {index} {group}".encode()).digest()
        for group in range((sets + 1) // 2)
    }
    backward = set(sorted(lots, key=lambda group: lots[group])[: len(lots) // 2])
    if len(lots) % 2 and lots[min(lots)][0] % 2:  # with an odd number of groups, which kind is in the majority, too
        backward = set(lots) - backward
    return [(prompt_set + (prompt_set // 2 in backward)) % 2 for prompt_set in range(sets)]


def running_order(roles: tuple[Role, ...], turn: int) -> tuple[Role, ...]:
    """The roles forward at an even `turn`, backward at an odd one."""
    return roles[::-1] if turn % 2 else roles


def prefill_group(round_: Round) -> tuple[object, ...]:
    """A key of the round. Rounds that follow each other and have the same key share one prefill of a micro run, unless
    its engine holds one role at a time.
    """
    return (True, round_.prompt_set) if round_.warmup else (False, round_.prompt_set, round_.index)


# ── does it fit ──────────────────────────────────────────────────────────────────────────────────────────────────────


def positions_needed(scenario: Scenario, point: Point) -> int:
    """The most positions that a slot may have to cache: the prompt, what a block adds, and one verify pass beyond."""
    for_draws = 0
    if (draws := scenario.draws) is not None:
        for_draws = draws.prompt_tokens + draws.tokens + max(role.k for role in scenario.roles) + 2
    return max(point.context + room_needed(scenario), for_draws)


def room_needed(scenario: Scenario) -> int:
    """Positions after the prompt: the block's tokens, the prefill token, and K drafts with their bonus token."""
    return max(scenario.budget.longest(role.k) + role.k + 2 for role in scenario.roles)


def check_limits(plan: Plan, limits: Mapping[str, int], pair: str) -> None:
    """Check that the pair called `pair` has enough positions for every point.

    `limits`: scenario name → positions of the pair under that scenario's RoPE scaling. A scenario that is not in it has
        a pair that states no limit.

    Raises UsageError that lists every point that needs more, with the numbers and what would be right.
    """
    limited = [p for p in plan.points if p.scenario in limits]
    too_long = [p for p in limited if positions_needed(plan.scenarios[p.scenario], p) > limits[p.scenario]]
    if too_long:
        lines = [_too_long(plan.scenarios[p.scenario], p, limits[p.scenario], pair) for p in too_long]
        raise UsageError("context longer than the pair allows\n  " + "\n  ".join(lines))


def _too_long(scenario: Scenario, point: Point, limit: int, pair: str) -> str:
    need, room = positions_needed(scenario, point), room_needed(scenario)
    remedies = []
    if limit > room:
        remedies.append(f"a context ≤ {limit - room}")
    current = scenario.rope.factor if scenario.rope else 1.0
    factor = math.ceil(need * current / limit)
    remedies.append(
        f"{{rope_type: yarn, factor: {factor}}} as a scenario's rope, or as rope_scaling in config.json of --target"
    )
    return (
        f"{scenario.source_file or scenario.name}: grid.context: {point.context}: with {room} positions for the answer "
        f"it needs {need}, and pair {pair!r} has {limit}; right would be {' or '.join(remedies)}"
    )


def check_biases(scenarios: Mapping[str, Scenario], vocabularies: Mapping[str, int], pair: str) -> None:
    """Check that the pair called `pair` has every token whose logit a scenario adds to.

    `vocabularies`: scenario name → tokens of the target. Raises UsageError for the first scenario that names another.
    """
    for name, scenario in scenarios.items():
        biased = scenario.sampling.logit_bias if scenario.sampling else ()
        if beyond := [token for token, _ in biased if token >= vocabularies[name]]:
            raise UsageError(
                f"{scenario.source_file or name}: sampling.logit_bias: token {beyond[0]}; pair {pair!r} has "
                f"{vocabularies[name]} tokens",
                hint=f"right would be 0–{vocabularies[name] - 1}",
            )


# ── how long will it take ────────────────────────────────────────────────────────────────────────────────────────────


LOADED_BYTES_S: Final = 5e8
"""Bytes of weights that an engine loads per second: a server of an 8B target was ready after a minute."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Estimated seconds on one class of machine, right within a factor of two: good enough to choose what to run.

    `open`: seconds to start an engine.
    `prefill_kilo_token`: seconds per 1024 prompt tokens.
    `step`, `row`, `kilo_cached`: a target pass over `rows` tokens with `cached` positions takes `step + row·rows +
        kilo_cached·cached/1024` seconds.
    `draft`: seconds per drafted token of a cycle.
    `accept`: the probability that a draft token is accepted, given that all before it were.
    """

    open: float
    prefill_kilo_token: float
    step: float
    row: float
    kilo_cached: float
    draft: float
    accept: float = 0.75

    def loading(self, target: Path) -> CostModel:
        """The same with the time that it takes to load the weights in the folder `target`."""
        weights = sum(file.stat().st_size for file in target.glob("*.safetensors"))
        return replace(self, open=self.open + weights / LOADED_BYTES_S)

    def step_s(self, role: Role, point: Point) -> float:
        """Seconds of one step of `role`."""
        rows, cached = point.batch * (role.k + 1), point.batch * point.context
        return self.step + self.row * rows + self.kilo_cached * cached / 1024 + self.draft * role.k

    def acceptance_length(self, role: Role) -> float:
        """1 + a + a² + … + aᵏ: the mean acceptance length where each draft token is accepted with probability a."""
        return sum(self.accept**i for i in range(role.k + 1))

    def prefill_s(self, point: Point) -> float:
        """Seconds to prefill all slots of `point`."""
        return self.prefill_kilo_token * point.batch * point.context / 1024


COST = {
    "cpu": CostModel(open=6, prefill_kilo_token=2.0, step=0.022, row=0.0042, kilo_cached=0.001, draft=0.002),
    "gpu": CostModel(open=20, prefill_kilo_token=0.05, step=0.015, row=0.0, kilo_cached=0.00005, draft=0.001),
}
"""Machine size → estimated costs, for the demo pair under the torch reference engine.

`cpu`: float32 on two CPU cores, fitted to measured steps of 1 to 16 rows.
`gpu`: bfloat16 on one data-centre GPU. This is a guess: eager kernels, so a step costs its launches whatever its rows.
"""


def round_seconds(scenario: Scenario, round_: Round, cost: CostModel) -> float:
    """Seconds of all blocks of a round, with their own prefills where these are whole requests."""
    if scenario.load is not None:
        return sum(load_seconds(scenario, round_.point, role, cost) for role in round_.order)
    prefill = cost.prefill_s(round_.point) if scenario.whole_requests else 0.0
    return sum(prefill + _steps(scenario, role, cost) * cost.step_s(role, round_.point) for role in round_.order)


def load_seconds(scenario: Scenario, point: Point, role: Role, cost: CostModel) -> float:
    """Seconds of one block of a server under load: until the last request has arrived, and as many batches after each
    other as it takes.
    """
    requests = scenario.prompts_in_set(point.batch, point.rate)
    batches = -(-requests // point.batch) * (
        cost.prefill_s(point) + _steps(scenario, role, cost) * cost.step_s(role, point)
    )
    return batches if point.rate is None else max(batches, requests / point.rate)


def _steps(scenario: Scenario, role: Role, cost: CostModel) -> float:
    budget = scenario.budget
    if budget.steps is not None:
        return budget.steps
    assert budget.new_tokens is not None
    return budget.new_tokens / cost.acceptance_length(role)


def estimate_seconds(plan: Plan, cost: CostModel) -> dict[Point, tuple[float, float]]:
    """Seconds per point, at least and at most: to its first interim look, and to its last one or until its time is
    spent. Each with an engine start, prefills, warm-up, and the default checks of its tokens. An engine that holds one
    role at a time starts and warms up at every load.
    """
    seconds = {}
    for point in plan.points:
        scenario, rounds = plan.scenarios[point.scenario], list(plan.rounds_of(point))
        warmup = cost.open + seconds_of_rounds(scenario, point, [r for r in rounds if r.warmup], cost)
        measured, checks = [r for r in rounds if not r.warmup], check_seconds(scenario, point, cost)
        least, most = (
            seconds_of_rounds(scenario, point, measured[:count], cost)
            + (loads_of(measured[:count]) - 1) * warmup * scenario.schedule.by_load
            for count in least_and_most_rounds(scenario)
        )
        if scenario.until_decided:
            most = max(least, min(most, scenario.schedule.budget_s or max(LEAST_BUDGET_S, warmup)))
        seconds[point] = warmup + least + checks, warmup + most + checks
    return seconds


def seconds_of_rounds(scenario: Scenario, point: Point, rounds: Sequence[Round], cost: CostModel) -> float:
    """Seconds of the blocks of `rounds`, and of the prefills that they share."""
    prefills = 0 if scenario.whole_requests else len({prefill_group(r) for r in rounds})
    return prefills * cost.prefill_s(point) + sum(round_seconds(scenario, r, cost) for r in rounds)


def least_and_most_rounds(scenario: Scenario) -> tuple[int, int]:
    """The measured rounds of a point at its first interim look and at its last one."""
    looks = planned_interim_looks(scenario)
    return looks[0], looks[-1]


def check_seconds(scenario: Scenario, point: Point, cost: CostModel) -> float:
    """Seconds to decode the baseline's text as far as the longest spec text goes, once per prompt set, and to score a
    sample of the tokens with a second engine.
    """
    longest = max(cost.acceptance_length(role) for role in scenario.roles)
    steps = (longest - 1) * (scenario.budget.steps or 0)  # whole requests are equally long in every role
    text = scenario.workload.prompt_sets * steps * cost.step_s(BASELINE, point)
    return text + cost.open + cost.prefill_s(replace(point, batch=1))
