"""Acceptance over all requests: both means, positions, loops and intervals, against sums by hand."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from specgate.analysis.speculation.summary import Group, Request, counted, layouts_of, summary_of, undrafted_in
from specgate.contract.acceptance import Totals
from specgate.errors import InvalidResult
from tests.analysis.speculation.evidence import request, served, stepped

LISTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=6)
GROUP = Group("demo", "real", 3)


def asked(*accepted: list[int]) -> list[Request]:
    """One request of a prompt of its own per list of accepted drafts."""
    return [request(stepped(of), prompt=(f"prompt {i}", 0)) for i, of in enumerate(accepted)]


@settings(max_examples=25)
@given(LISTS)
def test_both_means_are_those_of_the_requests(requests: list[list[int]]) -> None:
    summary = summary_of(GROUP, asked(*requests))
    every = list(chain(*requests))
    assert (summary.requests, summary.num_drafts, summary.total_accepted_tokens) == (
        len(requests),
        len(every),
        sum(every),
    )
    assert summary.total_draft_tokens == 3 * len(every)
    assert summary.value("acceptance_length") == pytest.approx(1 + sum(every) / len(every))
    assert summary.value("draft_acceptance_rate") == pytest.approx(sum(every) / (3 * len(every)))
    lengths = [1 + sum(accepted) / len(accepted) for accepted in requests]
    assert summary.request_mean_acceptance_length == pytest.approx(statistics.fmean(lengths))


@settings(max_examples=25)
@given(LISTS)
def test_positions_are_counted_step_by_step(requests: list[list[int]]) -> None:
    summary, every = summary_of(GROUP, asked(*requests)), list(chain(*requests))
    for i in (1, 2, 3):
        reached = [a for a in every if a >= i - 1]
        share = sum(a >= i for a in every) / len(every)
        assert summary.value(f"acceptance_at_pos[{i}]") == pytest.approx(share)
        assert summary.accepted_at_pos[i - 1] == pytest.approx(share)
        given_before = summary.value(f"cond_acceptance_at_pos[{i}]")
        assert given_before == (pytest.approx(sum(a >= i for a in every) / len(reached)) if reached else None)
    assert summary.value("acceptance_length") == pytest.approx(1 + sum(summary.accepted_at_pos))


@settings(max_examples=25)
@given(LISTS)
def test_a_server_that_answers_one_request_per_block_gives_the_same(requests: list[list[int]]) -> None:
    histograms = [[accepted.count(i) for i in range(4)] for accepted in requests]
    mine, theirs = (
        summary_of(GROUP, [request(block, prompt=(str(i), 0)) for i, block in enumerate(blocks)])
        for blocks in (map(stepped, requests), map(served, histograms))
    )
    assert theirs == mine


SPEED_BENCH: Final[list[dict[str, Any]]] = [
    {"question_id": "a1", "category": "coding", "acceptance_lengths": [[4, 2, 4]]},
    {"question_id": "a2", "category": "coding", "acceptance_lengths": [[1, 3]]},
    {"question_id": "a3", "category": "roleplay", "acceptance_lengths": [[2, 2], [1, 4]]},
]
"""Lines of `specbench_responses.jsonl`, as SPEED-Bench's specdec_bench stores them, without texts."""
REPORT: Final[dict[str, Any]] = {
    "Request_AL": {"a1": 10 / 3, "a2": 2.0, "a3": 2.25},
    "Category_AL": {"coding": 8 / 3, "roleplay": 2.25},
    "Average_AL": 2.527777777777778,
    "Acceptance_Length_Histogram": {"1": 2, "2": 3, "3": 1, "4": 3},
    "Conditional_Acceptance_Rate": {"1": 1.0, "2": 7 / 9, "3": 4 / 7, "4": 0.75},
    "Joint_Acceptance_Rate": {"1": 1.0, "2": 7 / 9, "3": 4 / 9, "4": 1 / 3},
}
"""Its report on them (`specbench_results.json`), worked out by hand."""


def test_the_figures_of_speed_benchs_report_follow_from_its_own_stored_answers() -> None:
    requests = [
        replace(request(stepped(accepted), prompt=(line["question_id"], 0)), prompt_class=line["category"])
        for line in SPEED_BENCH
        for accepted in [[length - 1 for length in chain(*line["acceptance_lengths"])]]
    ]
    whole, by_class, _ = layouts_of(requests)
    (summary,) = whole.rows
    assert summary.request_mean_acceptance_length == pytest.approx(REPORT["Average_AL"])
    means = {str(row.group.value): row.request_mean_acceptance_length for row in by_class.rows}
    assert means == pytest.approx(REPORT["Category_AL"])
    for length, share in list(REPORT["Conditional_Acceptance_Rate"].items())[1:]:
        assert summary.value(f"cond_acceptance_at_pos[{int(length) - 1}]") == pytest.approx(share)
    assert summary.accepted_at_pos == pytest.approx(list(REPORT["Joint_Acceptance_Rate"].values())[1:])


def test_an_interval_is_over_prompts_and_not_over_steps() -> None:
    texts = [[3, 2, 1, 2], [1, 1, 1], [2, 2, 2, 1, 3], [2, 1, 1, 2]]
    value = summary_of(GROUP, asked(*texts)).values["acceptance_length"]
    emitted, steps = [sum(a) + len(a) for a in texts], [len(a) for a in texts]
    ratio = sum(emitted) / sum(steps)
    residuals = [n - ratio * d for n, d in zip(emitted, steps, strict=True)]
    half = t.ppf(0.975, 3) * math.sqrt(4 / 3 * sum(r * r for r in residuals)) / sum(steps)
    assert (value.ci_low, value.ci_high) == pytest.approx((ratio - half, ratio + half))


def test_an_interval_ends_where_lengths_do() -> None:
    value = summary_of(GROUP, asked([0], [3], [3])).values["acceptance_length"]
    assert (value.value, value.ci_low, value.ci_high) == (3.0, 1.0, 4.0)


def test_the_same_prompts_in_two_runs_are_the_same_evidence() -> None:
    once = [[i % 4, 1] for i in range(8)]
    one = summary_of(GROUP, asked(*once))
    two = summary_of(GROUP, asked(*once) + [replace(r, run="other") for r in asked(*once)])
    assert (two.prompts, two.requests, two.runs, two.cells) == (8, 16, 2, 2)
    mine, theirs = one.values["acceptance_length"], two.values["acceptance_length"]
    assert (theirs.ci_low, theirs.ci_high) == pytest.approx((mine.ci_low, mine.ci_high))


def test_requests_that_a_server_counts_together_have_no_mean_of_their_own() -> None:
    summary = summary_of(GROUP, [request(served([1, 1, 1, 1]), requests=2)])
    assert (summary.together, summary.requests, summary.prompts) == (True, 2, 1)
    assert summary.request_mean_acceptance_length is None and summary.request_stdev is None
    assert summary.value("acceptance_length") == 2.5


def test_requests_that_loop_are_said_and_left_out_of_a_second_length() -> None:
    loop, text = request(stepped([3, 3, 3, 3], tokens=[7] * 17)), asked([1, 0, 1, 0])
    summary = summary_of(GROUP, [replace(loop, prompt=("loop", 0)), *text])
    assert loop.repeated > 0.8 and text[0].repeated == 0
    assert summary.looping_prompts == 1 and summary.repeated_8gram_share == pytest.approx(loop.repeated / 2)
    assert summary.value("acceptance_length") == pytest.approx(1 + 14 / 8)
    assert summary.without_loops is not None and summary.without_loops.value == pytest.approx(1.5)
    assert summary.without_loops.n == 1


def test_where_every_text_loops_or_none_does_there_is_no_second_length() -> None:
    assert summary_of(GROUP, [request(stepped([3, 3, 3, 3], tokens=[7] * 17))]).without_loops is None
    assert summary_of(GROUP, asked([1, 2], [3, 0])).without_loops is None


def test_steps_without_a_draft_are_counted_apart() -> None:
    plain = replace(stepped([2, 0, 3]), drafted=((3,), (0,), (3,)))
    assert undrafted_in(plain, 0) == 1
    summary = summary_of(GROUP, [request(plain)])
    assert (summary.num_drafts, summary.undrafted) == (2, 1)
    assert summary.value("acceptance_length") == 1 + 5 / 2
    assert undrafted_in(served([1, 0, 0, 1], undrafted=4), 0) == 4


def test_counts_that_are_not_told_stay_unknown() -> None:
    silent = replace(served([1, 0, 0, 1]), counters={})
    summary = summary_of(GROUP, [request(silent), *asked([1, 2])])
    assert summary.undrafted is None


def test_an_engine_that_counts_sums_alone_has_a_length_and_no_positions() -> None:
    block = served([0, 2, 0, 2])
    assert block.served is not None and block.served.acceptance is not None
    sums = replace(block.served.acceptance, hist=(), drafted_at_pos=(), totals=Totals(steps=4, drafted=12, accepted=8))
    bare = replace(block, served=replace(block.served, acceptance=sums))
    summary = summary_of(GROUP, [request(bare)])
    assert summary.value("acceptance_length") == 3.0 and summary.positions == 0 and summary.accepted_at_pos == ()


def test_a_group_without_a_draft_has_no_figures() -> None:
    summary = summary_of(GROUP, [request(stepped([0, 0], drafted=0))])
    assert (summary.num_drafts, summary.undrafted, dict(summary.values)) == (0, 2, {})


def test_counts_that_contradict_each_other_are_refused() -> None:
    block = served([1, 1, 1, 1])
    assert block.served is not None and block.served.acceptance is not None
    wrong = replace(block.served.acceptance, emitted=3)
    broken = replace(block, served=replace(block.served, acceptance=wrong))
    with pytest.raises(InvalidResult, match="emitted = 3"):
        summary_of(GROUP, [request(broken)])


def test_every_slot_of_a_block_is_a_request() -> None:
    both = replace(
        stepped([1, 2]),
        tokens=((1, 2, 3, 4, 5, 6), (1, 2, 3, 4)),
        accepted=((1, 0), (2, 1)),
        drafted=((3, 3), (3, 3)),
        truncated=(0, 0),
    )
    assert [(slot, record.accepted) for slot, record in counted(both)] == [(0, 3), (1, 1)]
