"""The order of blocks, the limits of a pair, and the estimate."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.stats import FIRST_LOOK, planned_interim_looks
from specgate.commands.scenarios import loads_in_words
from specgate.contract import Budget, Grid, Plan, Point, Role, Rope, Sampling, Scenario, Schedule, TimeEnd, Workload
from specgate.errors import UsageError
from specgate.pairs.resolve import resolve_pair, shipped_names, target_limits
from specgate.planning.plan import (
    COST,
    build_plan,
    check_biases,
    check_limits,
    estimate_seconds,
    loads_of,
    positions_needed,
    prefill_group,
)
from specgate.planning.resolution import one_role_at_a_time
from specgate.planning.scenario import find, select, shipped
from tests.support import factories


def scenario_of(
    name: str = "s",
    context: tuple[int, ...] = (64,),
    batch: tuple[int, ...] = (1,),
    spec: tuple[int, ...] = (3,),
    **changes: object,
) -> Scenario:
    base = factories.scenario(name, context=context, batch=batch, spec=spec, steps=4)
    return replace(base, **{"workload": Workload(1, 8, 1, "mixed"), **changes})  # type: ignore[arg-type]  # by name


AXES = st.sets(st.integers(1, 512), min_size=1, max_size=3).map(lambda s: tuple(sorted(s)))
SCENARIOS = st.builds(
    scenario_of,
    context=AXES,
    batch=AXES,
    spec=st.sets(st.integers(1, 8), min_size=1, max_size=4).map(lambda s: tuple(sorted(s))),
    workload=st.builds(Workload, st.integers(0, 1 << 32), st.integers(1, 9), st.integers(1, 3), st.just("mixed")),
    schedule=st.builds(Schedule, st.integers(1, 5), st.integers(0, 3)),
)


@given(scenario=SCENARIOS)
def test_every_role_runs_once_in_every_round(scenario: Scenario) -> None:
    for round_ in build_plan([scenario], "fake").rounds:
        assert sorted(round_.order) == sorted(scenario.roles)


@given(scenario=SCENARIOS)
def test_the_plan_counts_what_the_scenario_asks(scenario: Scenario) -> None:
    plan = build_plan([scenario], "fake")
    points = len(scenario.grid.context) * len(scenario.grid.batch)
    assert len(plan.points) == points
    assert len(plan.cells) == points * len(scenario.roles)
    kinds = Counter(r.warmup for r in plan.rounds)
    assert kinds[False] == points * scenario.workload.prompt_sets * scenario.schedule.rounds
    assert kinds[True] == points * scenario.workload.warmup_sets * scenario.schedule.warmup_rounds
    assert len({r.key for r in plan.rounds}) == len(plan.rounds)


@given(scenario=SCENARIOS)
def test_a_point_warms_up_first(scenario: Scenario) -> None:
    plan = build_plan([scenario], "fake")
    for point in plan.points:
        where = [not r.warmup for r in plan.rounds_of(point)]
        assert where == sorted(where)
    assert [r.point for r in plan.rounds] == [r.point for p in plan.points for r in plan.rounds_of(p)]


@given(scenario=SCENARIOS, by_load=st.booleans())
def test_at_every_look_before_the_last_each_prompt_set_ran_equally_often_in_both_orders(
    scenario: Scenario, by_load: bool
) -> None:
    scenario = replace(scenario, schedule=replace(scenario.schedule, by_load=by_load))
    plan = build_plan([scenario], "fake")
    rounds = [r for r in plan.rounds_of(plan.points[0]) if not r.warmup]
    *early, last = planned_interim_looks(scenario)
    assert last == len(rounds)
    for look in early:
        assert look >= FIRST_LOOK
        runs = Counter((r.prompt_set, r.order[0]) for r in rounds[:look])
        assert len(runs) == 2 * scenario.workload.prompt_sets
        assert len(set(runs.values())) == 1


@pytest.mark.parametrize("name", ["micro-120b-32k-single", "micro-120b-16k-b4", "micro-120b-1k-single"])
def test_an_engine_that_holds_one_role_at_a_time_is_loaded_five_times_for_a_large_target(
    name: str, tmp_path: Path
) -> None:
    scenario = next(s for s in shipped() if s.name == name)
    (apart,) = one_role_at_a_time([scenario], "vllm", {"servers": "apart"})
    for options in ({}, {"servers": "apart", "url.baseline": "http://localhost:8000"}):
        assert one_role_at_a_time([scenario], "vllm", options) == [scenario]
    assert one_role_at_a_time([scenario], "lmdeploy-pipeline", {"servers": "apart"}) == [apart]
    plan = build_plan([apart], "vllm")
    rounds = [r for r in plan.rounds_of(plan.points[0]) if not r.warmup]
    forward, backward = scenario.roles, scenario.roles[::-1]
    assert [order for order, _ in groupby(r.order for r in rounds)] == [forward, backward] * 2
    assert [loads_of(rounds[:look]) for look in planned_interim_looks(apart)] == [3, 5] and len(rounds) == 32
    assert loads_in_words(plan, plan.points[0]) == "3–5 engine loads"
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(65_000_000_000)
    cost = COST["gpu"].loading(tmp_path)
    (seconds,), (together,) = (estimate_seconds(p, cost).values() for p in (plan, build_plan([scenario], "vllm")))
    assert seconds[1] - together[1] > 4 * cost.open > 4 * 130


@pytest.mark.parametrize(
    ("prompt_sets", "rounds", "looks"),
    [
        (4, 1, (4,)),
        (8, 2, (16,)),
        (4, 4, (8, 16)),
        (1, 6, (6,)),
        (1, 24, (8, 16, 24)),
        (2, 12, (8, 16, 24)),
        (8, 4, (16, 32)),
        (12, 8, (24, 48, 72, 96)),
    ],
)
def test_looks_come_at_the_first_pass_that_ends_at_or_beyond_8_16_32_pairs_and_at_the_end(
    prompt_sets: int, rounds: int, looks: tuple[int, ...]
) -> None:
    workload, schedule = Workload(1, prompt_sets, 1, "mixed"), Schedule(rounds, 1)
    assert planned_interim_looks(scenario_of(workload=workload, schedule=schedule)) == looks


@pytest.mark.parametrize(
    ("prompt_sets", "looks"),
    [
        (1, (4, 8, 16, 32, 64, 128, 256, 384)),
        (2, (4, 8, 16, 32, 64, 128, 256, 384)),
        (3, (6, 12, 18, 36, 66, 132, 258, 384)),
        (8, (8, 16, 32, 64, 128, 256, 384)),
        (9, (18, 36, 72, 144, 270, 378)),
        (64, (64, 128, 256, 384)),
        (300, (300, 600)),
    ],
)
def test_until_decided_looks_begin_at_four_pairs_and_balance_orders(prompt_sets: int, looks: tuple[int, ...]) -> None:
    workload, schedule = Workload(1, prompt_sets, 1, "mixed"), Schedule(2, 1, until="decided")
    scenario = scenario_of(workload=workload, schedule=schedule)
    assert planned_interim_looks(scenario) == looks
    runs = forward(build_plan([scenario], "fake"))
    for look in looks:
        assert sum(first for *_, first in runs[:look]) * 2 == look, "half of each order"
    end = TimeEnd("point", looks[0] + 3, 60.0, 60.0)
    assert planned_interim_looks(scenario, (end,)) == tuple(sorted({*looks, end.rounds})), "no other look moves"


# ── groups drawn by lot ───────────────────────────────────────────────────────────────────────────────────────────────


def forward(plan: Plan) -> list[tuple[int, int, bool]]:
    """(round, prompt set, whether the baseline runs first) of the first point's measured rounds."""
    rounds = [r for r in plan.rounds_of(plan.points[0]) if not r.warmup]
    return [(r.index, r.prompt_set, r.order[0] == Role(0)) for r in rounds]


@given(scenario=SCENARIOS)
def test_every_prompt_set_has_its_turn_before_any_has_the_next_one(scenario: Scenario) -> None:
    turns = forward(build_plan([scenario], "fake"))
    sets, rounds = scenario.workload.prompt_sets, scenario.schedule.rounds
    assert [(i, s) for i, s, _ in turns] == [(i, s) for i in range(rounds) for s in range(sets)]


@given(scenario=SCENARIOS)
def test_both_orders_balance_within_groups_within_prompt_sets_and_over_each_pass(scenario: Scenario) -> None:
    turns, sets = forward(build_plan([scenario], "fake")), scenario.workload.prompt_sets
    first = {(i, s): way for i, s, way in turns}
    for index, prompt_set, way in turns:
        if index % 2:
            assert way is not first[index - 1, prompt_set]
        if prompt_set % 2:
            assert way is not first[index, prompt_set - 1]
    for index in range(scenario.schedule.rounds):
        groups = [first[index, s] for s in range(0, sets, 2)]
        assert abs(sum(groups) - sum(not way for way in groups)) <= 1


def test_the_lot_follows_the_seed_alone_and_is_the_same_for_ever() -> None:
    def ways(seed: int) -> str:
        result = scenario_of(workload=Workload(seed, 8, 1, "mixed"), schedule=Schedule(4, 1))
        return "".join("AB"[not way] for _, _, way in forward(build_plan([result], "fake")))

    assert ways(1) == "BABAABABABABBABAABBABAABBAABABBA"
    assert len({ways(seed) for seed in range(40)}) > 20


def test_each_round_of_a_drawn_plan_has_a_prefill_of_its_own() -> None:
    result = scenario_of(workload=Workload(1, 1, 1, "mixed"))
    rounds = [r for r in build_plan([result], "fake").rounds if not r.warmup]
    assert len({prefill_group(r) for r in rounds}) == len(rounds)


def test_every_shipped_scenario_has_an_even_number_of_prompt_sets() -> None:
    assert [s.name for s in shipped() if s.workload.prompt_sets % 2] == []


def test_scenarios_run_one_after_the_other() -> None:
    plan = build_plan([scenario_of("b"), scenario_of("a")], "fake")
    assert [p.key for p in plan.points] == ["b/fake/c64/b1", "a/fake/c64/b1"]


# ── limits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def demo_limits(plan: Plan) -> dict[str, int]:
    """Return the demo target's limits under each scenario's own RoPE factor."""
    return {name: int(8192 * (s.rope.factor if s.rope else 1)) for name, s in plan.scenarios.items()}


UNUSED = {"planted-gpt-oss-20b-al3.0"}
"""Pairs that ship for whoever has no room for the 120b; no scenario names them."""


@pytest.mark.engine
def test_every_shipped_scenario_fits_its_pair() -> None:
    by_pair: dict[str, list[Scenario]] = defaultdict(list)
    for scenario in shipped():
        by_pair[scenario.pair].append(scenario)
    assert set(by_pair) == {"demo", *shipped_names()} - UNUSED
    for pair, scenarios in by_pair.items():
        plan = build_plan(scenarios, "fake")
        limits = demo_limits(plan)
        if pair != "demo":
            folders = resolve_pair(pair, None, None)
            limits = {s.name: target_limits(folders, s.rope_keys)[0] or 0 for s in scenarios}
        check_limits(plan, limits, pair)


def test_room_is_the_longest_block_of_any_role_and_one_verify_pass() -> None:
    point = Point("s", "fake", 100, 1)
    assert positions_needed(scenario_of(spec=(1, 3), budget=Budget(steps=10)), point) == 100 + 10 * 4 + 3 + 2
    assert positions_needed(scenario_of(spec=(1, 3), budget=Budget(new_tokens=50)), point) == 100 + 50 + 3 + 2


@given(tokens=st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True), vocab=st.integers(1, 100))
def test_a_bias_is_refused_exactly_where_the_target_has_no_such_token(tokens: list[int], vocab: int) -> None:
    biased = replace(scenario_of(), sampling=Sampling(temperature=1, logit_bias=tuple((t, 1.0) for t in tokens)))
    if max(tokens) < vocab:
        check_biases({"s": biased}, {"s": vocab}, "demo")
        return
    first = next(t for t in tokens if t >= vocab)
    with pytest.raises(UsageError, match=f"sampling.logit_bias: token {first}; pair 'demo' has {vocab} tokens"):
        check_biases({"s": biased}, {"s": vocab}, "demo")


@given(context=st.integers(1, 5000), limit=st.integers(1, 5000))
def test_a_point_is_refused_exactly_where_it_does_not_fit(context: int, limit: int) -> None:
    plan = build_plan([scenario_of(context=(context,))], "fake")
    if positions_needed(plan.scenarios["s"], plan.points[0]) <= limit:
        check_limits(plan, {"s": limit}, "demo")
        return
    with pytest.raises(UsageError, match=f"grid.context: {context}: "):
        check_limits(plan, {"s": limit}, "demo")


def test_a_refusal_lists_every_long_point_and_remedies_that_work() -> None:
    too_long = replace(find("micro-32k-single"), rope=Rope("yarn", 2.0))
    fine = find("cpu-1k-single")
    plan = build_plan([too_long, fine], "fake")
    with pytest.raises(UsageError) as caught:
        check_limits(plan, demo_limits(plan), "demo")
    message = str(caught.value)
    assert "32768: with 2053 positions for the answer it needs 34821, and pair 'demo' has 16384" in message
    assert "a context ≤ 14331 or {rope_type: yarn, factor: 5} as a scenario" in message
    assert "cpu-1k-single" not in message
    right = [replace(too_long, rope=Rope("yarn", 5.0)), replace(too_long, name="t", grid=Grid((14331,), (1,), (3,)))]
    plan = build_plan(right, "fake")
    check_limits(plan, demo_limits(plan), "demo")


# ── estimate ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_default_micro_scenarios_of_a_cpu_are_estimated_below_four_minutes() -> None:
    plan = build_plan(select((), None, "micro", "cpu"), "reference")
    assert sum(most for _, most in estimate_seconds(plan, COST["cpu"]).values()) < 240


def test_the_cpu_model_agrees_with_the_step_times_it_was_made_from() -> None:
    single, batch = Point("s", "reference", 1024, 1), Point("s", "reference", 512, 4)
    assert COST["cpu"].step_s(Role(0), single) == pytest.approx(0.027, rel=0.15)
    assert COST["cpu"].step_s(Role(3), single) == pytest.approx(0.040, rel=0.25)
    assert COST["cpu"].step_s(Role(0), batch) == pytest.approx(0.039, rel=0.15)
    assert COST["cpu"].step_s(Role(3), batch) == pytest.approx(0.093, rel=0.15)
    assert COST["cpu"].prefill_s(single) == pytest.approx(2.0)


@pytest.mark.parametrize("size", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", ["micro", "full"])
def test_more_of_anything_is_estimated_to_take_longer(size: str, kind: str) -> None:
    def seconds(**changes: object) -> float:
        plan = build_plan([scenario_of(**{"kind": kind, "budget": Budget(new_tokens=64), **changes})], "fake")  # type: ignore[arg-type]
        return sum(most for _, most in estimate_seconds(plan, COST[size]).values())

    once = seconds()
    assert seconds(context=(128,)) > once
    assert seconds(batch=(2,)) > once
    assert seconds(spec=(2, 3)) > once
    assert seconds(budget=Budget(new_tokens=128)) > once
    assert seconds(schedule=Schedule(4, 1)) > once
