"""Draft tokens against K × steps: more is a contradiction, fewer is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.speculation.drafting import check_draft_counts, refuse_beyond_k, short_of, shortness_in_words
from specgate.contract import Served
from specgate.contract.acceptance import AcceptanceRecord, Totals
from specgate.errors import InvalidResult
from tests.analysis.speculation.evidence import served, stepped


def record(steps: int, drafted: int, accepted: int, k: int = 3) -> AcceptanceRecord:
    return AcceptanceRecord(k, (), (), steps + accepted, 0, Totals(steps, drafted, accepted))


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 7))
def test_more_than_k_times_the_steps_is_refused_and_nothing_else(steps: int, drafted: int, k: int) -> None:
    if drafted > k * steps:
        with pytest.raises(InvalidResult, match=rf"here: {drafted} draft tokens in {steps} steps .*= {k * steps}:"):
            refuse_beyond_k(record(steps, drafted, 0, k), "here")
    else:
        refuse_beyond_k(record(steps, drafted, 0, k), "here")


def test_a_block_that_counts_padding_is_named_by_its_place() -> None:
    block = served([1, 1, 2, 2])
    assert block.served is not None
    padded = replace(block, served=Served(block.served.requests, record(6, 19, 11)))
    with pytest.raises(InvalidResult, match=r"smoke/.*/spec-3 set 0 round 0: 19 draft tokens in 6 steps"):
        check_draft_counts([block, padded])
    check_draft_counts([block, stepped([3, 1, 2])])


@given(st.integers(1, 16), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.data())
def test_a_request_may_end_with_drafts_of_no_more_than_its_last_tokens(
    k: int, lengths: list[int], data: st.DataObject
) -> None:
    steps = drafted = 0
    for left in lengths:
        while left:
            steps, drafted = steps + 1, drafted + min(k, left)
            left -= 1 + data.draw(st.integers(0, min(k, left - 1)))
    assert short_of(record(steps, drafted, 0, k), len(lengths)) == 0


@given(st.integers(1, 100), st.integers(1, 7), st.integers(1, 9))
def test_a_request_may_end_with_a_step_without_a_draft(steps: int, k: int, requests: int) -> None:
    without = min(steps, requests)
    assert short_of(record(steps, k * (steps - without), 0, k), requests) == 0


@pytest.mark.parametrize(("k", "steps"), [(2, 3), (3, 4), (5, 7), (16, 18), (64, 18)])
def test_an_engine_that_drafts_one_token_in_each_step_is_short_in_short_requests_too(k: int, steps: int) -> None:
    assert short_of(record(8 * steps, 8 * steps, 0, k), 8) > 0


def test_what_is_known_to_shorten_drafts_is_named_for_the_engine() -> None:
    assert "--spec-draft-p-min above 0" in shortness_in_words(record(10, 20, 8), "llamacpp")
    assert "num_speculative_tokens_per_batch_size" in shortness_in_words(record(10, 20, 8), "vllm-offline")
    assert "known" not in shortness_in_words(record(10, 20, 8), "someone")
