"""Acceptance over all requests: both means, against sums by hand."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.speculation.summary import FromRun, grouped, summaries
from tests.analysis.speculation.evidence import served, stepped

LISTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=6)


@settings(max_examples=25)
@given(LISTS)
def test_both_means_are_those_of_the_requests(requests: list[list[int]]) -> None:
    blocks = [FromRun("a", f"prompt {i}", stepped(accepted)) for i, accepted in enumerate(requests)]
    (found,) = summaries(grouped([("demo", "real", blocks)]))
    every = [a for accepted in requests for a in accepted]
    assert (found.requests, found.num_drafts, found.total_accepted_tokens) == (len(requests), len(every), sum(every))
    assert found.total_draft_tokens == 3 * len(every)
    assert found.mean_acceptance_length == pytest.approx(1 + sum(every) / len(every))
    assert found.mean_acceptance_rate == pytest.approx(sum(every) / (3 * len(every)))
    lengths = [1 + sum(accepted) / len(accepted) for accepted in requests]
    assert found.request_mean_acceptance_length == pytest.approx(statistics.fmean(lengths))


@settings(max_examples=25)
@given(LISTS)
def test_a_server_that_answers_one_request_per_block_gives_the_same(requests: list[list[int]]) -> None:
    histograms = [[accepted.count(i) for i in range(4)] for accepted in requests]
    mine, theirs = (
        summaries(grouped([("demo", "real", [FromRun("a", str(i), block) for i, block in enumerate(blocks)])]))[0]
        for blocks in (map(stepped, requests), map(served, histograms))
    )
    assert theirs == mine


def test_requests_that_a_server_counts_together_have_no_mean_of_their_own() -> None:
    both = served([1, 1, 1, 1])
    both = replace(both, tokens=(*both.tokens, (1, 2)), finish=both.finish * 2, truncated=(0, 0))
    (found,) = summaries(grouped([("demo", "real", [FromRun("a", "x", both)])]))
    assert found.requests is None and found.request_mean_acceptance_length is None
    assert found.mean_acceptance_length == 2.5


def test_the_same_prompts_in_two_runs_are_the_same_evidence() -> None:
    blocks = [[FromRun(run, f"prompt {i}", stepped([i % 4, 1])) for i in range(8)] for run in "ab"]
    one = summaries(grouped([("demo", "real", blocks[0])]))[0]
    two = summaries(grouped([("demo", "real", b) for b in blocks]))[0]
    assert (two.prompts, two.requests, two.cells) == (8, 16, 2)
    assert (two.ci_low, two.ci_high) == pytest.approx((one.ci_low, one.ci_high))


def test_other_pairs_lengths_and_forced_acceptance_are_summed_up_apart() -> None:
    blocks = [FromRun("a", "x", stepped([1, 2])), FromRun("a", "x", stepped([1, 2], k=2))]
    groups = grouped([("demo", "real", blocks), ("demo", "forced", blocks), ("other", "real", blocks)])
    assert [(s.group.k, s.group.pair, s.group.acceptance) for s in summaries(groups)] == [
        (k, *rest) for k in (2, 3) for rest in (("demo", "forced"), ("demo", "real"), ("other", "real"))
    ]
