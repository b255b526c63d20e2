"""Many verdicts, one state, one exit code: the worst required one, and never green by silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.verdict import foreseeable, in_words, overall, wanted
from specgate.contract import Exemption, Gap, Kind, Policy, Rule, Run, State, Verdict
from specgate.errors import ExitCode
from specgate.planning.gates import kinds_of
from specgate.run.recompute import judge
from tests.support.factories import blocks_of, plan_of, run_of, scenario

PLAN = plan_of()
RUN = run_of(PLAN, blocks_of(PLAN))


def judged(*states: State, required: bool = True) -> Run:
    verdicts = tuple(Verdict(f"r{i}", "g", "cell", s, required, "code", "message") for i, s in enumerate(states))
    return replace(RUN, verdicts=(*RUN.verdicts, *verdicts))


@pytest.mark.parametrize(
    ("states", "state", "code"),
    [
        ((State.PASS, State.IMPROVED), State.PASS, ExitCode.PASS),
        ((State.PASS, State.SKIPPED), State.PASS, ExitCode.PASS),
        ((State.PASS, State.INCONCLUSIVE), State.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
        ((State.INCONCLUSIVE, State.FAIL), State.FAIL, ExitCode.FAIL),
        ((State.FAIL, State.INVALID), State.INVALID, ExitCode.INVALID),
        ((State.PASS, State.ENV_REJECTED), State.ENV_REJECTED, ExitCode.ENV_REJECTED),
        ((State.FAIL, State.ENV_REJECTED), State.ENV_REJECTED, ExitCode.ENV_REJECTED),
        ((State.INVALID, State.ENV_REJECTED), State.INVALID, ExitCode.INVALID),
    ],
)
def test_the_worst_required_verdict_decides(states: tuple[State, ...], state: State, code: ExitCode) -> None:
    assert overall(judged(*states)) == (state, code)
    assert overall(judged(*states[::-1])) == (state, code)


@given(st.lists(st.sampled_from(State), max_size=4))
def test_advisory_verdicts_decide_nothing(states: list[State]) -> None:
    green = judged(State.PASS)
    advised = replace(green, verdicts=(*green.verdicts, *judged(*states, required=False).verdicts))
    assert overall(advised) == (State.PASS, ExitCode.PASS)


@pytest.mark.parametrize("states", [(), (State.SKIPPED,)])
def test_where_nothing_required_was_judged_the_run_is_not_judged(states: tuple[State, ...]) -> None:
    assert overall(judged(*states)) == (State.NOT_JUDGED, ExitCode.NOT_JUDGED)


@given(st.lists(st.sampled_from(State), max_size=4))
def test_a_back_end_that_failed_outranks_every_verdict(states: list[State]) -> None:
    failed = replace(judged(*states), failures={"demo-64/fake/c64/b1": "killed"})
    assert overall(failed)[1] is ExitCode.BACKEND_ERROR


# ── what was not judged ──────────────────────────────────────────────────────────────────────────────────────────────

RULES = (
    Rule("records", "validity", True),
    Rule("tokens", "tokens", True, params={"near_tie_margin": 0.0}),
    Rule("length", "acceptance", True, params={"min": 1.1}),
    Rule("speed", "speed", True, params={"min": 1.0}),
)


def policy(*rules: Rule, exemptions: tuple[Exemption, ...] = ()) -> Policy:
    return Policy("mine", rules, not_judged=exemptions)


def test_a_run_that_every_kind_of_rule_has_judged_is_green() -> None:
    run = judge(RUN, policy(*RULES))
    assert run.not_judged == ()
    assert overall(run) == (State.PASS, ExitCode.PASS)


@pytest.mark.parametrize("kind", ["validity", "tokens", "acceptance", "speed"])
@pytest.mark.parametrize("how", ["no rule", "an advisory rule", "a rule of another scenario", "a rule of another role"])
def test_a_run_that_lacks_a_kind_of_judgement_is_not_judged(kind: Kind, how: str) -> None:
    others = [r for r in RULES if r.gate != kind]
    (own,) = (r for r in RULES if r.gate == kind)
    changed = {
        "no rule": [],
        "an advisory rule": [replace(own, required=False)],
        "a rule of another scenario": [replace(own, scenario="elsewhere")],
        "a rule of another role": [replace(own, role="spec-9")],
    }[how]
    rules = policy(*others, *changed)
    run = judge(RUN, rules)
    cells = tuple(r.cell.key for r in RUN.cells if kind in wanted(r.cell))
    assert run.not_judged == (Gap(kind, cells, None),) == foreseeable(PLAN.cells, rules, kinds_of(rules))
    assert overall(run) == (State.NOT_JUDGED, ExitCode.NOT_JUDGED)


def test_one_cell_that_was_not_judged_is_enough() -> None:
    plan = plan_of(scenario(), scenario("mine", spec=(5,)))
    run = run_of(plan, blocks_of(plan))
    run = judge(run, policy(*RULES[:2], replace(RULES[2], role="spec-3"), replace(RULES[3], scenario="demo-64")))
    own = "mine/fake/c64/b1/spec-5"
    assert run.not_judged == (Gap("acceptance", (own,), None), Gap("speed", (own,), None))
    assert overall(run)[0] is State.NOT_JUDGED


def test_what_a_policy_gives_up_with_a_reason_leaves_the_run_green_and_stays_on_record() -> None:
    why = "a shared clock is no judge"
    run = judge(RUN, policy(*RULES[:3], exemptions=(Exemption("speed", why, "demo-*", "spec-*"),)))
    (gap,) = run.not_judged or ()
    assert (gap.kind, gap.why) == ("speed", why)
    assert in_words(gap) == f"speed of {gap.cells[0]} ({why})"
    assert overall(run) == (State.PASS, ExitCode.PASS)
    elsewhere = judge(RUN, policy(*RULES[:3], exemptions=(Exemption("speed", why, "other"),)))
    assert overall(elsewhere) == (State.NOT_JUDGED, ExitCode.NOT_JUDGED)


@given(st.lists(st.sampled_from([s for s in State if s is not State.NOT_JUDGED]), max_size=4))
def test_only_a_green_run_becomes_not_judged(states: list[State]) -> None:
    before = overall(judged(*states))
    after = overall(replace(judged(*states), not_judged=(Gap("speed", ("cell",), None),)))
    nothing_required = not [s for s in states if s is not State.SKIPPED]
    unjudged = (State.NOT_JUDGED, ExitCode.NOT_JUDGED)
    assert after == (unjudged if before[1] is ExitCode.PASS or nothing_required else before)


def test_a_run_without_any_required_rule_is_not_judged_whatever_the_policy_gives_up() -> None:
    kinds: tuple[Kind, ...] = ("validity", "tokens", "acceptance", "speed")
    advice = [replace(rule, required=False) for rule in RULES]
    run = judge(RUN, policy(*advice, exemptions=tuple(Exemption(kind, "why not") for kind in kinds)))
    assert overall(run) == (State.NOT_JUDGED, ExitCode.NOT_JUDGED)


def test_a_baseline_alone_has_no_speed_and_no_acceptance_to_judge() -> None:
    plan = plan_of(scenario(spec=()))
    assert foreseeable(plan.cells, policy(*RULES[:2]), kinds_of(policy(*RULES[:2]))) == ()
