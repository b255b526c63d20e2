"""Forced acceptance is held to the distribution that was asked for, with the errors that are stated."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.speculation.forced import (
    CONSTANT_STEPS,
    TWO_COUNTS_STEPS,
    Forced,
    forced_by,
    looks_forced,
    two_sided,
    unlike_positions,
    wrong_shape,
)
from specgate.contract.acceptance import AcceptanceRecord, Totals

ERROR = 0.0035


def record(hist: list[int], drafted: int | None = None, truncated: int = 1) -> AcceptanceRecord:
    """A record of whole drafts, or of `drafted` draft tokens, of which `truncated` accepted ones were cut off."""
    k, steps, accepted = len(hist) - 1, sum(hist), sum(i * n for i, n in enumerate(hist))
    whole = drafted is None or drafted == k * steps
    totals = None if whole else Totals(steps, drafted or 0, accepted)
    emitted = steps + accepted - truncated
    return AcceptanceRecord(k, tuple(hist), (steps,) * k if whole else (), emitted, truncated, totals)


def totals_only(k: int, steps: int, accepted: int) -> AcceptanceRecord:
    """Counts as TensorRT-LLM gives them."""
    return AcceptanceRecord(k, (), (), steps + accepted, 0, Totals(steps, k * steps, accepted))


def told(acceptance_record: AcceptanceRecord, backend: str, length: float, batch: int = 1) -> str | None:
    forced = forced_by(backend, length)
    assert forced is not None
    return wrong_shape(acceptance_record, forced, error=ERROR, requests=4, batch=batch)


@pytest.mark.parametrize(
    ("hist", "length", "message"),
    [
        ([0, 50, 50, 0], 2.5, None),
        ([0, 0, 100, 0], 3.0, None),
        ([0, 0, 0, 100], 4.0, None),
        ([100, 0, 0, 0], 1.0, None),
        ([50, 0, 0, 50], 2.5, "100 of 100 steps accepted something else than 1 or 2: [50, 0, 0, 50]"),
        ([0, 51, 49, 0], 3.0, "51 of 100 steps accepted something else than 2"),
        ([0, 80, 20, 0], 2.5, "20 of 100 steps accepted 2, 50 % were asked for"),
        ([1, 49, 50, 0], 2.5, "1 of 100 steps"),
    ],
)
def test_a_length_allows_two_neighbouring_counts_in_their_shares(
    hist: list[int], length: float, message: str | None
) -> None:
    result = told(record(hist), "vllm", length)
    assert result is None if message is None else message in str(result)


def test_sums_alone_show_a_wrong_mean_but_no_spread() -> None:
    assert told(totals_only(3, 100, 150), "trtllm", 2.5) is None
    assert "20 of 100 steps accepted 2" in str(told(totals_only(3, 100, 120), "trtllm", 2.5))
    assert "250 draft tokens in 100 steps, each of which was to accept 1 or 2" in str(
        told(totals_only(3, 100, 250), "trtllm", 2.5)
    )


def test_one_draw_for_a_whole_batch_counts_once() -> None:
    """68 of 100 steps is too much for 100 draws, and nothing for 12."""
    assert told(record([0, 32, 68, 0]), "sglang", 2.5, batch=1)
    assert told(record([0, 32, 68, 0]), "sglang", 2.5, batch=8) is None
    assert told(record([0, 32, 68, 0]), "vllm", 2.5, batch=8)


def test_an_engine_that_documents_a_mean_is_held_to_it() -> None:
    assert told(record([250, 250, 250, 250]), "llamacpp", 2.5) is None
    assert "1.000 draft tokens per step, 1.5 were asked for" in str(told(record([500, 0, 500]), "llamacpp", 2.5))


def test_the_last_step_of_a_request_may_have_no_room_for_all_drafts() -> None:
    """llama.cpp drafts no more tokens than a request has left: of four requests four steps may be shorter."""
    assert told(record([4, 48, 48, 0], drafted=296), "vllm", 2.5) is None
    assert told(record([5, 48, 47, 0], drafted=296), "vllm", 2.5)


def test_an_engine_that_trims_the_last_step_and_drafts_all_the_same_is_not_refused() -> None:
    """Four requests of 64 tokens by steps of two: 63 follow prefill, so each ends with a step that emits but one."""
    trimmed = record([4, 124, 0, 0], truncated=0)
    trimmed.check()
    assert trimmed.emitted == 4 * 63 and trimmed.drafted == 3 * trimmed.steps
    assert told(trimmed, "sglang", 2.0, batch=4) is None
    assert told(record([5, 123, 0, 0], truncated=0), "sglang", 2.0, batch=4), "more steps than requests"
    counted = record([4, 124, 0, 0], truncated=4)
    assert "4 of 128 steps accepted something else than 1" in str(told(counted, "sglang", 2.0, batch=4))


def test_nothing_is_said_of_engines_whose_shape_nobody_knows() -> None:
    assert forced_by("lmdeploy", 2.5) is None and forced_by("vllm", None) is None
    assert forced_by("vllm-offline", 2.5) == forced_by("vllm", 2.5) == Forced(2.5, "two counts", shared=False)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.data())
def test_the_chance_is_that_of_the_exact_binomial(draws: int, share: float, data: st.DataObject) -> None:
    draw = data.draw(st.integers(0, draws))
    mass = [math.comb(draws, i) * share**i * (1 - share) ** (draws - i) for i in range(draws + 1)]
    oracle = min(1.0, 2 * min(sum(mass[: draw + 1]), sum(mass[draw:])))
    assert two_sided(draw, draws, draws, share, 0) == pytest.approx(oracle, abs=1e-9)


def test_a_right_distribution_is_seldom_refused() -> None:
    """Of 2,000 runs 7 are expected at most; more than 19 have a chance below 0.1 %."""
    noise, refused = random.Random(3), 0
    for _ in range(2000):
        more = sum(noise.random() < 0.3 for _ in range(60))
        refused += told(record([0, 60 - more, more, 0]), "vllm", 2.3) is not None
    assert refused <= 19


@pytest.mark.parametrize(
    ("hist", "forced"),
    [
        ([0, CONSTANT_STEPS, 0, 0], True),
        ([0, CONSTANT_STEPS - 1, 0, 0], False),
        ([0, TWO_COUNTS_STEPS // 2, TWO_COUNTS_STEPS // 2, 0], True),
        ([0, 100, 100, 0], False),
        ([1, 500, 500, 0], False),
        ([0, 500, 500, 1], False),
        ([0, 0, 0, 1000], False),  # a draft that is always right, as in a loop
        ([1000, 0, 0, 0], False),  # a draft that never is
        ([0, 500, 0, 500, 0], False),
    ],
)
def test_counts_that_text_does_not_have_look_forced(hist: list[int], forced: bool) -> None:
    assert (looks_forced(record(hist)) is not None) == forced


def test_rounds_that_repeat_the_same_text_are_no_new_evidence() -> None:
    repeated = record([0, 4 * CONSTANT_STEPS - 4, 0, 0])
    assert looks_forced(repeated) and not looks_forced(repeated, repeats=4)


def test_a_planted_pair_is_accepted_alike_at_every_position() -> None:
    """The first is a stored run of the 8B pair on an H200: 16 blocks of 8 prompt sets."""
    assert unlike_positions(record([1428, 1240, 990, 4534]), ERROR, repeats=2) is None
    broken = record([1428, 3400, 1400, 1964])  # the second draft step goes wrong
    assert "82.6 %, 49.7 %" in str(unlike_positions(broken, ERROR, repeats=2))
    assert unlike_positions(record([3, 2, 1, 1]), ERROR) is None, "too few to say"


def test_a_planted_law_is_seldom_called_unlike() -> None:
    noise, called = random.Random(4), 0
    for _ in range(600):
        hist = [0, 0, 0, 0]
        for _ in range(300):
            accepted = 0
            while accepted < 3 and noise.random() < 0.7:
                accepted += 1
            hist[accepted] += 1
        called += unlike_positions(record(hist), ERROR) is not None
    assert called <= 8, "of 600 two are expected; more than 8 have a chance below 0.1 %"
