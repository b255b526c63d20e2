"""Engines that are not to be bit-exact: texts may part at near ties, from the baseline and from round to round; nothing
else is excused, and behind a near tie a text must stay greedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specgate.analysis.perf_invariants.certificate import certificates
from specgate.analysis.reduce import Checked, measure
from specgate.analysis.tokens.checking import judged as checked
from specgate.analysis.tokens.comparison import find_divergences, find_repeats
from specgate.analysis.tokens.continuations import Parted, parted_texts
from specgate.contract import (
    BaselineText,
    Block,
    Cell,
    Comparison,
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

SIGMA = 0.05
TIES = NearTies(max_sigma=0.15)
RULE = Rule("tokens", "tokens", True, role="spec-*", params={"near_tie_margin": 0.0, "max_sigma": 0.15})
CHECKS = TokenChecks(followed=8, followed_tokens=4)


def perf_plan(prompt_sets: int = 4) -> Plan:
    return plan_of(replace(scenario(prompt_sets=prompt_sets), perf_mode=True))


def shown(expected: int, got: int, gap: float, sigma: float = SIGMA) -> dict[str, Any]:
    """Twenty log-probabilities of two passes, each with errors of `sigma`; `got` lies `gap` below `expected`."""
    others = [-0.5 - gap - 0.3 * i - 0.01 * i**2 for i in range(1, 19)]
    top = (-0.5, -0.5 - gap, *others)
    off = sigma * math.sqrt(2 * 19 / 20)  # a variance of 2 sigma² with 19 degrees of freedom
    again = tuple(value + (off if i % 2 else -off) for i, value in enumerate(top))
    return {"top": top, "top_tokens": (expected, got, *range(900_000, 900_018)), "again": again}


def margins(blocks: Sequence[Block], gaps: float | Mapping[int, float]) -> list[Margin]:
    """`gaps`: how far apart the two tokens are, everywhere or by prompt set, where it is not 0.05."""
    values = []
    for cell, d, _ in (*find_divergences(blocks), *find_repeats(blocks)):
        gap = gaps if isinstance(gaps, float) else gaps.get(d.prompt_set, 0.05)
        place = cell.key, d.prompt_set, d.round, d.slot, d.position
        values.append(Margin(*place, -0.5, -0.5 - gap, **shown(d.expected, d.got, gap)))
    return values


def faithful(text: Parted) -> Followed:
    place = text.cell.key, text.prompt_set, text.round, text.slot, text.position
    return Followed(*place, text.rest[:4])


def leaving(gap: float, **changes: Any) -> Callable[[Parted], Followed]:
    """Follow a text that plain decoding leaves once more two tokens later, with `gap` between the two."""

    def follow(text: Parted) -> Followed:
        tokens = (*text.rest[:2], text.rest[2] + 1, text.rest[3])
        return replace(faithful(text), tokens=tokens, **shown(tokens[2], text.rest[2], gap) | changes)

    return follow


def judged(
    change: Callable[[Block], Block],
    gaps: float | Mapping[int, float] = 0.05,
    follow: Callable[[Parted], Followed] = faithful,
    rule: Rule = RULE,
    ties: NearTies = TIES,
    prompt_sets: int = 4,
) -> tuple[Verdict, Run]:
    plan = perf_plan(prompt_sets)
    blocks = blocks_of(plan, change=change)
    recorded = margins(blocks, gaps)
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


def test_texts_that_part_at_near_ties_pass_with_sigma_and_their_speed() -> None:
    result, run = judged(corrupt)
    assert (result.state, result.reason_code) == (State.PASS, "near_tie_divergence")
    bounds = r"furthest 0\.5 σ \(at most [\d.]+\), mean square 0\.2 σ² \(at most [\d.]+\), σ 0\.05 logits \(at most "
    assert re.search("8 of 8 texts part, all at near ties: " + bounds, result.message)
    assert result.evidence["parted"] == 8 and result.evidence["followed_tokens"] == 4 * 4
    assert result.evidence["places"] == 4, "rounds that part alike are one place"
    assert i7(run) is Held.HELD
    assert run.comparisons[0].speedup.value is not None


def test_a_gap_that_no_rounding_makes_is_a_wrong_token_and_no_speed_is_quoted() -> None:
    result, run = judged(corrupt, gaps={0: 0.05, 2: 0.9})
    assert (result.state, result.reason_code) == (State.INVALID, "token_mismatch")
    assert "first: prompt set 2, round" in result.message and "0.9 logits apart" in result.message
    assert i7(run) is Held.BROKEN
    assert run.comparisons[0].speedup.value is None


def test_where_nobody_told_the_gap_the_invariant_is_unseen_and_not_broken_and_no_speed_is_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a run that was cut short before it asked."""
    everywhere = margins
    monkeypatch.setitem(judged.__globals__, "margins", lambda blocks, gaps: [])
    result, run = judged(corrupt)
    assert (result.state, result.reason_code) == (State.INVALID, "token_mismatch")
    assert i7(run) is Held.UNSEEN and run.comparisons[0].speedup.value is None
    monkeypatch.setitem(judged.__globals__, "margins", lambda blocks, gaps: everywhere(blocks, gaps)[:1])
    assert i7(judged(corrupt, gaps=0.9)[1]) is Held.BROKEN


def test_a_near_tie_excuses_no_other_round_that_nobody_asked_about() -> None:
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)
    result = [d for d in find_divergences(blocks) if d[1].prompt_set == 0]
    assert len(result) > 1 and len({d.key for _, d, _ in result}) < len(result)  # rounds part at the same place
    first = margins(blocks, 0.05)[:1]
    parted, law, _ = checked((d for _, d, _ in result), result[0][0], first, TIES)
    assert [d.near_tie for d in parted] == [True, *[False] * (len(result) - 1)]
    assert law is not None and law.places == 1


@pytest.mark.parametrize(
    ("gap", "code"),
    [
        (0.11, "near_tie_divergence"),  # 1.0 σ at every place: as rounding does
        (0.24, "ties_too_wide"),  # 2.2 σ everywhere: no single one is too far
        (0.9, "token_mismatch"),
    ],
)
def test_near_ties_that_are_too_wide_all_together_are_no_rounding(gap: float, code: str) -> None:
    result, run = judged(corrupt, gaps=gap, prompt_sets=10)
    assert result.reason_code == code
    assert (run.comparisons[0].speedup.value is None) is (result.state is State.INVALID)
    assert result.state is (State.PASS if gap < 0.2 else State.INVALID)
    if code == "ties_too_wide":
        assert "at 10 places" in result.message and "σ²" in result.message
        assert judged(corrupt, gaps={0: gap}, prompt_sets=1)[0].state is State.PASS, "one of them may be chance"


def rounding_by(sigma: float, cache: str | None = None, **params: float | str) -> Verdict:
    """The verdict on texts that part at gaps of half a σ."""
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)
    recorded = [
        Margin(cell.key, d.prompt_set, d.round, d.slot, d.position, 0, 0, **shown(d.expected, d.got, sigma, sigma))
        for cell, d, _ in find_divergences(blocks)
    ]
    run = run_of(plan, blocks)
    if cache is not None:
        engines = {key: replace(of, details={**of.details, "KV cache": cache}) for key, of in run.engines.items()}
        run = replace(run, engines=engines)
    whole = Checked([longer(b) for b in blocks if not b.role.speculative], asked=TokenChecks(followed=0))
    cells, comparisons = measure(plan, blocks, recorded, TIES, whole)
    rule = replace(RULE, params={**RULE.params, **params})
    (verdict,) = GATE.judge(rule, replace(run, cells=cells, comparisons=comparisons))
    return verdict


def test_an_engine_that_rounds_coarsely_passes_by_name_or_not_at_all() -> None:
    assert rounding_by(0.1).state is State.PASS
    coarse = rounding_by(0.5)
    assert (coarse.state, coarse.reason_code) == (State.FAIL, "rounds_too_coarsely")
    assert "σ 0.5 logits at 4 places" in coarse.message and "0.21 (at many places 0.15)" in coarse.message
    assert rounding_by(0.19).state is State.PASS and rounding_by(0.23).state is State.FAIL
    assert rounding_by(0.5, max_sigma=0.6).state is State.PASS
    named: dict[str, float | str] = {"cache_sigma": "fp8 0.3, nvfp4 0.6"}
    assert rounding_by(0.5, "nvfp4 (E2M1)", **named).state is State.PASS
    assert rounding_by(0.5, "fp8_e4m3", **named).state is State.FAIL
    assert rounding_by(0.5, "bfloat16", **named).state is State.FAIL


def test_rounding_that_nothing_tells_is_not_judged_and_not_assumed() -> None:
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)

    def outcome(gap: float) -> tuple[Verdict, Comparison]:
        recorded = [replace(m, again=()) for m in margins(blocks, gap)]
        cells, (comparison,) = measure(plan, blocks, recorded, TIES, Checked(asked=TokenChecks(followed=0)))
        (verdict,) = GATE.judge(RULE, replace(run_of(plan, blocks), cells=cells, comparisons=(comparison,)))
        return verdict, comparison

    unknown, comparison = outcome(0.2)
    assert (unknown.state, unknown.reason_code) == (State.NOT_JUDGED, "sigma_unknown")
    assert "nothing tells how the engine rounds" in unknown.message
    assert not comparison.tokens.defects and comparison.speedup.value is not None
    # A gap that the engine shows, at one of four places, with the largest σ of 0.15: 3.52 · 0.15 · √(2 · 2.108) = 1.08.
    states = []
    for gap in (1.0, 1.2):
        far, comparison = outcome(gap)
        assert (comparison.speedup.value is None) is (far.state is State.INVALID), "gate and table have one bound"
        states.append((far.state, far.reason_code))
    assert states == [(State.NOT_JUDGED, "sigma_unknown"), (State.INVALID, "token_mismatch")]


def test_a_run_that_was_cut_short_says_that_it_did_not_ask_how_close_the_tokens_are() -> None:
    plan = plan_of(replace(scenario(), perf_mode=True))
    blocks = blocks_of(plan, change=corrupt)
    cells, comparisons = measure(plan, blocks, [], TIES)
    run = replace(run_of(plan, blocks), cells=cells, comparisons=comparisons)
    failed = replace(run, failures={comparisons[0].cell.point.key: "killed"})
    for cut_short in (replace(run, failures={"run": "interrupted"}), failed):
        (verdict,) = GATE.judge(RULE, cut_short)
        assert (verdict.state, verdict.reason_code) == (State.INVALID, "margin_not_asked")
        assert verdict.next_step is not None and verdict.next_step.startswith("continue with --resume")


def test_a_run_that_was_cut_short_does_not_blame_the_baseline_for_texts_that_it_was_not_asked_for() -> None:
    plan = plan_of(scenario())
    run = run_of(plan, blocks_of(plan))
    (comparison,) = run.comparisons
    short = replace(comparison, tokens=replace(comparison.tokens, whole_sets=()))
    cut: list[dict[str, str]] = [{"run": "disk full"}, {comparison.cell.point.key: "killed"}, {}]
    for failures in cut:
        (verdict,) = GATE.judge(RULE, replace(run, comparisons=(short,), failures=failures))
        assert (verdict.state, verdict.reason_code) == (State.INVALID, "text_not_compared")
        assert (verdict.next_step == "continue with --resume") is bool(failures)
        assert ("decoded again" in verdict.message) is not bool(failures)


@pytest.mark.parametrize("named", [True, False])
def test_a_token_that_is_not_among_the_most_likely_or_not_named_is_wrong_however_near_they_are(named: bool) -> None:
    plan = perf_plan()
    blocks = blocks_of(plan, change=corrupt)
    strange = [
        replace(m, top_tokens=(m.top_tokens[0], 7_000_000, *m.top_tokens[2:]) if named else ())
        for m in margins(blocks, 0.0)
    ]
    _, (comparison,) = measure(plan, blocks, strange, TIES)
    assert len(comparison.tokens.mismatches) == 8


def test_rounds_may_part_at_near_ties_too_and_are_counted() -> None:
    result, run = judged(lambda b: corrupt(b) if b.round else b)
    assert result.state is State.PASS and i7(run) is Held.HELD
    spec = next(c for c in run.cells if c.cell.role.speculative)
    assert spec.values["repeat_mismatches"].value == 0 and spec.values["repeat_near_ties"].value == 4


def test_rounds_that_part_elsewhere_are_not_deterministic() -> None:
    result, run = judged(lambda b: corrupt(b) if b.round else b, gaps=0.9)
    assert (result.state, result.reason_code) == (State.INVALID, "nondeterministic")
    assert i7(run) is Held.BROKEN


def test_a_text_that_plain_decoding_does_not_repeat_behind_the_near_tie_is_wrong() -> None:
    result, run = judged(corrupt, follow=leaving(0.9))
    assert (result.state, result.reason_code) == (State.INVALID, "not_greedy")
    assert "token 8" in result.message, "it parts at token 5, and two tokens behind that are plain decoding's"
    assert i7(run) is Held.BROKEN and run.comparisons[0].speedup.value is None
    spec = next(c for c in run.cells if c.cell.role.speculative)
    assert spec.values["decode_tok_s"].reason_code == "token_mismatch"


def test_behind_a_near_tie_too_nothing_is_assumed_of_how_the_engine_rounds() -> None:
    result, run = judged(corrupt, follow=leaving(0.05, again=()), prompt_sets=2)
    assert (result.state, result.reason_code) == (State.NOT_JUDGED, "sigma_unknown")
    assert "2 of 2 texts leave plain decoding once more" in result.message
    assert i7(run) is Held.UNSEEN and run.comparisons[0].speedup.value is not None


def test_a_text_that_nobody_followed_is_not_excused() -> None:
    def nowhere(text: Parted) -> Followed:
        return Followed("another cell", text.prompt_set, text.round, text.slot, text.position, text.rest[:4])

    result, run = judged(corrupt, follow=nowhere)
    assert (result.state, result.reason_code) == (State.INVALID, "not_greedy") and "not followed" in result.message
    assert i7(run) is Held.BROKEN


def test_a_text_may_leave_plain_decoding_once_more_at_another_near_tie() -> None:
    result, _ = judged(corrupt, follow=leaving(0.05))
    assert result.state is State.PASS and "4 leave it at another near tie" in result.message


def test_equal_texts_are_said_to_be_equal() -> None:
    result, _ = judged(lambda b: b)
    assert (result.state, result.reason_code) == (State.PASS, "tokens_equal")
