"""Stop a point at the first interim look where every rule that rests on samples is decided, or where its time is spent.

The rules that rest on samples are those of sequential gates (`protocols.Sequential`): more pairs of blocks can still
change their verdict. All functions here are pure, so the same journal and policy stop a point at the same look during
the run, after a --resume, and when the run is recomputed offline. Where the time of a point was spent is stored
(`TimeEnd`), and is an interim look like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.grouping import grouped
from specgate.analysis.load.level_search import needless_points
from specgate.analysis.load.sweeps import told_apart
from specgate.analysis.machine.disturbed_blocks import judge_hosts, set_aside
from specgate.analysis.machine.minutes import seconds_of
from specgate.analysis.reduce import Checked, Known, measure
from specgate.analysis.references import cell_times
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.speculation.uptime import Answered, requests_by_block, with_drifts
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import Cell, Plan, Point, Policy, Rule, Run, State, TimeEnd, TimeEnds, Verdict
from specgate.contract.protocols import Counting, NeedsEarlierRun, RefusesForGood, Sequential
from specgate.files.journal import Journal
from specgate.planning.gates import lossy_cells, machine_limits, near_ties, needs_earlier_run, rules_with, verdicts_of

DECIDED = {State.PASS, State.IMPROVED, State.FAIL}
"""States that stop a point. INVALID does not: the margin of a divergence may not be recorded yet, and the divergence
may turn out to be a near tie. Only its gate can tell (`protocols.RefusesForGood`).
"""


EARLIER_RUNS_S = 25.0
"""Seconds of measuring after which a point that is measured until it is decided no longer waits for what is only about
earlier runs: a comparison with one, or being long enough for a later run.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """One interim look at a point. `rounds`: its measured rounds until then. `decided`: whether it ends the point.
    `open`: the verdicts that more samples may still change. `only_earlier`: all of them are about earlier runs.
    `refused`: verdicts of required rules that nothing measured later changes. Other rules on their cells are not open.
    """

    rounds: int
    decided: bool
    open: tuple[Verdict, ...] = ()
    only_earlier: bool = False
    refused: tuple[Verdict, ...] = ()


def ended_early(plan: Plan, run: Run, policy: Policy, journal: Journal, known: Known | None = None) -> dict[str, int]:
    """The points that stopped early: point key → number of measured rounds after which it was decided, or its time was
    spent. One that is measured until it is decided, and was interrupted, has its rounds up to the next look. A level
    that a search did not need has 0.

    A point that was decided only at its last look, or never, is not listed. Neither is one whose rounds up to the
    deciding look are not all in the journal. `known`: see `measure`.
    """
    left_out = {point.key: 0 for point in needless_points(plan, journal.blocks)}
    return {**next_looks(plan, journal), **stopped(plan, run, policy, journal, known), **left_out}


def next_looks(plan: Plan, journal: Journal) -> dict[str, int]:
    """The next look of every point that is measured until it is decided, unless that is the end of its plan."""
    coming = {}
    for point in plan.points:
        if plan.scenarios[point.scenario].until_decided:
            rounds = Plan(plan.scenarios, tuple(r for r in plan.rounds_of(point) if not r.warmup))
            mine = [b for b in journal.blocks if b.point == point and not b.warmup]
            done = len({(b.prompt_set, b.round) for b in whole_rounds(rounds, mine)})
            looks = planned_interim_looks(plan.scenarios[point.scenario])[:-1]
            if (look := next((look for look in looks if look > done), None)) is not None:
                coming[point.key] = look
    return coming


def stopped(plan: Plan, run: Run, policy: Policy, journal: Journal, known: Known | None = None) -> dict[str, int]:
    """The points that were decided or whose time was spent: see `ended_early`."""
    ended = {}
    for point, looks in interim_looks(plan, run, policy, journal, known):
        last = None
        for last in looks:
            if last.decided:
                ended[point.key] = last.rounds
                break
        else:
            spent = journal.time_ends.get(point.key, ())
            if spent and last is not None and last.rounds == spent[-1].rounds == measured_rounds(journal, point):
                ended[point.key] = last.rounds
    return ended


def not_continued(plan: Plan, run: Run, policy: Policy, journal: Journal) -> dict[str, int]:
    """The points that were decided or whose time was spent, but for those that have more time now."""
    ends, scenarios = journal.time_ends, {p.key: plan.scenarios[p.scenario] for p in plan.points}

    def goes_on(key: str, rounds: int) -> bool:
        budget, last = scenarios[key].schedule.budget_s, ends[key][-1] if key in ends else None
        return budget is not None and last is not None and last.rounds == rounds and last.seconds < budget

    ended = stopped(plan, run, policy, journal)
    return {key: rounds for key, rounds in ended.items() if not goes_on(key, rounds)}


def interim_looks(
    plan: Plan, run: Run, policy: Policy, journal: Journal, known: Known | None = None
) -> Iterator[tuple[Point, Iterator[Look]]]:
    """Yield every point with its interim looks, but for the last one of the plan, as far as the journal has rounds."""
    journal = as_measured(journal)
    of = grouped(journal.blocks, lambda block: block.point)
    answered, ends = requests_by_block(journal.blocks, journal.engines), journal.time_ends

    def looks(point: Point) -> Iterator[Look]:
        rounds = [r for r in plan.rounds_of(point) if not r.warmup]
        for look in planned_interim_looks(plan.scenarios[point.scenario], ends.get(point.key, ()))[:-1]:
            cut_plan = Plan(plan.scenarios, tuple(rounds[:look]))
            blocks = whole_rounds(cut_plan, of[point])
            if {(b.prompt_set, b.round) for b in blocks} != {(r.prompt_set, r.index) for r in cut_plan.rounds}:
                return
            yield look_at(cut_plan, run, policy, replace(journal, blocks=blocks), answered, known)

    for point in plan.points:
        yield point, looks(point)


def as_measured(journal: Journal) -> Journal:
    """`journal` without what a second engine said, which is asked only after the last block."""
    margins = [replace(m, float32=(), second=()) for m in journal.margins if m.top or not m.top_tokens]
    followed = [replace(f, float32=(), second=(), top_tokens=f.top_tokens if f.top else ()) for f in journal.followed]
    return replace(journal, margins=margins, followed=followed)


def look_at(
    plan: Plan, run: Run, policy: Policy, journal: Journal, answered: Mapping[int, Answered], known: Known | None = None
) -> Look:
    """Look at the rounds of `plan`, which has one point. They decide it if at least one rule that rests on samples
    judges a cell, and no such rule needs more samples. Where a point is measured until it is decided, rules that only
    advise do not count, nor do cells that a required rule refuses for good, and the first look decides a point without
    required rules.

    `answered`: the requests that every block of the run had before it; those of other points and warm-up count, too.
    A level of load is decided where its speed is told from the baseline's besides, on whichever side.
    A host that is too disturbed to be judged on decides nothing, as it may yet become quiet. Where a point is measured
    until it is decided, only a required rule on that keeps it open; a GPU that a required rule reads and that is not
    there ends it, since no further round could make up for that.
    """
    ties, limits, scenario = near_ties(policy), machine_limits(policy), plan.scenarios[plan.points[0].scenario]
    if scenario.until_decided and not run.environment.get("gpus") and any(r.required and of.gpu for r, of in limits):
        return Look(len(plan.rounds), decided=True)
    hosts = judge_hosts(plan, journal.blocks, limits, journal.engines)
    rejecting = [(rule, of) for rule, of in limits if rule.required or not scenario.until_decided]
    if any(host.too_many for host in judge_hosts(plan, journal.blocks, rejecting, journal.engines).values()):
        return Look(len(plan.rounds), decided=False)
    aside, ends = set_aside(hosts), with_now(plan, journal)
    records = Checked(journal.texts, asked=policy.checks, followed=journal.followed)
    cells, comparisons = measure(
        plan,
        journal.blocks,
        journal.margins,
        ties,
        records,
        forced=journal.forced,
        check_facts=CheckFacts(journal.engines, run.bandwidth, lossy_cells(policy, plan.cells)),
        known=known,
        aside=aside,
        between=run.between_runs,
        ends=ends,
        brief=True,
    )
    times = cell_times(plan, cells, journal.blocks, aside) if needs_earlier_run(policy) else {}
    cells = with_drifts(cells, answered, journal.blocks, journal.engines)
    # What the watch saw is known at the end alone: a point may stop here, and its verdict be open because of the clock.
    cut = replace(
        run,
        engines=journal.engines,
        cells=cells,
        comparisons=comparisons,
        failures={},
        conditions={},
        times=times,
        time_ends=ends,
    )
    every = (v for rule, _ in rules_with(policy, Sequential) for v in verdicts_of(rule, cut))
    verdicts = [v for v in every if v.state is not State.SKIPPED]
    if scenario.until_decided:
        verdicts = [v for v in verdicts if v.required]
    refused = tuple(refusals(policy, cut)) if scenario.until_decided else ()
    given_up = {v.cell for v in refused}
    still_open = tuple(v for v in verdicts if v.state not in DECIDED and v.cell not in given_up)
    load = scenario.load
    # What a search asks of the tail of latencies takes all rounds.
    apart = load is None or (load.search != "goodput" and told_apart(scenario, comparisons, run.between_runs))
    judged = bool(verdicts) or load is not None or scenario.until_decided
    of_earlier = {rule.id for rule, _ in rules_with(policy, NeedsEarlierRun)}
    only_earlier = bool(still_open) and all(v.rule in of_earlier for v in still_open)
    return Look(len(plan.rounds), apart and judged and not still_open, still_open, only_earlier, refused)


def refusals(policy: Policy, run: Run) -> Iterator[Verdict]:
    """Yield the verdicts of required rules that nothing measured later can change."""
    for rule, gate in rules_with(policy, RefusesForGood):
        if rule.required:
            yield from gate.refused_for_good(rule, run.view)


def with_now(plan: Plan, journal: Journal) -> TimeEnds:
    """The ends by time of the one point of `plan`, up to its last round. That counts as one with time left: from its
    seconds follows how long more rounds would take.
    """
    (point,), rounds = plan.points, len(plan.rounds)
    if not plan.scenarios[point.scenario].until_decided:
        return {}
    before = tuple(end for end in journal.time_ends.get(point.key, ()) if end.rounds < rounds)
    seconds = seconds_of(journal.blocks, plan.scenarios)
    return {point.key: (*before, TimeEnd(point.key, rounds, seconds, math.inf))}


def measured_rounds(journal: Journal, point: Point) -> int:
    """The measured rounds of `point` that have any block."""
    return len({(b.prompt_set, b.round) for b in journal.blocks if b.point == point and not b.warmup})


def required_decisions(plan: Plan, policy: Policy) -> int:
    """Number of decisions that the policy's required rules take by samples: one per rule and spec cell, unless the gate
    counts them itself.
    """
    rules = [(rule, gate) for rule, gate in rules_with(policy, Sequential) if rule.required]
    return sum(
        decisions_of(gate, rule, cell, plan) for rule, gate in rules for cell in plan.cells if rule.matches(cell)
    )


def decisions_of(gate: Sequential, rule: Rule, cell: Cell, plan: Plan) -> int:
    """Number of decisions that `rule` takes by the samples of `cell`."""
    if isinstance(gate, Counting):
        return gate.decisions(rule, cell, plan.scenarios[cell.point.scenario])
    return int(cell.role.speculative)


def truncated_plan(plan: Plan, ended: Mapping[str, int]) -> Plan:
    """`plan` without the rounds that are not run because their point stopped early.

    `ended`: point key → number of measured rounds that are kept, as `ended_early` returns it. Warm-up rounds are kept
    with them.
    """
    left: dict[Point, int] = {p: ended[p.key] for p in plan.points if p.key in ended}
    left_out = {point for point, rounds in left.items() if not rounds}
    rounds = []
    for round_ in plan.rounds:
        if round_.point in left_out:
            continue
        if not round_.warmup and round_.point in left:
            if left[round_.point] == 0:
                continue
            left[round_.point] -= 1
        rounds.append(round_)
    return replace(plan, rounds=tuple(rounds))


def in_grid_order(plan: Plan) -> Plan:
    """Return `plan` with the levels of a search by ascending level; any other plan has them so."""
    names = list(plan.scenarios)
    place = {p: (names.index(p.scenario), p.context, p.level) for p in plan.points}
    searching = any(s.load is not None and s.load.search == "goodput" for s in plan.scenarios.values())
    return replace(plan, rounds=tuple(sorted(plan.rounds, key=lambda r: place[r.point]))) if searching else plan
