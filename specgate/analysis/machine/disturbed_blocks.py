"""Find the blocks that had the CPUs to themselves, and the rounds that are set aside because a block did not.

This follows from the host's counters alone (`contract.conditions.CpuUse`) and never from how long a block took. What is
left out is therefore left out independently of what was measured: this is no removal of outliers, and intervals over
the rest keep their error. A round is set aside together with the round of the same prompt set that runs its roles in
the other order, A B · B A, so that whatever is left has both orders equally often.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.analysis.grouping import grouped
from specgate.contract import PASS_ROUNDS, Block, Cell, EngineFacts, Plan, Rule
from specgate.contract.conditions import OWN_THREADS, CpuUse, Disturbance, HostJudgement, HostLimits, MachineLimits

TICK_NS: Final = 10_000_000
"""How coarsely the kernel counts the time that a CPU is busy or stolen: in hundredths of a second per CPU."""
LEAST_TICKS: Final = 4
"""In shorter blocks such counters tell nothing."""
LEAST_WAIT_NS: Final = 1_000_000
"""Shorter waits are no sign of load: a thread that wakes up waits for a moment on an idle machine, too."""

Rounds = frozenset[tuple[int, int]]
"""(prompt set, round) of measured rounds of one point."""
SetAside = Mapping[str, Rounds]
"""Point key → the rounds whose times are left out."""


RuleLimits = Sequence[tuple[Rule, MachineLimits]]
"""The rules of a policy that limit the machine, each with its limits."""


def judge_hosts(
    plan: Plan, blocks: Sequence[Block], rules: RuleLimits, engines: Mapping[str, EngineFacts]
) -> dict[str, HostJudgement]:
    """Point key → judgement, for the points of which `rules` ask for one and which have a measured block.

    `blocks` must come from whole rounds. An engine whose clock is scripted is not disturbed by anything.
    """
    of = grouped((block for block in blocks if not block.warmup), lambda block: block.point.key)
    judgements = {}
    for point in plan.points:
        limits = host_limits(rules, [cell for cell in plan.cells if cell.point == point])
        facts = engines.get(point.key)
        if limits is not None and of[point.key] and (facts is None or facts.acceptance != "scripted"):
            judgements[point.key] = judge_host(of[point.key], limits)
    return judgements


def host_limits(rules: RuleLimits, cells: Sequence[Cell]) -> HostLimits | None:
    """The limits for the point with these cells; None where no rule limits single blocks.

    Of several rules that do, the smallest limits count.
    """
    limits = [of.host for rule, of in rules if of.host is not None and any(map(rule.matches, cells))]
    if not limits:
        return None
    names = ("max_other_cpu_share", "max_cpu_wait", "max_set_aside")
    return HostLimits(*(min(getattr(of, name) for of in limits) for name in names))


def set_aside(judgements: Mapping[str, HostJudgement]) -> SetAside:
    """The rounds that are set aside, by point."""
    return {key: frozenset(judgement.set_aside) for key, judgement in judgements.items()}


def timed(blocks: Sequence[Block], aside: SetAside) -> list[Block]:
    """The blocks whose times count."""
    return [b for b in blocks if (b.prompt_set, b.round) not in aside.get(b.point.key, ()) or b.warmup]


def judge_host(blocks: Sequence[Block], limits: HostLimits) -> HostJudgement:
    """The judgement of one point. `blocks`: its measured blocks; at least one."""
    counted: dict[str, int] = defaultdict(int)
    unseen: dict[str, str] = {}
    disturbed = []
    for block in blocks:
        if block.cpu is None:
            unseen.setdefault("cpu", "the CPUs were not counted beside its blocks")
            continue
        shares = dict(shares_of(block.cpu))
        for code in shares:
            counted[code] += 1
        for name, why in unjudged(block.cpu).items():
            unseen.setdefault(name, why)
        if (worst := worst_of(shares, limits)) is not None:
            disturbed.append(Disturbance(block.prompt_set, block.round, block.role.name, *worst))
    rounds = {(b.prompt_set, b.round) for b in blocks}
    visits = {visit(d.prompt_set, d.round) for d in disturbed}
    aside = sorted(r for r in rounds if visit(*r) in visits)
    too_many = len(aside) > limits.max_set_aside * len(rounds)
    known = [b.cpu for b in blocks if b.cpu is not None]
    return HostJudgement(
        limits=limits,
        blocks=len(blocks),
        rounds=len(rounds),
        seen=dict(counted),
        unseen=unseen,
        disturbed=tuple(disturbed),
        set_aside=() if too_many else tuple(aside),
        too_many=len(aside) if too_many else 0,
        other_cpu_share=max((s for s in map(other_cpu_share, known) if s is not None), default=None),
        cpu_wait=max((cpu.waited_ns / cpu.wall_ns for cpu in known if cpu.waited_ns is not None), default=None),
        cpus=min((cpu.offered for cpu in known), default=None),
        cpus_wanted=max((w for w in map(cpus_wanted, known) if w is not None), default=None),
    )


def visit(prompt_set: int, round_: int) -> tuple[int, int]:
    """Key that a round shares with the one that runs the same prompt set in the other order."""
    return prompt_set, round_ // PASS_ROUNDS


# ── one block ────────────────────────────────────────────────────────────────────────────────────────────────────────


def shares_of(cpu: CpuUse) -> Iterator[tuple[str, float]]:
    """(reason code, share) of everything that the block can be judged by.

    Shares that rest on ticks are what they are at least: a counter may be one tick ahead on every CPU.
    """
    tick, other = TICK_NS / cpu.wall_ns, other_cpu_share(cpu)
    if cpu.wall_ns >= LEAST_TICKS * TICK_NS:
        if other is not None:
            yield "other_cpu_share", other - tick
        if cpu.stolen_ns is not None:
            yield "stolen", cpu.stolen_ns / cpu.wall_ns - tick
    if cpu.throttled_ns is not None:
        yield "throttled", cpu.throttled_ns / cpu.wall_ns
    if cpu.waited_ns is not None:
        if not starved(cpu):
            yield "cpu_wait", cpu.waited_ns / cpu.wall_ns if cpu.waited_ns > LEAST_WAIT_NS else 0.0
    elif cpu.pressure_ns is not None:  # of all tasks of the machine, so it is asked only where our own cannot be
        yield "pressure", cpu.pressure_ns / cpu.wall_ns if cpu.pressure_ns > LEAST_WAIT_NS else 0.0


def worst_of(shares: Mapping[str, float], limits: HostLimits) -> tuple[str, float] | None:
    """(reason code, share) of what is furthest beyond its limit; None where nothing is beyond it."""
    beyond = {code: share - limit_of(code, limits) for code, share in shares.items() if share > limit_of(code, limits)}
    code = max(beyond, key=lambda c: beyond[c], default=None)
    return None if code is None else (code, shares[code])


def limit_of(code: str, limits: HostLimits) -> float:
    """The limit of a share."""
    return limits.max_other_cpu_share if code == "other_cpu_share" else limits.max_cpu_wait


def unjudged(cpu: CpuUse) -> dict[str, str]:
    """Counter → why the block could not be judged by it."""
    reasons = {name: why for name, why in cpu.unread.items() if name != "pressure_ns" or cpu.waited_ns is None}
    if cpu.wall_ns < LEAST_TICKS * TICK_NS and not reasons.keys() & {"busy_ns", "ours_ns"}:
        reasons["busy_ns"] = f"blocks shorter than {LEAST_TICKS * TICK_NS / 1e6:.0f} ms"
    return reasons


def other_cpu_share(cpu: CpuUse) -> float | None:
    """The share of the usable CPUs' time that others used or a hypervisor took; None where it is not known."""
    if cpu.busy_ns is None or cpu.ours_ns is None:
        return None
    return min(1.0, max(0.0, (cpu.busy_ns - cpu.ours_ns) / (cpu.wall_ns * cpu.cpus)))


def cpus_wanted(cpu: CpuUse) -> float | None:
    """Number of CPUs that the engine's threads would have used; None if it is not known."""
    return None if cpu.wanted_ns is None else cpu.wanted_ns / cpu.wall_ns


def starved(cpu: CpuUse) -> bool:
    """True if the engine has more busy threads than there are CPUs, so that its waits say nothing of others."""
    demand = cpus_wanted(cpu)
    return demand is not None and demand > cpu.offered + OWN_THREADS
