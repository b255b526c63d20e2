"""Effect of speculation on a prefix cache, judged from requests with the cache on and off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.prefix_cache import (
    CacheDivergence,
    Check,
    Limits,
    Reply,
    Sample,
    Turn,
    check_reuse,
    judge,
    overall,
    rows,
)
from specgate.contract import State

SPEC = "spec-3"
LIMITS = Limits(max_lost_tokens=16, margin=0.001)
TEXT = (5, 6, 7)


def reply(cached: int | None, ttft_ms: float = 100.0) -> Reply:
    return Reply(cached, round(ttft_ms * 1e6), TEXT)


def sample(group: int, turn: Turn, baseline: int, spec: int, on_ms: Sequence[float] = (10.0, 12.0)) -> Sample:
    """A prompt of 1,000 tokens whose prefill takes 100 ms with the cache off, in both roles."""
    on = {"baseline": reply(baseline, on_ms[0]), SPEC: reply(spec, on_ms[1])}
    off = {"baseline": reply(0), SPEC: reply(0)}
    return Sample(group, turn, 1000, 0 if turn == "first" else 900, on, off, answered=64 if turn == "next turn" else 0)


def good() -> list[Sample]:
    """What an engine gives that drops one block of 16 tokens where it drafts."""
    turns: tuple[Turn, ...] = ("shared prefix", "next turn")
    return [
        values
        for group in range(4)
        for values in (sample(group, "first", 0, 0, (100.0, 103.0)), *(sample(group, t, 896, 880) for t in turns))
    ]


def states(checks: Sequence[Check]) -> list[tuple[str, State]]:
    return [(check.name, check.state) for check in checks]


def test_an_engine_that_reuses_as_much_passes() -> None:
    checks = judge(good(), [], SPEC, LIMITS)
    names = ["cache", "reuse", "texts", "texts"]
    assert states(checks) == [(name, State.PASS) for name in names] and overall(checks) is State.PASS
    assert "baseline reused 99.6 %, spec-3 97.8 % (8 requests); at most 16 tokens less" in checks[1].message
    by_turn = list(rows(good(), ("baseline", SPEC)))
    assert by_turn[2] == ("shared prefix", "baseline", 4, 0.896, 10.0, 100.0)


def test_one_request_that_loses_more_than_a_block_fails() -> None:
    samples = [*good()[:-1], sample(3, "next turn", 896, 879)]
    report = check_reuse(samples, SPEC, LIMITS)
    assert report.state is State.FAIL and report.evidence["most_lost"] == 17
    assert overall(judge(samples, [], SPEC, LIMITS)) is State.FAIL


def test_short_prompts_of_which_nothing_is_reused_fail_whatever_is_allowed() -> None:
    samples = [sample(g, t, 0 if t == "first" else 16, 0) for g in range(2) for t in ("first", "next turn")]
    report = check_reuse(samples, SPEC, replace(LIMITS, max_lost_tokens=64))
    assert report.state is State.FAIL and "nothing is reused" in report.message


def test_a_next_turn_of_another_answer_says_nothing_of_reuse() -> None:
    odd = replace(sample(3, "next turn", 896, 400), same_text=False)
    report = check_reuse([*good()[:-1], odd], SPEC, LIMITS)
    assert report.state is State.PASS and report.evidence["requests"] == 7 and report.evidence["left_out"] == 1
    assert "1 requests left out, whose earlier answers differ" in report.message


def test_texts_may_part_at_near_ties_only() -> None:
    near, wrong = CacheDivergence(SPEC, 1, 2, 0.0005, None), CacheDivergence(SPEC, 2, 0, 0.4, None)
    checks = judge(good(), [near], SPEC, LIMITS)
    assert checks[-1].state is State.PASS and "1 leave theirs without the cache, all at near ties" in checks[-1].message
    checks = judge(good(), [near, wrong], SPEC, LIMITS)
    assert states(checks)[-2:] == [("texts", State.PASS), ("texts", State.FAIL)]
    assert "1 of 2" in checks[-1].message and "request 3 (next turn), token 1: a gap of 0.4" in checks[-1].message
    assert judge(good(), [replace(near, gap=None)], SPEC, LIMITS)[-1].state is State.FAIL


def test_a_pair_that_is_none_is_invalid_and_nothing_else_is_said() -> None:
    silent = [replace(good()[0], on={"baseline": reply(0), SPEC: reply(None)}), *good()[1:]]
    warm = [replace(good()[0], off={"baseline": reply(0), SPEC: reply(16)}), *good()[1:]]
    off = [sample(g, "shared prefix", 0, 0) for g in range(4)]
    for samples, message in ((silent, "does not say"), (warm, "it was not off"), (off, "reused nothing")):
        (check,) = judge(samples, [], SPEC, LIMITS)
        assert check.state is State.INVALID and message in check.message
        assert overall([check]) is State.INVALID


def test_a_cache_that_was_not_empty_makes_no_pair() -> None:
    first = replace(good()[0], on={"baseline": reply(999), SPEC: reply(0)})
    turn = replace(good()[2], on={"baseline": reply(896), SPEC: reply(915)})
    for odd, message in ((first, "request 1 (first): baseline's"), (turn, "request 1 (next turn): spec-3's")):
        (check,) = judge([odd, *good()], [], SPEC, LIMITS)
        assert check.state is State.INVALID and message in check.message and "not empty; restart it" in check.message
    begun = replace(good()[2], on={"baseline": reply(901), SPEC: reply(901)})  # a draft that was the last token
    assert judge([begun, *good()], [], SPEC, LIMITS)[0].state is State.PASS


def test_requests_of_which_nothing_can_be_reused_are_no_pair() -> None:
    alone = [replace(sample(g, "shared prefix", 16, 16), reusable=0) for g in range(2)]
    assert check_reuse(alone, SPEC, LIMITS).state is State.INVALID
    (check,) = judge(alone, [], SPEC, LIMITS)
    assert check.state is State.INVALID and "nothing of these requests can be reused" in check.message


@pytest.mark.parametrize(("baseline", "spec", "who"), [(836, 836, "baseline and spec-3"), (852, 836, "spec-3")])
def test_where_no_answer_is_reused_nothing_is_known_of_decoded_keys(baseline: int, spec: int, who: str) -> None:
    samples = [sample(g, t, baseline, spec) for g in range(2) for t in ("shared prefix", "next turn")]
    report = check_reuse(samples, SPEC, LIMITS)
    assert report.state is State.INCONCLUSIVE
    assert f"; {who} reused nothing that was computed while decoding" in report.message
    assert report.evidence["baseline_of_answers"] == 2 * (baseline - 836)
    strict = check_reuse(samples, SPEC, replace(LIMITS, max_lost_tokens=15))
    assert strict.state is (State.INCONCLUSIVE if baseline == spec else State.FAIL)


def test_a_token_that_is_not_among_the_most_likely_is_said_to_be_that() -> None:
    far = CacheDivergence(SPEC, 1, 2, float("inf"), None)
    assert "its token is not among the 20 most likely" in judge(good(), [far], SPEC, LIMITS)[-1].message


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=9), st.integers(0, 900))
def test_reuse_passes_where_no_request_loses_more_than_allowed(hits: list[tuple[int, int]], allowed: int) -> None:
    samples = [sample(9, "next turn", 900, 900), *(sample(i, "shared prefix", a, b) for i, (a, b) in enumerate(hits))]
    report = check_reuse(samples, SPEC, replace(LIMITS, max_lost_tokens=allowed))
    fine = all(a - b <= allowed for a, b in hits)
    assert (report.state is State.PASS) == fine
