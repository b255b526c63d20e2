"""A cell against the same cell of the last green run: times by rounds, acceptance by prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.intervals.decision import FALSE_FAIL
from specgate.analysis.references import (
    acceptance_change,
    between_two_runs,
    cell_times,
    digests_of,
    paired_by_round,
    same_text,
    texts_of,
)
from specgate.contract import (
    BASELINE,
    BetweenRuns,
    Block,
    Budget,
    Cell,
    Policy,
    Role,
    Rule,
    Run,
    ServedRequest,
    State,
    Verdict,
)
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.conditions import ClockComparison, RoleClock
from specgate.contract.references import CellTimes, Earlier, PromptText, StepUnit
from specgate.gates.since_green import GATE, percent
from specgate.planning.gates import needs_earlier_run
from specgate.run.early_stop import required_decisions
from tests.support.factories import ACCEPT, blocks_of, earlier_of, plan_of, policy_of, run_of, scenario, served_block
from tests.support.surroundings import SAMPLES, watched_run

RULE = Rule(
    "no-loss",
    "since-green",
    True,
    params={"time_margin_pct": 3.0, "acceptance_margin_pct": 2.0, "anchor_margin_pct": 5.0},
)
ROUNDS = 4


def measured(
    *,
    slower: float = 1.0,
    only: str = "spec-3",
    prefill: float = 1.0,
    jitter: float = 0.001,
    accept: Sequence[int] = ACCEPT,
    kind: Literal["micro", "full"] = "micro",
    rule: Rule = RULE,
    upto: int = ROUNDS,
    text: int = 0,
) -> Run:
    """A run of eight prompt sets. `slower`: a factor on the steps of role `only`. `text`: sets that got another text.

    `upto`: rounds that were measured of those that are planned.
    """
    planned = scenario(kind=kind, prompt_sets=8, rounds=ROUNDS)
    plan = plan_of(planned)

    def change(block: Block) -> Block:
        factor = slower if block.role.name == only else 1.0
        steps = tuple(round(ns * factor) for ns in block.step_ns)
        moved = 1 if block.prompt_set < text else 0
        tokens = tuple(tuple(t + moved for t in slot) for slot in block.tokens)
        prefill_ns = round(block.prefill_ns * prefill)
        return replace(block, step_ns=steps, elapsed_ns=sum(steps), tokens=tokens, prefill_ns=prefill_ns)

    blocks = [b for b in blocks_of(plan, jitter=jitter, accept=accept, change=change) if b.round < upto]
    run = run_of(plan, blocks, kind=kind)
    policy = policy_of(rule)
    return replace(
        run, times=cell_times(plan, run.cells, blocks, {}), required_decisions=required_decisions(plan, policy)
    )


def held_against(run: Run, before: Run) -> Run:
    return replace(run, earlier=Earlier({"demo-64": earlier_of(before, commit="e" * 40)}))


def verdicts(run: Run, rule: Rule = RULE) -> dict[str, Verdict]:
    return {v.cell.rpartition("/")[2]: v for v in GATE.judge(rule, run)}


def spec(run: Run, rule: Rule = RULE) -> Verdict:
    return verdicts(run, rule)["spec-3"]


@pytest.mark.parametrize(
    ("slower", "state"),
    [(1.0, State.PASS), (1.03, State.INCONCLUSIVE), (1.4, State.FAIL), (1.07, State.FAIL), (0.9, State.IMPROVED)],
)
def test_what_a_cell_lost_decides_by_the_interval_beside_the_margin(slower: float, state: State) -> None:
    judgements = verdicts(held_against(measured(slower=slower), measured()))
    assert judgements["spec-3"].state is state
    assert judgements["baseline"].state is State.PASS


def test_a_loss_of_the_baseline_alone_is_seen_although_it_raises_the_speed_up() -> None:
    judgements = verdicts(held_against(measured(slower=1.4, only="baseline"), measured()))
    assert (judgements["baseline"].state, judgements["spec-3"].state) == (State.FAIL, State.PASS)


def test_the_verdict_names_the_run_its_commit_and_the_command_that_would_tell() -> None:
    outcome = spec(held_against(measured(slower=1.03), measured()))
    assert outcome.reason_code == "margin_not_excluded" and "suspect" in outcome.message
    assert "against earlier (2026-11-20, eeeeeeeeeeee), the best run, too" in outcome.message
    assert outcome.next_step is not None
    assert outcome.next_step.startswith(f"specgate ab --base {'e' * 40} --scenario demo-64 --backend fake ")


def test_prefill_is_judged_in_full_runs_only_and_by_its_own_margin() -> None:
    slow, before = (measured(kind="full", prefill=factor) for factor in (1.08, 1.0))
    assert spec(held_against(slow, before)).state is State.FAIL
    wide = replace(RULE, params={**RULE.params, "prefill_margin_pct": 12.0})
    assert spec(held_against(slow, before), wide).state is State.PASS
    assert spec(held_against(measured(prefill=1.08), measured())).state is State.PASS


def test_noise_between_processes_alone_keeps_a_margin_of_one_percent_open() -> None:
    narrow = replace(RULE, params={"time_margin_pct": 1.0})
    outcome = spec(held_against(measured(jitter=1e-6), measured(jitter=1e-6)), narrow)
    assert outcome.state is State.INCONCLUSIVE and "two processes alone may differ by 2.2 %" in outcome.message


# Nothing to be held against


NONE = Earlier({}, {"demo-64": "no earlier green run"})


@pytest.mark.parametrize(
    ("rounds", "jitter", "state"),
    [
        (ROUNDS, 0.006, State.SKIPPED),
        (2, 0.0002, State.SKIPPED),
        (2, 0.006, State.INCONCLUSIVE),
        (1, 0.0002, State.INCONCLUSIVE),
    ],
)
def test_a_first_run_ends_with_its_plan_or_where_more_rounds_would_hardly_help_a_later_one(
    rounds: int, jitter: float, state: State
) -> None:
    part = replace(measured(upto=rounds, jitter=jitter), earlier=NONE)
    assert {v.state for v in verdicts(part).values()} == {state}


def test_a_first_run_that_ended_at_half_its_plan_serves_to_find_the_same_losses() -> None:
    half = measured(upto=2, jitter=0.0002)
    same, slower = (measured(slower=factor, jitter=0.0002) for factor in (1.0, 1.07))
    assert spec(held_against(same, half)).state is State.PASS
    assert spec(held_against(slower, half)).state is State.FAIL


def test_a_first_run_of_unknown_weights_is_not_measured_for_later_ones() -> None:
    part = replace(measured(upto=2, jitter=0.006), earlier=NONE)
    unknown = {key: replace(facts, target_sha256=None) for key, facts in part.engines.items()}
    judgements = verdicts(replace(part, engines=unknown))
    assert {(v.state, v.reason_code) for v in judgements.values()} == {(State.SKIPPED, "weights_unknown")}
    assert {v.reason_code for v in verdicts(part).values()} == {"plan_unfinished"}


def test_what_cannot_be_compared_says_why() -> None:
    before = measured()

    def why(**changes: object) -> str:
        run = held_against(measured(), before)
        assert run.earlier is not None
        other = replace(run.earlier.runs["demo-64"], **changes)  # type: ignore[arg-type]
        outcome = spec(replace(run, earlier=Earlier({"demo-64": other})))
        assert outcome.state is State.SKIPPED
        return outcome.message

    assert "earlier decoded other prompts" in why(prompts={})
    assert "earlier had another draft" in why(draft_sha256="0" * 64)
    assert "earlier had another device" in why(device="another")
    assert "earlier did not measure this cell" in why(cells={})
    assert "earlier ran with another budget" in why(scenario=replace(before.scenarios["demo-64"], budget=Budget(7)))
    other = spec(replace(measured(upto=2), earlier=None))  # another policy's run, which ended early
    assert (other.state, other.reason_code) == (State.SKIPPED, "not_looked_for")


def test_a_rule_without_a_margin_is_refused() -> None:
    ((key, why),) = GATE.problems(replace(RULE, params={"prefill_margin_pct": 1.0}))
    assert key == "gate" and "neither time_margin_pct nor acceptance_margin_pct" in why
    assert not list(GATE.problems(RULE))


# Clocks


def clocked(run: Run, mhz: float) -> Run:
    """`run`, whose GPU ran at this SM clock (MHz) in every role."""
    clock = RoleClock(mhz, 1.0, 31, 32, 200, 1.0)
    seen = ClockComparison({r.cell.role.name: clock for r in run.cells})
    (machine,) = watched_run(SAMPLES).conditions.values()
    machine = replace(machine, gpu=replace(machine.gpu, common_clocks=seen))
    return replace(run, conditions={point.key: machine for point in {r.cell.point for r in run.cells}})


@pytest.mark.parametrize(
    ("slower", "mhz", "state"),
    [
        (1.0, 1980, State.PASS),
        (1.0, 1940, State.PASS),  # 2.0 % lower: at most as much faster at equal clocks
        (1.0, 2040, State.INCONCLUSIVE),  # 3.0 % higher: as much may hide a loss
        (1.0, 1990, State.PASS),  # 0.5 % is what readings differ by
        (1.1, 1980, State.FAIL),
        (1.1, 1840, State.INCONCLUSIVE),  # 7.1 % lower: that may be all of it
        (0.95, 1980, State.IMPROVED),
        (0.95, 2080, State.PASS),  # proven faster, but not without the clock
    ],
)
def test_runs_at_other_clocks_are_judged_with_and_without_the_clocks_part(
    slower: float, mhz: float, state: State
) -> None:
    before = clocked(measured(), 1980)
    outcome = spec(held_against(clocked(measured(slower=slower), mhz), before))
    assert outcome.state is state
    if state is State.INCONCLUSIVE:
        assert outcome.reason_code == "clocks_differ" and f"at an SM clock {percent(mhz / 1980)}" in outcome.message


# Acceptance

LESS = (3, 1, 2, 0, 3, 0)
ACCEPTANCE = replace(RULE, params={"acceptance_margin_pct": 2.0})


def test_the_same_texts_and_counts_are_the_same_without_an_interval() -> None:
    outcome = spec(held_against(measured(), measured()), ACCEPTANCE)
    assert outcome.state is State.PASS and "the same by count" in outcome.message


def test_a_lower_acceptance_of_the_same_texts_fails_by_count() -> None:
    outcome = spec(held_against(measured(accept=LESS), measured()), ACCEPTANCE)
    assert (outcome.state, outcome.reason_code) == (State.FAIL, "accepts_less")
    assert outcome.evidence["same_texts"] == outcome.evidence["prompts"] == 8


def test_prompts_that_keep_their_text_can_show_that_nothing_was_lost() -> None:
    outcome = spec(held_against(measured(text=4), measured()), ACCEPTANCE)
    assert outcome.state is State.PASS and "4 of 8 prompts have another text" in outcome.message


def test_an_acceptance_lost_with_every_text_changed_is_found_over_the_prompts() -> None:
    outcome = spec(held_against(measured(text=8, accept=(0, 1, 0, 0, 1, 0)), measured()), ACCEPTANCE)
    assert (outcome.state, outcome.reason_code) == (State.FAIL, "accepts_less")


def test_two_repetitions_weigh_as_four_do() -> None:
    assert spec(held_against(measured(upto=2), measured()), ACCEPTANCE).message.startswith(
        spec(held_against(measured(), measured()), ACCEPTANCE).message.partition(";")[0]
    )


def times(pairs: dict[tuple[int, int], tuple[tuple[int, ...], int]]) -> CellTimes:
    """Texts by (prompt set, slot) → (tokens, accepted); each in ten steps of one block."""
    texts = tuple(
        PromptText(*key, 1, 10, accepted, len(tokens), tuple(digests_of(tokens)))
        for key, (tokens, accepted) in pairs.items()
    )
    return CellTimes((), (), (), (), (), (), texts)


def test_the_acceptance_length_is_over_the_steps_that_a_method_did_not_draft_in() -> None:
    """Both texts have 40 tokens: one by a draft in each of 20 steps, one by longer drafts in 4 of 32."""
    always = AcceptanceRecord(3, (0, 20, 0, 0), (20, 20, 20), 40, 0, skipped=0)
    seldom = AcceptanceRecord(3, (0, 0, 4, 0), (4, 4, 4), 12, 0, skipped=28)
    round_ = next(r for r in plan_of().rounds if not r.warmup)
    old, new = (
        CellTimes((), (), (), (), (), (), tuple(texts_of([served_block(round_, Role(3), [request], record)])))
        for request in [ServedRequest(0, (1, 2), (1, 40))]
        for record in (always, seldom)
    )
    change = acceptance_change(old, new)
    assert change is not None and (change.old, change.new) == (2.0, 1 + 8 / 32)


def test_where_texts_change_and_too_few_keep_theirs_nothing_is_said_unless_it_is_proven() -> None:
    old = times({(i, 0): ((i, 2, 3), 10 + i) for i in range(4)})
    new = times({(i, 0): ((i, 9, 3), 13 - i) for i in range(4)})
    change = acceptance_change(old, new)
    assert change is not None and change.same == 0 and change.of_same is None
    assert change.old == pytest.approx(change.new)
    run = held_against(measured(), measured())
    assert run.earlier is not None
    key = Cell(run.cells[0].cell.point, Role(3)).key
    earlier = replace(run.earlier.runs["demo-64"], cells={key: old})
    open_ = spec(replace(run, earlier=Earlier({"demo-64": earlier}), times={key: new}), ACCEPTANCE)
    assert (open_.state, open_.reason_code) == (State.SKIPPED, "texts_changed")


@given(st.lists(st.integers(0, 5), max_size=300), st.integers(0, 300), st.integers(0, 299))
def test_two_texts_are_the_same_exactly_where_the_shorter_begins_the_longer(
    tokens: list[int], cut: int, at: int
) -> None:
    def made(text: list[int]) -> PromptText:
        return PromptText(0, 0, 1, 1, 1, len(text), tuple(digests_of(text)))

    assert same_text(made(tokens), made(tokens[:cut]))
    if at < len(tokens):
        changed = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
        assert not same_text(made(tokens), made(changed))


def test_a_text_that_is_repeated_otherwise_is_never_the_same() -> None:
    assert not same_text(PromptText(0, 0, 1, 1, 1, 1, ()), PromptText(0, 0, 1, 1, 1, 1, ()))


# Pairs, and the error that they share


def test_rounds_are_paired_by_what_they_decoded_and_a_round_of_one_run_alone_is_left_out() -> None:
    old = CellTimes((0, 1, 2), (0, 1, 0), (0, 0, 1), (0, 1, 1), (100, 200, 400))
    new = CellTimes((0, 1, 2), (1, 0, 1), (0, 0, 1), (0, 0, 0), (100, 100, 100))
    pairs = paired_by_round(old, new, "step_ns")
    assert pairs.log_ratios == pytest.approx([math.log(2), 0.0])
    assert (pairs.turns, pairs.orders) == ([0, 1], [-1, 0])


def test_two_runs_differ_by_both_processes_and_never_by_less_than_is_assumed() -> None:
    assert between_two_runs([]).process_sd == pytest.approx(0.0056 * math.sqrt(2))
    assert between_two_runs([BetweenRuns(0.0001, 4)]).process_freedom is None
    noisy = between_two_runs([BetweenRuns(0.02, 4), BetweenRuns(0.001, 4)])
    assert noisy.process_sd == pytest.approx(0.02 * math.sqrt(2)) and noisy.process_freedom == 4


def test_every_time_and_every_acceptance_takes_its_share_of_the_error() -> None:
    plan = plan_of(scenario())
    both = 2  # earlier runs: the last green one and the anchor
    assert required_decisions(plan, policy_of(RULE)) == 3 * both  # two step times and one acceptance
    alone = replace(RULE, params={"time_margin_pct": 3.0, "acceptance_margin_pct": 2.0})
    assert required_decisions(plan, policy_of(alone)) == 3
    full = plan_of(scenario(kind="full"))
    assert required_decisions(full, policy_of(RULE, Rule("s", "speed", True, params={"min": 1.0}))) == 5 * both + 1
    run = held_against(measured(), measured())
    error = spec(run).evidence["step_error_fail"]
    assert isinstance(error, float) and error * 2 * 3 * both == pytest.approx(FALSE_FAIL)  # at the first look, a half


def test_times_are_kept_of_every_cell_and_only_where_a_rule_asks_for_them() -> None:
    plan = plan_of(scenario())
    blocks = blocks_of(plan)
    run = run_of(plan, blocks)
    assert needs_earlier_run(policy_of(RULE)) and not needs_earlier_run(Policy("none", ()))
    kept = cell_times(plan, run.cells, blocks, {})
    assert set(kept) == {cell.key for cell in plan.cells}
    assert kept[Cell(plan.points[0], BASELINE).key].prefill_ns == ()


def test_step_times_that_were_counted_otherwise_are_not_compared() -> None:
    """A build that sends several steps in a chunk is one to look at, not one to pass."""
    now, before = measured(), measured()
    key = next(key for key in now.times if key.endswith("spec-3"))
    times = {**now.times, key: replace(now.times[key], unit=StepUnit.TOKEN)}
    old = {**before.times, key: replace(before.times[key], unit=StepUnit.ARRIVAL)}
    outcome = spec(held_against(replace(now, times=times), replace(before, times=old)))
    assert outcome.state is State.INCONCLUSIVE
    assert "step time was counted per arrival, now per output token: not comparable" in outcome.message
    same = {**before.times, key: replace(before.times[key], unit=StepUnit.TOKEN)}
    alike = spec(held_against(replace(now, times=times), replace(before, times=same)))
    assert "step time per output token, since its arrivals are not its steps" in alike.message
