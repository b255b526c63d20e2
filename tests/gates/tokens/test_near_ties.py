"""Engines that are not to be bit-exact: texts may part at near ties, from the baseline and from round to round; nothing
else is excused, and behind a near tie a text must stay greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulations.parting_simulation import too_far, too_wide
from specgate.analysis.perf_invariants import certificates
from specgate.analysis.reduce import Checked, measure
from specgate.analysis.tokens.comparison import find_divergences, find_repeats, with_margins
from specgate.analysis.tokens.continuations import Parted, parted_texts
from specgate.analysis.tokens.divergences import mean_gap
from specgate.contract import (
    BaselineText,
    Block,
    Cell,
    Divergence,
    Followed,
    Held,
    Margin,
    NearTies,
    Plan,
    Rule,
    Run,
    State,
    TokenChecks,
    Verdict,
)
from specgate.gates.tokens.gate import GATE
from tests.support.factories import blocks_of, corrupt, plan_of, run_of, scenario, text

UNIT = 0.0625
TIES = NearTies(ulps=4)
RULE = Rule("tokens", "tokens", True, role="spec-*", params={"near_tie_margin": 0.0, "near_tie_ulps": 4.0})
CHECKS = TokenChecks(followed=8, followed_tokens=4)


def perf_plan(prompt_sets: int = 4) -> Plan:
    return plan_of(replace(scenario(prompt_sets=prompt_sets), perf_mode=True))


def shown(expected: int, got: int, units: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Twelve log-probabilities in steps of UNIT, `got` lying `units` below `expected`, and their tokens."""
    others = [-(units + 3 + 2 * i) * UNIT for i in range(10)]
    return (-0.5, -0.5 - units * UNIT, *(-0.5 + gap for gap in others)), (expected, got, *range(900_000, 900_010))


def margins(blocks: Sequence[Block], units: int | Mapping[int, int]) -> list[Margin]:
    """`units`: how far apart the two tokens are, everywhere or by prompt set, where it is not 1."""
    values = []
    for cell, d, _ in (*find_divergences(blocks), *find_repeats(blocks)):
        top, tokens = shown(d.expected, d.got, units if isinstance(units, int) else units.get(d.prompt_set, 1))
        values.append(Margin(cell.key, d.prompt_set, d.round, d.slot, d.position, top[0], top[1], top, tokens))
    return values


def faithful(text: Parted) -> Followed:
    place = text.cell.key, text.prompt_set, text.round, text.slot, text.position
    return Followed(*place, text.rest[:4])


def judged(
    change: Callable[[Block], Block],
    units: int | Mapping[int, int] = 1,
    follow: Callable[[Parted], Followed] = faithful,
    rule: Rule = RULE,
    ties: NearTies = TIES,
    prompt_sets: int = 4,
) -> tuple[Verdict, Run]:
    plan = perf_plan(prompt_sets)
    blocks = blocks_of(plan, change=change)
    recorded = margins(blocks, units)
    run = run_of(plan, blocks)
    of_cell = [(cell, [d for c, d, _ in find_divergences(blocks) if c == cell]) for cell in spec_cells(plan)]
    followed = [follow(t) for cell, result in of_cell for t in parted_texts(cell, blocks, result, 8)]
    checked = Checked([longer(b) for b in blocks if not b.role.speculative], asked=CHECKS, followed=followed)
    cells, comparisons = measure(plan, blocks, recorded, ties, checked)
    made = certificates(plan, cells, comparisons, blocks, run.engines, {}, ties)
    run = replace(run, cells=cells, comparisons=comparisons, certificates=made)
    (verdict,) = GATE.judge(rule, run)
    return verdict, run


def longer(made: Block) -> BaselineText:
    """The baseline's text, as long as any speculative one."""
    tokens = tuple(text(made.prompt_set, slot, 64) for slot in range(len(made.tokens)))
    return BaselineText(made.point, made.prompt_set, 0, tokens, made.finish, (0, 1))


def spec_cells(plan: Plan) -> list[Cell]:
    return [cell for cell in plan.cells if cell.role.speculative]


def i7(run: Run) -> Held:
    (certificate,) = (result for key, result in run.certificates.items() if "spec" in key)
    return next(i.held for i in certificate if i.id == "I7")


def test_texts_that_part_at_near_ties_pass_with_their_share_and_their_speed() -> None:
    result, run = judged(corrupt)
    assert (result.state, result.reason_code) == (State.PASS, "near_tie_divergence")
    assert "8 of 8 texts leave the baseline's at a near tie (at most 1 units in the last place" in result.message
    assert result.evidence["parted"] == 8 and result.evidence["followed_tokens"] == 4 * 4
    assert i7(run) is Held.HELD
    assert run.comparisons[0].speedup.value is not None


def test_a_gap_of_more_units_is_a_wrong_token_and_no_speed_is_quoted() -> None:
    result, run = judged(corrupt, units=5)
    assert (result.state, result.reason_code) == (State.INVALID, "token_mismatch")
    assert "5 units in the last place" in result.message
    assert i7(run) is Held.BROKEN
    assert run.comparisons[0].speedup.value is None


def test_where_nobody_told_the_gap_the_invariant_is_unseen_and_not_broken_and_no_speed_is_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a run that was cut short before it asked."""
    everywhere = margins
    monkeypatch.setitem(judged.__globals__, "margins", lambda blocks, units: [])
    result, run = judged(corrupt)
    assert (result.state, result.reason_code) == (State.INVALID, "token_mismatch")
    assert i7(run) is Held.UNSEEN and run.comparisons[0].speedup.value is None
    monkeypatch.setitem(judged.__globals__, "margins", lambda blocks, units: everywhere(blocks, units)[:1])
    assert i7(judged(corrupt, units=5)[1]) is Held.BROKEN


RARE = replace(TIES, rare_ulps=8)
RARE_RULE = replace(RULE, params={**RULE.params, "rare_tie_ulps": 8.0})


@pytest.mark.parametrize(
    ("units", "state"),
    [
        ({0: 5}, State.PASS),
        ({0: 8}, State.PASS),
        ({0: 9}, State.INVALID),  # beyond the outer bound none is allowed
        ({0: 5, 1: 8}, State.INVALID),  # four places: one may lie between the bounds
        ({0: 5, 1: 9}, State.INVALID),
    ],
)
def test_one_place_may_lie_between_the_two_bounds_and_none_beyond(units: Mapping[int, int], state: State) -> None:
    result, run = judged(corrupt, units=units, rule=RARE_RULE, ties=RARE)
    assert result.state is state
    assert (run.comparisons[0].speedup.value is None) is (state is State.INVALID)
    assert i7(run) is (Held.HELD if state is State.PASS else Held.BROKEN)
    if state is State.PASS:
        assert f"at most {units[0]} units in the last place, 4 allowed, 8 at 1 of them)" in result.message


def test_a_place_that_is_rare_excuses_no_other_round_with_a_larger_gap_there() -> None:
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)
    result = [d for d in find_divergences(blocks) if d[1].prompt_set == 0]
    assert len(result) > 1 and len({d.key for _, d, _ in result}) < len(result)  # rounds part at the same place
    recorded = []
    for gap, (cell, d, _) in zip((6, 40, *[None] * 9), result, strict=False):
        if gap is not None:  # the others were never asked about
            top, tokens = shown(d.expected, d.got, gap)
            recorded.append(Margin(cell.key, d.prompt_set, d.round, d.slot, d.position, top[0], top[1], top, tokens))
    judged = with_margins((d for _, d, _ in result), result[0][0], recorded, RARE)
    assert [d.near_tie for d in judged] == [True, *[False] * (len(result) - 1)]


def test_too_many_places_between_the_bounds_are_said_to_be_that() -> None:
    result, _ = judged(corrupt, units=5, rule=RARE_RULE, ties=RARE)
    assert "8 are allowed for 1 place where texts part and 1 more of every 50" in result.message


@given(st.integers(0, 400))
def test_of_every_fifty_divergences_one_more_may_be_rare(divergences: int) -> None:
    allowed = RARE.allowed_rare(divergences)
    assert RARE.allowed_rare(divergences + 50) == allowed + 1 >= 2
    assert TIES.allowed_rare(divergences) == 0


MEAN_RULE = replace(RULE, params={**RULE.params, "mean_tie_ulps": 1.5})


@pytest.mark.parametrize(
    ("units", "mean", "code"),
    [
        ((0, 1, 1, 0, 2, 1, 0, 3, 1, 1), 1.0, "near_tie_divergence"),  # as rounding parts texts
        ((0, 1, 4, 3, 2, 1, 4, 3, 1, 0), 1.9, "near_tie_divergence"),  # that may be chance
        ((3, 4, 3, 3, 2, 4, 3, 3, 4, 3), 3.2, "ties_too_wide"),
        ((4, 2, 4, 4, 2, 4, 4, 4, 2, 4), 1.7, "near_tie_divergence"),  # all even: their own unit is twice as large
        ((4, 2, 4, 4, 2, 4, 4, 3, 2, 4), 1.9, "near_tie_divergence"),
    ],
)
def test_near_ties_that_are_too_wide_in_the_mean_are_no_rounding(
    units: tuple[int, ...], mean: float, code: str
) -> None:
    """As of an engine that accepts a draft as soon as it is within 4 units of the best."""
    at = dict(enumerate(units))
    result, _ = judged(corrupt, units=at, rule=MEAN_RULE, prompt_sets=10)
    assert result.reason_code == code
    assert result.state is (State.INVALID if code == "ties_too_wide" else State.PASS)
    assert result.evidence["parting_places"] == 10
    assert result.evidence["mean_gap_ulps"] == pytest.approx(mean)
    assert judged(corrupt, units=at, prompt_sets=10)[0].state is State.PASS, "without the bound"


def test_a_few_places_tell_no_mean() -> None:
    result, _ = judged(corrupt, units=4, rule=MEAN_RULE)
    assert result.state is State.PASS and "mean_gap_ulps" not in result.evidence


@given(st.lists(st.integers(0, 10), min_size=8, max_size=120))
def test_the_simulated_rules_are_those_that_judge(units: list[int]) -> None:
    """`bench.simulations.parting_simulation` has its table in docs/statistics.md."""
    places = [Divergence(i, 0, 0, 5, 1, 2, u * UNIT, near_tie=False, unit=UNIT) for i, u in enumerate(units)]
    gaps = np.array([units], dtype=float)
    result = mean_gap([*places, *(replace(d, round=1) for d in places)])
    assert result is not None and result.places == len(units)
    assert too_wide(gaps, 1.5)[0] == (result.at_least > 1.5)
    cell = spec_cells(perf_plan())[0]
    recorded = []
    for d in places:
        top, tokens = shown(d.expected, d.got, units[d.prompt_set])
        recorded.append(Margin(cell.key, d.prompt_set, d.round, d.slot, d.position, top[0], top[1], top, tokens))
    for ties in (TIES, RARE):
        judged = with_margins(places, cell, recorded, ties)
        assert too_far(gaps, ties)[0] == (not all(d.near_tie for d in judged))


def test_a_run_that_was_cut_short_says_that_it_did_not_ask_how_close_the_tokens_are() -> None:
    plan = plan_of(replace(scenario(), perf_mode=True))
    blocks = blocks_of(plan, change=corrupt)
    cells, comparisons = measure(plan, blocks, [], TIES)
    run = replace(run_of(plan, blocks), cells=cells, comparisons=comparisons, status="interrupted")
    (verdict,) = GATE.judge(RULE, run)
    assert (verdict.state, verdict.reason_code) == (State.INVALID, "margin_not_asked")
    assert verdict.next_step is not None and verdict.next_step.startswith("continue with --resume")


def test_a_run_that_was_cut_short_does_not_blame_the_baseline_for_texts_that_it_was_not_asked_for() -> None:
    plan = plan_of(scenario())
    run = run_of(plan, blocks_of(plan))
    (comparison,) = run.comparisons
    short = replace(comparison, tokens=replace(comparison.tokens, whole_sets=()))
    cut: list[dict[str, Any]] = [{"status": "interrupted"}, {"failures": {comparison.cell.point.key: "killed"}}, {}]
    for changes in cut:
        (verdict,) = GATE.judge(RULE, replace(run, comparisons=(short,), **changes))
        assert (verdict.state, verdict.reason_code) == (State.INVALID, "text_not_compared")
        assert (verdict.next_step == "continue with --resume") is bool(changes)
        assert ("decoded once more" in verdict.message) is not bool(changes)


def test_a_token_that_is_not_among_the_most_likely_is_wrong_however_near_the_two_largest_are() -> None:
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)
    strange = [replace(m, top_tokens=(m.top_tokens[0], 7_000_000, *m.top_tokens[2:])) for m in margins(blocks, 0)]
    _, (comparison,) = measure(plan, blocks, strange, TIES)
    assert len(comparison.tokens.mismatches) == 8


def test_rounds_may_part_at_near_ties_too_and_are_counted() -> None:
    result, run = judged(lambda b: corrupt(b) if b.round else b)
    assert result.state is State.PASS and i7(run) is Held.HELD
    spec = next(c for c in run.cells if c.cell.role.speculative)
    assert spec.values["repeat_mismatches"].value == 0 and spec.values["repeat_near_ties"].value == 4


def test_rounds_that_part_elsewhere_are_not_deterministic() -> None:
    result, run = judged(lambda b: corrupt(b) if b.round else b, units=6)
    assert (result.state, result.reason_code) == (State.INVALID, "nondeterministic")
    assert i7(run) is Held.BROKEN


def test_behind_a_near_tie_one_text_may_part_between_the_two_bounds() -> None:
    def leaving(units: int, texts: int) -> Callable[[Parted], Followed]:
        def follow(text: Parted) -> Followed:
            if text.prompt_set >= texts:
                return faithful(text)
            top, names = shown(text.rest[2] + 1, text.rest[2], units)
            place = text.cell.key, text.prompt_set, text.round, text.slot, text.position
            return Followed(*place, (*text.rest[:2], text.rest[2] + 1, text.rest[3]), top, names)

        return follow

    def outcome(units: int, texts: int, rare: bool = True) -> str:
        rule, ties = (RARE_RULE, RARE) if rare else (RULE, TIES)
        return judged(corrupt, follow=leaving(units, texts), rule=rule, ties=ties)[0].reason_code

    assert outcome(5, 1) == "near_tie_divergence"
    assert outcome(5, 1, rare=False) == outcome(5, 2) == outcome(9, 1) == "not_greedy"


def test_a_text_that_plain_decoding_does_not_repeat_behind_the_near_tie_is_wrong() -> None:
    def elsewhere(text: Parted) -> Followed:
        tokens = (*text.rest[:2], text.rest[2] + 1, text.rest[3])
        top, names = shown(text.rest[2] + 1, text.rest[2], 9)
        place = text.cell.key, text.prompt_set, text.round, text.slot, text.position
        return Followed(*place, tokens, top, names)

    result, run = judged(corrupt, follow=elsewhere)
    assert (result.state, result.reason_code) == (State.INVALID, "not_greedy")
    assert "token 8" in result.message, "it parts at token 5, and two tokens behind that are plain decoding's"
    assert i7(run) is Held.BROKEN and run.comparisons[0].speedup.value is not None
    spec = next(c for c in run.cells if c.cell.role.speculative)
    assert spec.values["decode_tok_s"].reason_code == "token_mismatch"


def test_a_text_that_nobody_followed_is_not_excused() -> None:
    def nowhere(text: Parted) -> Followed:
        return Followed("another cell", text.prompt_set, text.round, text.slot, text.position, text.rest[:4])

    result, run = judged(corrupt, follow=nowhere)
    assert (result.state, result.reason_code) == (State.INVALID, "not_greedy") and "not followed" in result.message
    assert i7(run) is Held.BROKEN


def test_where_an_engine_does_not_name_its_tokens_nothing_is_a_near_tie() -> None:
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)
    unnamed = [replace(m, top_tokens=()) for m in margins(blocks, 0)]
    _, (comparison,) = measure(plan, blocks, unnamed, TIES)
    assert len(comparison.tokens.mismatches) == 8


def test_a_text_may_leave_plain_decoding_once_more_at_another_near_tie() -> None:
    def again(text: Parted) -> Followed:
        tokens = (*text.rest[:2], text.rest[2] + 1, text.rest[3])
        top, names = shown(text.rest[2] + 1, text.rest[2], 1)
        place = text.cell.key, text.prompt_set, text.round, text.slot, text.position
        return Followed(*place, tokens, top, names)

    result, _ = judged(corrupt, follow=again)
    assert result.state is State.PASS and "4 leave it at another near tie" in result.message


def test_a_policy_may_limit_the_share_of_texts_that_part() -> None:
    rule = replace(RULE, params={**RULE.params, "max_parted_share": 0.5})
    result, _ = judged(corrupt, rule=rule)
    assert (result.state, result.reason_code) == (State.FAIL, "too_many_part")
    half, _ = judged(lambda b: corrupt(b) if b.prompt_set < 2 else b, rule=rule)
    assert half.state is State.PASS


def test_equal_texts_are_said_to_be_equal() -> None:
    result, _ = judged(lambda b: b)
    assert (result.state, result.reason_code) == (State.PASS, "tokens_equal")
