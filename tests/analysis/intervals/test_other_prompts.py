"""The interval of a speed-up on prompts like these: over prompt sets, and named."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.intervals.other_prompts import LEAST_SETS, LIKE_THESE, like_these, like_these_in_words
from specgate.analysis.stats import Pairs
from specgate.contract import Rule, Run, State, Value
from specgate.gates.acceptance import GATE as ACCEPTANCE
from specgate.gates.speed import GATE as SPEED
from specgate.reports.texts.console import PLAIN
from tests.support.factories import POLICY, blocks_of, plan_of, run_of, scenario

SURE = Value("speedup_vs_ar_ratio", 2.2, "geomean", 8, 2.2, 2.2)
"""A speed-up on these prompts that leaves nothing open."""


def pairs_of(sets: np.ndarray, rounds: int, noise: np.random.Generator, order: float = 0.0) -> Pairs:
    """`rounds` (an even number) per set, half of them in either order, with 0.1 % noise and an effect of the order."""
    log_ratios, orders, prompt_sets = [], [], []
    for round_ in range(rounds):
        for number, mean in enumerate(sets):
            orders.append(1 if (round_ + number) % 2 else -1)
            log_ratios.append(float(mean + order * orders[-1] + 0.001 * noise.normal()))
            prompt_sets.append(number)
    return Pairs(log_ratios, orders, prompt_sets, list(range(len(orders))))


def test_the_interval_is_students_over_the_means_of_prompt_sets() -> None:
    from scipy.stats import t

    noise = np.random.default_rng(1)
    pairs = pairs_of(noise.normal(0.8, 0.1, 8), 4, noise)
    means = [np.mean([d for d, p in zip(pairs.log_ratios, pairs.prompt_sets, strict=True) if p == s]) for s in range(8)]
    low, high = t.interval(0.95, 7, np.mean(means), np.std(means, ddof=1) / math.sqrt(8))
    value = like_these(pairs, SURE)
    assert value.ci_low is not None and value.ci_high is not None and value.n == 8
    assert (math.log(value.ci_low), math.log(value.ci_high)) == pytest.approx((low, high), abs=2e-4)


@given(st.floats(1.0, 2.0), st.floats(0.0, 0.3), st.integers(0, 99))
def test_it_is_never_narrower_than_the_interval_on_these_prompts(width: float, spread: float, seed: int) -> None:
    noise = np.random.default_rng(seed)
    these = Value("speedup_vs_ar_ratio", 2.0, "geomean", 8, 2.0 / width, 2.0 * width)
    value = like_these(pairs_of(noise.normal(0.7, spread, 8), 2, noise), these)
    assert value.ci_low is not None and value.ci_high is not None
    assert value.ci_high / value.ci_low >= width**2 * (1 - 1e-12)


def test_it_holds_the_mean_of_the_population_in_95_of_100_runs_where_prompts_differ_much() -> None:
    """More than 36 misses of 400 would lie three standard errors out."""
    noise, misses = np.random.default_rng(2), 0
    for _ in range(400):
        value = like_these(pairs_of(noise.normal(0.8, 0.1, 6), 2, noise), SURE)
        misses += not (value.ci_low or 0) <= math.exp(0.8) <= (value.ci_high or 0)
    assert 4 <= misses <= 36


def test_more_rounds_do_not_narrow_it_and_the_order_does_not_widen_it() -> None:
    noise = np.random.default_rng(3)
    sets = noise.normal(0.8, 0.1, 8)
    widths = []
    for rounds, order in ((2, 0.0), (32, 0.0), (2, 0.5)):
        value = like_these(pairs_of(sets, rounds, noise, order), SURE)
        widths.append(math.log((value.ci_high or 0) / (value.ci_low or 1)))
    assert widths == pytest.approx([widths[0]] * 3, rel=0.05)


@pytest.mark.parametrize("sets", [1, 2, LEAST_SETS - 1])
def test_few_prompt_sets_say_that_they_are_too_few(sets: int) -> None:
    noise = np.random.default_rng(4)
    value = like_these(pairs_of(noise.normal(0.8, 0.1, sets), 4, noise), SURE)
    assert (value.ci_low, value.reason_code, value.n) == (None, "few_sets", sets) and value.value is not None
    noun = "prompt set" if sets == 1 else "prompt sets"
    assert like_these_in_words(value) == f"{sets} {noun}: too few to say for prompts like these"
    withheld = Value("speedup_vs_ar_ratio", None, n=8, reason_code="token_mismatch")
    assert like_these(pairs_of(noise.normal(0.8, 0.1, 8), 4, noise), withheld).reason_code == "token_mismatch"


def own(prompt_sets: int) -> Run:
    plan = plan_of(scenario(prompt_sets=prompt_sets, rounds=16 // prompt_sets))
    run = run_of(plan, blocks_of(plan))
    (point,) = plan.points
    return replace(run, prompts={point.key: {"file": {"name": "mine.txt"}}})


def test_a_verdict_on_own_prompts_names_both_questions_and_one_on_others_does_not() -> None:
    rule = Rule("speed", "speed", True, role="spec-*", params={"min": 1.0})
    length = Rule("length", "acceptance", True, role="spec-*", params={"min": 1.0})
    run = own(8)
    (judged,), (accepted,) = SPEED.judge(rule, run), ACCEPTANCE.judge(length, run)
    assert (
        judged.state is State.PASS
        and "at least 1x on these prompts; on prompts like these" in judged.message
        and "(95 %, 8 prompt sets)" in judged.message
    )
    assert "95 % interval" not in judged.message and judged.evidence["prompt_sets"] == 8
    assert accepted.message.startswith("acceptance length 2.833 ≥ 1 on these prompts; on prompts like these ")
    (other,) = SPEED.judge(rule, run_of(run_plan := plan_of(scenario(prompt_sets=8)), blocks_of(run_plan)))
    assert LIKE_THESE not in other.message and "prompt_sets" not in other.evidence


def test_the_console_has_a_column_for_each_question_or_how_few_sets_there_are() -> None:
    text, few = (PLAIN.render(own(sets), POLICY) for sets in (8, 2))
    head, second = text.splitlines()[:2]
    assert head.split()[:4] == ["speed-up", "(95", "%)", "prompts"]
    assert second.split() == ["on", "these", "prompts", "like", "these"] and max(map(len, text.splitlines()[:5])) <= 80
    value = own(8).comparisons[0].beside[-1]
    assert f" {value.ci_low:.2f}–{value.ci_high:.2f} " in text and " 2 sets " in few
