"""Pairs of blocks: what of acceptance and of prefill is in them, and what of it counts as noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.analysis.intervals.autocorrelation import Fit, fit
from specgate.contract import Block, Comparison
from tests.support.factories import blocks_of, plan_of, run_of, scenario, text


def comparison(change: Callable[[Block], Block], **request: object) -> Comparison:
    """Four prompt sets in four rounds, every step of a role as long as the others of that role."""
    made = scenario(prompt_sets=4, rounds=4)
    plan = plan_of(replace(made, **request))  # type: ignore[arg-type]  # fields of Scenario
    (result,) = run_of(plan, blocks_of(plan, jitter=0.0, change=change)).comparisons
    return result


def fit_of(result: Comparison) -> Fit:
    fitted = fit(result.log_ratios, result.orders, result.prompt_sets, result.turns)
    assert fitted is not None
    return fitted


def by_text(block: Block, *, other_round: int | None = None) -> Block:
    """Prompt sets accept 0 to 3 drafts per step; in `other_round`, set 0 is another text that accepts 3."""
    accepted = 3 if block.prompt_set == 0 and block.round == other_round else block.prompt_set
    if not block.role.speculative:
        return block
    steps = len(block.step_ns)
    return replace(
        block,
        accepted=((accepted,),) * steps,
        tokens=(text(block.prompt_set, 0, 1 + steps * (1 + accepted)),),
        counters={"rewound_tokens": steps * (block.role.k - accepted)},
    )


def test_acceptance_of_texts_that_repeat_is_an_exact_offset() -> None:
    result = comparison(by_text)
    assert statistics.pstdev(result.log_ratios) > 0.4
    assert fit_of(result).error < 1e-6
    expected = statistics.fmean(math.log((1 + accepted) * 10 / 14) for accepted in range(4))
    assert fit_of(result).mean == pytest.approx(expected)


def test_acceptance_of_a_text_that_differs_between_rounds_is_noise_and_stays_in_the_mean() -> None:
    result = comparison(lambda block: by_text(block, other_round=2))
    assert fit_of(result).error > 0.05
    assert fit_of(result).mean - fit_of(comparison(by_text)).mean == pytest.approx(math.log(4) / 16)
