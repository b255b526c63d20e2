"""Stop a point at the first interim look where every rule that rests on samples is decided.

Pure: the same journal and policy give the same stop during the run, after a --resume, and offline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specgate import plugins
from specgate.analysis.reduce import measure
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.stats import planned_looks
from specgate.api import Sequential
from specgate.core import Plan, Point, Policy, Run, State
from specgate.files.journal import Journal
from specgate.planning.policy import near_tie_margin

DECIDED = {State.PASS, State.IMPROVED, State.FAIL}
"""Not INVALID: a divergence whose margin is not recorded yet may turn out a near tie."""


def ended_early(plan: Plan, run: Run, policy: Policy, journal: Journal) -> dict[str, int]:
    """Point key → rounds after which it was decided, for every point that a look before its last one has ended."""
    found = {}
    for point in plan.points:
        rounds = [r for r in plan.rounds_of(point) if not r.warmup]
        for look in planned_looks(plan.scenarios[point.scenario])[:-1]:
            kept = Plan(plan.scenarios, tuple(rounds[:look]))
            blocks = whole_rounds(kept, journal.blocks)
            if {(b.prompt_set, b.round) for b in blocks} != {(r.prompt_set, r.index) for r in kept.rounds}:
                break
            if decided(kept, run, policy, replace(journal, blocks=blocks)):
                found[point.key] = look
                break
    return found


def decided(plan: Plan, run: Run, policy: Policy, journal: Journal) -> bool:
    """Whether rules that rest on samples speak of the cells of `plan`, and none of them needs more."""
    margin = near_tie_margin(policy)
    cells, comparisons = measure(plan, journal.blocks, journal.margins, margin, forced=journal.forced)
    cut = replace(run, engines=journal.engines, cells=cells, comparisons=comparisons, failures={})
    gates = [(rule, plugins.gate(rule.gate)) for rule in policy.rules]
    verdicts = [v for rule, gate in gates if isinstance(gate, Sequential) for v in gate.judge(rule, cut)]
    states = {v.state for v in verdicts if v.state is not State.SKIPPED}
    return bool(states) and states <= DECIDED


def without(plan: Plan, ended: Mapping[str, int]) -> Plan:
    """`plan` as it stands once points have `ended` after so many measured rounds."""
    left: dict[Point, int] = {p: ended[p.key] for p in plan.points if p.key in ended}
    kept = []
    for round_ in plan.rounds:
        if not round_.warmup and round_.point in left:
            if left[round_.point] == 0:
                continue
            left[round_.point] -= 1
        kept.append(round_)
    return replace(plan, rounds=tuple(kept))
