"""Blocks are judged by the host's counters alone; whole A B · B A are set aside, up to a stated share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.machine.disturbed_blocks import (
    LEAST_TICKS,
    TICK_NS,
    host_limits,
    judge_host,
    judge_hosts,
    set_aside,
    timed,
)
from specgate.analysis.machine.phrases import asides, causes
from specgate.analysis.reduce import measure
from specgate.contract import Block, NearTies, Plan, Policy, Rule
from specgate.contract.conditions import CpuUse, HostJudgement, HostLimits
from specgate.files.journal import Journal
from specgate.planning.gates import machine_limits
from specgate.run.early_stop import ended_early
from tests.support.factories import blocks_of, corrupt, plan_of, policy_of, run_of, scenario, with_acceptance
from tests.support.surroundings import lasting

LIMITS = HostLimits(max_other_cpu_share=0.25, max_cpu_wait=0.05, max_set_aside=0.25)
BLOCK_NS = 1_000_000_000
QUIET = CpuUse(
    wall_ns=BLOCK_NS,
    cpus=2,
    offered=2.0,
    busy_ns=1_020_000_000,
    ours_ns=1_000_000_000,
    stolen_ns=0,
    wanted_ns=1_010_000_000,
    waited_ns=3_000_000,
    pressure_ns=4_000_000,
)
LOADED = replace(QUIET, busy_ns=2 * BLOCK_NS, ours_ns=BLOCK_NS // 2, waited_ns=BLOCK_NS // 2)
PARAMS = {"gpu": False, "max_other_cpu_share": 0.25, "max_clock_shift": 1.0, "max_clock_jump_s": 1.0}
RULE = Rule("quiet", "environment", True, params={**PARAMS, "max_set_aside": 0.25})
PLAN = plan_of(scenario(rounds=4))
"""4 prompt sets, 4 rounds each: 8 times A B · B A, 16 pairs."""
ASKED = machine_limits(policy_of(RULE))


def with_counters(blocks: Sequence[Block], loaded: set[tuple[int, int, str]] | None = None) -> list[Block]:
    """The blocks on a host that is quiet but for those: (prompt set, round, role)."""
    loaded = loaded or set()
    return [replace(b, cpu=LOADED if (b.prompt_set, b.round, b.role.name) in loaded else QUIET) for b in blocks]


def judged(cpu: CpuUse | None, limits: HostLimits = LIMITS) -> HostJudgement:
    """The judgement of a point with one disturbed block among many quiet ones."""
    blocks = with_counters([b for b in blocks_of(PLAN) if not b.warmup])
    return judge_host([replace(blocks[0], cpu=cpu), *blocks[1:]], limits)


def test_a_quiet_host_disturbs_no_block() -> None:
    outcome = judged(QUIET)
    assert (outcome.disturbed, outcome.set_aside, outcome.too_many, dict(outcome.unseen)) == ((), (), 0, {})
    assert (outcome.blocks, outcome.rounds, outcome.cpus) == (32, 16, 2.0)
    assert outcome.other_cpu_share == pytest.approx(0.01) and outcome.cpu_wait == pytest.approx(0.003)
    assert set(outcome.seen.values()) == {32} and not outcome.starved


@pytest.mark.parametrize(
    ("changes", "code", "share", "message"),
    [
        ({"busy_ns": 1_700_000_000}, "other_cpu_share", 0.34, "others used up to 34% of the CPU time (at most 25%)"),
        ({"stolen_ns": 120_000_000}, "stolen", 0.11, "a hypervisor took up to 11% of a CPU (at most 5%)"),
        ({"throttled_ns": 60_000_000}, "throttled", 0.06, "held threads back for up to 6% of the block"),
        ({"waited_ns": 80_000_000}, "cpu_wait", 0.08, "a thread waited for a CPU for up to 8% of the block"),
        (
            {"waited_ns": None, "wanted_ns": None, "pressure_ns": 90_000_000},
            "pressure",
            0.09,
            "some task waited for a CPU for up to 9% of the block",
        ),
    ],
)
def test_each_counter_disturbs_with_its_own_code_and_share(
    changes: dict[str, int | None], code: str, share: float, message: str
) -> None:
    outcome = judged(replace(QUIET, **changes))  # type: ignore[arg-type]
    (only,) = outcome.disturbed
    assert only.reason_code == code and only.share == pytest.approx(share)
    assert message in causes(outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"busy_ns": 1_510_000_000},  # a share of 0.255, of which one tick per CPU may not have been in the block
        {"stolen_ns": 60_000_000},
        {"throttled_ns": 50_000_000},
        {"waited_ns": 50_000_000},
        {"pressure_ns": BLOCK_NS},  # of other tasks: our own waits are known
    ],
)
def test_up_to_its_limit_a_counter_disturbs_nothing(changes: dict[str, int]) -> None:
    assert judged(replace(QUIET, **changes)).disturbed == ()  # type: ignore[arg-type]


def test_a_wait_of_less_than_a_millisecond_is_a_wake_up_and_no_load() -> None:
    short = CpuUse(wall_ns=2_000_000, cpus=2, offered=2.0, wanted_ns=2_000_000, waited_ns=900_000)
    assert judged(short).disturbed == ()
    assert [d.reason_code for d in judged(replace(short, waited_ns=1_100_000)).disturbed] == ["cpu_wait"]


def test_a_block_too_short_for_ticks_is_judged_by_waits_and_says_so() -> None:
    wall = LEAST_TICKS * TICK_NS - 1
    short = replace(LOADED, wall_ns=wall, busy_ns=wall, ours_ns=0, wanted_ns=wall, waited_ns=wall // 2)
    outcome = judged(short)
    assert [d.reason_code for d in outcome.disturbed] == ["cpu_wait"]
    assert outcome.seen["other_cpu_share"] == outcome.seen["stolen"] == 31 and outcome.seen["cpu_wait"] == 32
    assert "blocks shorter than 40 ms" in "; ".join(asides(outcome))


def test_what_was_not_seen_is_named_and_does_not_count_as_quiet() -> None:
    hidden = CpuUse(wall_ns=BLOCK_NS, cpus=2, offered=2.0, unread={"busy_ns": "hidden", "waited_ns": "no schedstat"})
    blocks = [replace(b, cpu=hidden) for b in blocks_of(PLAN) if not b.warmup]
    host = judge_host(blocks, LIMITS)
    assert host.unjudged and host.disturbed == ()
    assert (host.other_cpu_share, host.cpu_wait, host.cpus_wanted) == (None, None, None)
    (aside,) = asides(host)
    assert aside == "not seen: the CPUs' busy time (hidden), the run-queue delay (no schedstat)"
    uncounted = judge_host([replace(b, cpu=None) for b in blocks], LIMITS)
    assert uncounted.unjudged and "the CPUs were not counted" in next(asides(uncounted))


def test_an_engine_with_more_busy_threads_than_cpus_waits_for_itself_and_that_is_said() -> None:
    own = replace(QUIET, wanted_ns=4 * BLOCK_NS, waited_ns=BLOCK_NS // 2, busy_ns=2 * BLOCK_NS, ours_ns=2 * BLOCK_NS)
    blocks = [replace(b, cpu=own) for b in blocks_of(PLAN) if not b.warmup]
    host = judge_host(blocks, LIMITS)
    assert host.starved and host.disturbed == () and "cpu_wait" not in host.seen
    (aside,) = asides(host)
    assert aside.startswith("the engine's threads want 4.0 CPUs and there are 2: it waits for itself")
    beside = [replace(b, cpu=replace(own, ours_ns=BLOCK_NS // 2)) for b in blocks]
    assert {d.reason_code for d in judge_host(beside, LIMITS).disturbed} == {"other_cpu_share"}


def test_a_control_groups_limit_counts_as_fewer_cpus() -> None:
    outcome = judged(replace(QUIET, offered=0.25))
    assert outcome.starved and outcome.cpus == 0.25


# ── what is set aside ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_disturbed_block_takes_both_orders_of_its_prompt_set_with_it() -> None:
    blocks = with_counters([b for b in blocks_of(PLAN) if not b.warmup], {(1, 2, "spec-3")})
    host = judge_host(blocks, LIMITS)
    assert host.set_aside == ((1, 2), (1, 3)) and host.too_many == 0
    assert [(d.prompt_set, d.round, d.role) for d in host.disturbed] == [(1, 2, "spec-3")]


def test_beyond_the_stated_share_nothing_is_set_aside() -> None:
    two = {(0, 0, "baseline"), (1, 0, "baseline")}
    blocks = [b for b in blocks_of(PLAN) if not b.warmup]
    assert len(judge_host(with_counters(blocks, two), LIMITS).set_aside) == 4  # a quarter of 16
    host = judge_host(with_counters(blocks, {*two, (2, 3, "spec-3")}), LIMITS)
    assert (host.set_aside, host.too_many) == ((), 6)


disturbances = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["baseline", "spec-3"])))


@given(disturbances, st.floats(0.2, 5.0))
def test_what_is_left_has_both_orders_equally_often_whatever_the_blocks_took(
    loaded: set[tuple[int, int, str]], slower: float
) -> None:
    limits = replace(LIMITS, max_set_aside=1.0)
    blocks = with_counters([b for b in blocks_of(PLAN) if not b.warmup], loaded)
    host = judge_host(blocks, limits)
    left = timed(blocks, set_aside({blocks[0].point.key: host}))
    firsts = Counter((b.prompt_set, b.role.name) for b in left if b.position_in_round == 0)
    for prompt_set in range(4):
        assert firsts[prompt_set, "baseline"] == firsts[prompt_set, "spec-3"]
    assert not any((b.prompt_set, b.round, b.role.name) in loaded for b in left)
    # Whatever was measured, the judgement is the same: it looks at no time of a block.
    others = [
        replace(b, elapsed_ns=int(b.elapsed_ns * slower), step_ns=tuple(int(ns * slower) for ns in b.step_ns))
        for b in blocks
    ]
    assert judge_host(others, limits) == host


def figures(plan: Plan, blocks: Sequence[Block], policy: Policy) -> tuple[object, ...]:
    engines = run_of(plan, ()).engines
    aside = set_aside(judge_hosts(plan, blocks, machine_limits(policy), engines))
    return measure(plan, blocks, (), NearTies(), aside=aside)


def test_times_that_are_set_aside_are_those_of_a_plan_without_these_rounds() -> None:
    loaded = {(3, 2, "spec-3")}
    blocks = with_counters(blocks_of(PLAN), loaded)
    slow = [lasting(b, 9 * b.elapsed_ns) if (b.prompt_set, b.round) == (3, 2) else b for b in blocks]
    without = Plan(PLAN.scenarios, tuple(r for r in PLAN.rounds if r.warmup or (r.prompt_set, r.index) < (3, 2)))
    (cells, (compared,)), (expected, (other,)) = (
        measure(PLAN, slow, (), NearTies(), aside=set_aside(judge_hosts(PLAN, slow, ASKED, {}))),
        measure(without, [b for b in blocks if b.warmup or (b.prompt_set, b.round) < (3, 2)], (), NearTies()),
    )
    assert compared.speedup.value == pytest.approx(other.speedup.value)
    assert sorted(compared.log_ratios) == pytest.approx(sorted(other.log_ratios))
    for cell, same in zip(cells, expected, strict=True):
        assert (cell.status, cell.blocks, cell.set_aside) == ("ok", 16, 2)
        assert cell.values["mean_tpot_ms"] == same.values["mean_tpot_ms"] and cell.distributions == same.distributions
        assert len(cell.series_ms) == 14


def test_tokens_and_drafts_of_what_is_set_aside_count_like_any_others() -> None:
    loaded = {(3, 3, "spec-3")}
    blocks = with_counters(blocks_of(PLAN), loaded)
    aside = set_aside(judge_hosts(PLAN, blocks, ASKED, {}))
    (_, spec), (compared,) = measure(PLAN, blocks, (), NearTies(), aside=aside)
    (_, whole), (all_compared,) = measure(PLAN, blocks, (), NearTies())
    assert spec.acceptance == whole.acceptance and compared.tokens == all_compared.tokens
    wrong = [corrupt(b) if (b.prompt_set, b.round) == (3, 3) else b for b in blocks]
    _, (result,) = measure(PLAN, wrong, (), NearTies(), aside=aside)
    assert [(d.prompt_set, d.round) for d in result.tokens.mismatches] == [(3, 3)]
    assert result.speedup.value is None


# ── who asks for it ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_a_rule_that_states_the_share_sets_anything_aside() -> None:
    old = replace(RULE, params=PARAMS)
    elsewhere = replace(RULE, scenario="another")
    blocks = with_counters(blocks_of(PLAN), {(0, 0, "baseline")})
    for rules in ((), (old,), (elsewhere,)):
        assert judge_hosts(PLAN, blocks, machine_limits(policy_of(*rules)), {}) == {}
    assert judge_hosts(PLAN, blocks, ASKED, {})[PLAN.points[0].key].set_aside == ((0, 0), (0, 1))


def test_of_several_rules_the_smallest_limits_count() -> None:
    strict = replace(RULE, role="spec-3", params={**RULE.params, "max_cpu_wait": 0.01, "max_set_aside": 0.5})
    assert host_limits(machine_limits(policy_of(RULE, strict)), PLAN.cells) == HostLimits(0.25, 0.01, 0.25)
    assert host_limits(ASKED, PLAN.cells) == HostLimits(0.25, 0.05, 0.25)


def test_a_scripted_clock_is_disturbed_by_nothing() -> None:
    blocks = with_counters(blocks_of(PLAN), {(0, 0, "baseline")})
    scripted = with_acceptance(run_of(PLAN, ()), "scripted").engines
    assert judge_hosts(PLAN, blocks, ASKED, scripted) == {}


# ── interim looks ────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = plan_of(scenario(rounds=6))  # looks after 8, 16 and 24 rounds
SPEED = Rule("speed", "speed", True, role="spec-3", params={"min": 1.5})


def ends(blocks: Sequence[Block]) -> dict[str, int]:
    run = run_of(LONG, ())
    return ended_early(LONG, run, policy_of(RULE, SPEED), Journal(list(blocks), (), run.engines))


def test_a_look_leaves_out_what_is_set_aside_and_decides_on_the_rest() -> None:
    blocks = [
        lasting(b, 30 * b.elapsed_ns) if (b.prompt_set, b.round, b.role.k) == (1, 0, 3) else b for b in blocks_of(LONG)
    ]
    assert ends(with_counters(blocks)) == {}  # one pair of eight is thirty times slower: nothing is decided
    assert ends(with_counters(blocks, {(1, 0, "spec-3")})) == {LONG.points[0].key: 8}


def test_a_host_too_disturbed_to_be_judged_on_ends_nothing_until_it_is_quiet() -> None:
    early = {(s, 0, "spec-3") for s in (0, 1)}  # 4 of 8 rounds, but 4 of 16
    assert ends(with_counters(blocks_of(LONG), early)) == {LONG.points[0].key: 16}


def test_a_resumed_run_is_judged_as_one_that_was_not_interrupted() -> None:
    blocks = with_counters(blocks_of(PLAN), {(1, 1, "baseline")})
    cut = 16  # between the two orders of a prompt set
    resumed = [*blocks[:cut], *(replace(b, worker_generation=1) for b in blocks[cut:])]
    assert figures(PLAN, resumed, policy_of(RULE)) == figures(PLAN, blocks, policy_of(RULE))
