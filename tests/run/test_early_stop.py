"""Early ends of points; it does not matter who asks, or when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specgate.contract import Block, Plan, Policy, Rule, Run
from specgate.files.journal import Journal
from specgate.run.early_stop import ended_early, truncated_plan
from tests.support.factories import POLICY, blocks_of, corrupt, margins_of, plan_of, policy_of, run_of, scenario

PLAN = plan_of(scenario(rounds=6))  # 24 pairs; looks after 8, 16 and 24
(POINT,) = PLAN.points


def speed_policy(*floors: float) -> Policy:
    return policy_of(*(Rule(f"speed-{f}", "speed", True, role="spec-3", params={"min": f}) for f in floors))


def ends(blocks: list[Block], policy: Policy, plan: Plan = PLAN, **journal: Any) -> dict[str, int]:
    run: Run = run_of(plan, ())
    return ended_early(plan, run, policy, replace(Journal(blocks, (), run.engines), **journal))


def test_a_point_ends_at_the_first_look_that_decides_every_rule() -> None:
    blocks = blocks_of(PLAN)  # twice as fast, give or take 2 %
    assert ends(blocks, speed_policy(1.5)) == {POINT.key: 8}
    assert ends(blocks, speed_policy(1.5, 3.0)) == {POINT.key: 8}


def test_one_open_rule_keeps_a_point_going_even_where_it_only_advises() -> None:
    blocks = blocks_of(PLAN, jitter=0.01)
    middle = run_of(PLAN, blocks).comparisons[0].speedup.value
    assert middle is not None
    advising = replace(speed_policy(middle).rules[0], required=False)
    assert ends(blocks, policy_of(*speed_policy(1.2).rules)) == {POINT.key: 8}
    assert ends(blocks, policy_of(*speed_policy(1.2).rules, advising)) == {}


def test_a_point_that_no_rule_on_samples_speaks_of_runs_to_its_end() -> None:
    exact = policy_of(*(r for r in POLICY.rules if r.gate != "speed"))
    elsewhere = policy_of(Rule("speed", "speed", True, scenario="another", params={"min": 1.0}))
    assert ends(blocks_of(PLAN), exact) == ends(blocks_of(PLAN), elsewhere) == {}


def test_nothing_that_came_after_a_look_moves_it() -> None:
    blocks = blocks_of(PLAN)
    upset = [replace(b, elapsed_ns=b.elapsed_ns * (1 + b.role.k * b.round)) for b in blocks]
    until_look = [b for b in blocks if b.warmup or b.round < 2]
    after = [b for b in upset if not b.warmup and b.round >= 2]
    assert ends(until_look + after, speed_policy(1.5)) == ends(until_look, speed_policy(1.5)) == {POINT.key: 8}


def test_before_its_pass_is_whole_a_point_is_not_looked_at() -> None:
    whole = [b for b in blocks_of(PLAN) if b.warmup or b.round < 2]
    assert ends(whole[:-1], speed_policy(1.5)) == {}


def test_wrong_tokens_end_nothing_since_a_margin_may_still_explain_them() -> None:
    blocks = blocks_of(PLAN, change=corrupt)
    near = policy_of(POLICY.rules[1], *speed_policy(1.5).rules)
    assert ends(blocks, near) == {}
    assert ends(blocks, near, margins=margins_of(blocks, 1e-4)) == {POINT.key: 8}


def test_requests_for_other_points_count_for_uptime_as_in_the_final_figures() -> None:
    """At the first look, after 8 blocks of one request: 12 requests for another point came in between, or before."""
    blocks = blocks_of(PLAN)
    keeps_up = policy_of(
        Rule("keeps", "acceptance-drift", True, role="spec-3", params={"max_fall_pct": 2.0, "min_requests": 20.0})
    )
    elsewhere = [
        replace(b, point=replace(POINT, context=POINT.context + 1)) for b in blocks if b.role.speculative and b.round
    ][:12]
    at = next(n for n, b in enumerate(blocks) if b.role.speculative and not b.warmup) + 1
    assert ends([*elsewhere, *blocks], keeps_up) == {}, "at the last look but one the cell has seen 16 requests"
    between = [*blocks[:at], *elsewhere, *blocks[at:]]
    assert ends(between, keeps_up) == {POINT.key: 8}


def test_what_is_left_of_a_plan_is_whole_and_its_verdict_the_same() -> None:
    blocks = blocks_of(PLAN)
    left = truncated_plan(PLAN, ends(blocks, speed_policy(1.5)))
    assert [r for r in left.rounds if r.warmup] == [r for r in PLAN.rounds if r.warmup]
    assert [r.index for r in left.rounds if not r.warmup] == [*[0] * 4, *[1] * 4]
    short, long = (run_of(p, [b for b in blocks if b.warmup or b.round < n]) for p, n in ((left, 2), (PLAN, 6)))
    assert {c.status for c in short.cells} == {"ok"}
    assert short.cells[0].blocks == 8 and long.cells[0].blocks == 24
