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


@given(st.integers(1, 100), st.integers(1, 5), st.integers(1, 9))
def test_a_request_may_end_with_a_step_without_a_draft_or_with_k_steps_of_fewer_and_fewer_tokens(
    steps: int, k: int, requests: int
) -> None:
    whole, at_ends = k * steps, max(k, sum(range(k))) * requests
    for drafted in {whole, max(steps, whole - at_ends)}:
        assert short_of(record(steps, drafted, 0, k), requests) == 0
    if whole - at_ends - 1 >= steps:
        assert short_of(record(steps, whole - at_ends - 1, 0, k), requests) == 1


def test_what_is_known_to_shorten_drafts_is_named_for_the_engine() -> None:
    assert "--spec-draft-p-min above 0" in shortness_in_words(record(10, 20, 8), "llamacpp")
    assert "num_speculative_tokens_per_batch_size" in shortness_in_words(record(10, 20, 8), "vllm-offline")
    assert "known" not in shortness_in_words(record(10, 20, 8), "someone")
