"""Early ends of points; it does not matter who asks, or when."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from specgate.analysis.tokens.comparison import find_divergences
from specgate.contract import Block, Margin, Plan, Policy, Rule, Run, Schedule, TimeEnd
from specgate.contract.conditions import CpuUse
from specgate.contract.references import Earlier
from specgate.files.journal import Journal
from specgate.run.early_stop import Look, ended_early, interim_looks, not_continued, truncated_plan
from specgate.run.progress import Lines, open_lines
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


DECIDED_PLAN = plan_of(replace(scenario(prompt_sets=2), schedule=Schedule(2, 1, until="decided")))
(OPEN,) = DECIDED_PLAN.points


def measured(rounds: int, **how: Any) -> list[Block]:
    """The blocks of the first rounds of `DECIDED_PLAN`, as the harness's clock saw them."""
    blocks = [b for b in blocks_of(DECIDED_PLAN, **how) if not b.warmup][: 2 * rounds]
    return [replace(b, span_ns=(n * 10**9, n * 10**9 + b.elapsed_ns)) for n, b in enumerate(blocks)]


def test_until_decided_rules_that_only_advise_do_not_count() -> None:
    blocks = measured(8, jitter=0.01)
    middle = run_of(DECIDED_PLAN, blocks).comparisons[0].speedup.value
    assert middle is not None
    advising = replace(speed_policy(middle).rules[0], required=False)
    assert ends(blocks, policy_of(*speed_policy(1.2).rules, advising), DECIDED_PLAN) == {OPEN.key: 4}
    assert ends(blocks, policy_of(advising), DECIDED_PLAN) == {OPEN.key: 4}, "nothing is open"


def test_until_decided_an_open_point_is_planned_up_to_its_next_look() -> None:
    never = speed_policy(1.99, 2.01)
    assert [ends(measured(n), never, DECIDED_PLAN)[OPEN.key] for n in (0, 3, 4, 7, 8)] == [4, 4, 8, 8, 16]


def test_where_the_time_was_spent_is_a_look_and_moves_no_other() -> None:
    blocks = measured(16, jitter=0.01)
    middle = run_of(DECIDED_PLAN, blocks).comparisons[0].speedup.value
    assert middle is not None
    spent, policy = TimeEnd(OPEN.key, 5, 10.0, 10.0), speed_policy(middle)
    run = run_of(DECIDED_PLAN, ())

    def looks(count: int) -> list[int]:
        journal = Journal(blocks[: 2 * count], (), run.engines, ends=[spent])
        ((_, taken),) = interim_looks(DECIDED_PLAN, run, policy, journal)
        return [look.rounds for look in taken]

    assert (looks(5), looks(16)) == ([4, 5], [4, 5, 8, 16])
    assert ends(blocks[:10], policy, DECIDED_PLAN, ends=[spent]) == {OPEN.key: 5}
    assert ends(blocks[:16], policy, DECIDED_PLAN, ends=[spent]) == {OPEN.key: 16}, "it went on"


@pytest.mark.parametrize(("budget_s", "goes_on"), [(None, False), (10.0, False), (60.0, True)])
def test_a_point_goes_on_with_more_time_alone(budget_s: float | None, goes_on: bool) -> None:
    (made,) = DECIDED_PLAN.scenarios.values()
    plan = plan_of(replace(made, schedule=replace(made.schedule, budget_s=budget_s)))
    run, blocks = run_of(DECIDED_PLAN, ()), measured(5, jitter=0.01)
    journal = Journal(blocks, (), run.engines, ends=[TimeEnd(OPEN.key, 5, 10.0, 10.0)])
    assert (not_continued(plan, run, speed_policy(1.99, 2.01), journal) == {}) is goes_on


def test_what_a_look_leaves_open_comes_with_its_interval_and_the_time_that_it_takes() -> None:
    blocks, run = measured(4, jitter=0.05), run_of(DECIDED_PLAN, ())
    ((_, looks),) = interim_looks(DECIDED_PLAN, run, speed_policy(1.5, 1.0), Journal(blocks, (), run.engines))
    (look,) = looks
    assert {v.rule for v in look.open} <= {"speed-1.5", "speed-1.0"} and not look.decided
    lines = list(open_lines(look, 41.6, DECIDED_PLAN.scenarios))
    assert len(lines) == len(look.open)
    assert all(re.search(r"^open after 4 rounds: speed-.*x \(.*–.*\), floor .*x; .*42 s left$", line) for line in lines)


def test_cells_that_wait_for_later_runs_alone_share_a_line() -> None:
    loss = Rule("loss", "since-green", True, params={"time_margin_pct": 3.0})
    blocks = measured(4, jitter=0.01)
    run = replace(run_of(DECIDED_PLAN, ()), earlier=Earlier({}, dict.fromkeys(DECIDED_PLAN.scenarios, "none yet")))

    def look(*rules: Rule) -> Look:
        ((_, (taken, *_)),) = interim_looks(DECIDED_PLAN, run, policy_of(*rules), Journal(blocks, (), run.engines))
        return taken

    alone, (middle,) = look(loss), speed_policy(run_of(DECIDED_PLAN, blocks).comparisons[0].speedup.value or 0.0).rules
    assert not alone.decided and alone.only_earlier and len(alone.open) == 2
    (line,) = open_lines(alone, 13.0, DECIDED_PLAN.scenarios)
    assert line.startswith("open after 4 rounds: loss 2 cells: none yet; later runs are held against this one")
    assert not look(loss, middle).only_earlier


def test_a_look_at_a_machine_that_was_disturbed_says_so() -> None:
    (line,) = open_lines(Look(8, decided=False), 12.2, DECIDED_PLAN.scenarios)
    assert line == "open after 8 rounds: the machine was too disturbed for a verdict; 12 s left"


@pytest.mark.parametrize("required", [True, False])
def test_until_decided_a_disturbed_machine_keeps_a_point_open_only_where_a_required_rule_minds(required: bool) -> None:
    busy = CpuUse(2 * 10**9, 2, 2.0, 4 * 10**9, 2 * 10**9, 10**9, 2 * 10**9, 0, 0)
    limits = {"gpu": False, "max_other_cpu_share": 0.25, "max_cpu_wait": 0.05, "max_set_aside": 0.25}
    quiet = Rule("quiet", "environment", required, params=limits)
    blocks = [replace(b, cpu=busy) for b in measured(4)]
    expected = {OPEN.key: 8 if required else 4}  # the next look, or this one
    assert ends(blocks, policy_of(quiet, *speed_policy(1.2).rules), DECIDED_PLAN) == expected


def test_until_decided_a_gpu_that_is_not_there_ends_a_point_at_its_first_look() -> None:
    limits = {"gpu": True, "max_other_cpu_share": 0.25, "max_clock_shift": 0.05, "max_clock_jump_s": 1.0}
    quiet, never = Rule("quiet", "environment", True, params=limits), speed_policy(1.99, 2.01).rules
    blind, blocks = replace(run_of(DECIDED_PLAN, ()), environment={"gpus": []}), measured(8)
    seen = replace(blind, environment={"gpus": [{"name": "GPU"}]})
    looks = [
        [look.decided for look in taken]
        for run in (blind, seen)
        for _, taken in interim_looks(DECIDED_PLAN, run, policy_of(quiet, *never), Journal(blocks, (), run.engines))
    ]
    assert looks == [[True, True], [False, False]]


def shown(blocks: list[Block], gap: float, *, twice: bool = True) -> list[Margin]:
    """The ten most likely tokens wherever `blocks` part, the two first `gap` logits apart, by passes that round by some
    hundredths. `twice`: a second pass shows them, too.
    """
    rest, off = range(20_000, 20_008), (0.02, -0.02, 0.03, -0.03, 0.01, -0.01, 0.02, -0.02, 0.01, -0.01)
    made = []
    for cell, d, _ in find_divergences(blocks):
        top = (gap + 1.01, 1.01, *(-0.937 * n for n in range(8)))
        again = tuple(value + noise for value, noise in zip(top, off, strict=True)) if twice else ()
        tokens = (d.expected, d.got, *rest)
        place = cell.key, d.prompt_set, d.round, d.slot, d.position
        made.append(Margin(*place, top[0], top[1], top=top, top_tokens=tokens, again=again))
    return made


WRONG = measured(8, change=corrupt)
EXACT, MARGIN, LAW = {"near_tie_margin": 0.0}, {"near_tie_margin": 1e-3}, {"near_tie_margin": 0.0, "max_sigma": 0.15}


@pytest.mark.parametrize(
    ("params", "margins", "goes_on"),
    [
        (EXACT, (), False),
        (MARGIN, (), True),
        (MARGIN, margins_of(WRONG, 1.0), False),
        (LAW, (), True),
        (LAW, shown(WRONG, 3.0, twice=False), True),
        (LAW, shown(WRONG, 3.0), False),
        (LAW, shown(WRONG, 0.15), True),
    ],
    ids=["exact", "gap unknown", "no near tie", "no gap", "rounding unknown", "far beyond rounding", "beyond rounding"],
)
def test_until_decided_a_cell_with_wrong_tokens_is_not_waited_for_once_nothing_can_explain_them(
    params: dict[str, Any], margins: list[Margin], goes_on: bool
) -> None:
    rule = Rule("tokens", "tokens", True, role="spec-*", params=params)
    speeds = speed_policy(1.5).rules
    of = [m for m in margins if m.round < 4]
    assert ends(WRONG[:8], policy_of(rule, *speeds), DECIDED_PLAN, margins=of) == {OPEN.key: 8 if goes_on else 4}
    advising = replace(rule, required=False)
    assert ends(WRONG[:8], policy_of(advising, *speeds), DECIDED_PLAN, margins=of) == {OPEN.key: 8}


def test_a_look_that_ends_a_point_for_wrong_tokens_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    rule, run = Rule("tokens", "tokens", True, role="spec-*", params=EXACT), run_of(DECIDED_PLAN, ())
    policy = policy_of(rule, *speed_policy(1.5).rules)
    ((_, (look, *_)),) = interim_looks(DECIDED_PLAN, run, policy, Journal(WRONG, (), run.engines))
    assert look.decided and not look.open
    Lines(DECIDED_PLAN.scenarios).refused(look)
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(r"ended after 4 rounds: tokens .*spec-3: more rounds cannot mend it: 4 sequences leave", line), line


def test_what_is_left_of_a_plan_is_whole_and_its_verdict_the_same() -> None:
    blocks = blocks_of(PLAN)
    left = truncated_plan(PLAN, ends(blocks, speed_policy(1.5)))
    assert [r for r in left.rounds if r.warmup] == [r for r in PLAN.rounds if r.warmup]
    assert [r.index for r in left.rounds if not r.warmup] == [*[0] * 4, *[1] * 4]
    short, long = (run_of(p, [b for b in blocks if b.warmup or b.round < n]) for p, n in ((left, 2), (PLAN, 6)))
    assert {c.status for c in short.cells} == {"ok"}
    assert short.cells[0].blocks == 8 and long.cells[0].blocks == 24
