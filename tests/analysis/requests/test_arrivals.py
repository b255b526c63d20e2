"""A server's arrivals as steps, held to the steps that made the streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.prompt_acceptance import by_prompt, counted_by_request, length_counts, length_values, total_of
from specgate.analysis.requests.arrivals import request_records, step_ms, step_unit
from specgate.analysis.requests.joint_decoding import joint_decoding
from specgate.contract import BASELINE, Block, Finish, Role, ServedRequest
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.references import StepUnit
from specgate.contract.samples.counters import JOINED_OUTPUTS, NO_DRAFT_COUNTERS
from tests.support.factories import plan_of, scenario, served_block

K, STEP_MS = 3, 8
Steps = Sequence[Sequence[int]]
"""Request → the drafts that each of its steps accepted."""

steps = st.lists(st.lists(st.integers(0, K), min_size=10, max_size=30), min_size=2, max_size=6)


def served(requests: Sequence[ServedRequest], record: AcceptanceRecord | None) -> Block:
    round_ = next(r for r in plan_of(scenario(batch=(len(requests),))).rounds if not r.warmup)
    return served_block(round_, Role(K) if record else BASELINE, requests, record)


def request(sizes: Sequence[int], first_ms: int = 0, step_ms: float = STEP_MS) -> ServedRequest:
    """The prefill's token, then a chunk of each size every `step_ms`."""
    times = accumulate([first_ms * 1_000_000, *[round(step_ms * 1e6)] * len(sizes)])
    return ServedRequest(0, tuple(times), (1, *sizes))


def stream(accepted: Steps, cuts: Sequence[int] = (), hidden: Sequence[int] = ()) -> Block:
    """A batch with a chunk per step. `cuts`: tokens that the last step of a request loses, as far as it has them.
    `hidden`: requests with one more step, whose only token ended the text and was kept back.
    """
    sizes = [[a + 1 for a in of] for of in accepted]
    for of, cut in zip(sizes, cuts, strict=False):
        of[-1] -= min(cut, of[-1] - 1)
    every = [a for of in accepted for a in of] + [0 for _ in hidden]
    emitted = sum(map(sum, sizes))
    record = AcceptanceRecord(
        K, tuple(every.count(i) for i in range(K + 1)), (len(every),) * K, emitted, len(every) + sum(every) - emitted
    )
    made = served([request(of, 5 * slot) for slot, of in enumerate(sizes)], record)
    ends = tuple(Finish.EOS if slot in hidden else Finish.LENGTH for slot in range(len(sizes)))
    return replace(made, finish=ends)


@given(steps)
def test_whole_steps_give_each_request_the_drafts_that_it_accepted(accepted: list[list[int]]) -> None:
    records = request_records(stream(accepted))
    assert records is not None
    assert [(r.steps, r.accepted) for r in records] == [(len(of), sum(of)) for of in accepted]


@given(steps, st.lists(st.integers(0, K), min_size=6, max_size=6), st.sets(st.integers(0, 1)))
def test_requests_add_up_to_the_block_wherever_their_last_steps_were_cut(
    accepted: list[list[int]], cuts: list[int], hidden: set[int]
) -> None:
    block = stream(accepted, cuts, sorted(hidden))
    records = by_prompt([block])
    assert len(records) == len(accepted) and counted_by_request([block])
    assert total_of([block]) == sum_of(list(records.values()))
    for record, of in zip(records.values(), accepted, strict=True):
        record.check()
        assert abs(record.accepted - sum(of)) <= K, "only the last step may be another request's"


def sum_of(records: list[AcceptanceRecord]) -> AcceptanceRecord:
    total = records[0]
    for record in records[1:]:
        total += record
    return total


@given(steps)
def test_time_per_arrival_times_arrivals_is_time_per_token_times_tokens(accepted: list[list[int]]) -> None:
    block = stream(accepted)
    arrivals = sum(map(len, accepted))
    per_arrival, per_token = (step_ms(block, unit) for unit in (StepUnit.ARRIVAL, StepUnit.TOKEN))
    assert per_arrival * arrivals == pytest.approx(per_token * block.emitted)
    assert per_arrival == pytest.approx(STEP_MS)


@given(steps, st.integers(0, 40))
def test_the_step_time_of_a_batch_does_not_move_with_its_texts_or_the_prefill_of_others(
    accepted: list[list[int]], stagger: int
) -> None:
    sizes = [[a + 1 for a in of] + [1] * 40 for of in accepted]
    record = stream([[size - 1 for size in of] for of in sizes]).served
    assert record is not None
    block = served([request(of, stagger * slot) for slot, of in enumerate(sizes)], record.acceptance)
    if stagger * len(sizes) < STEP_MS * 40:
        assert step_unit([block]) is StepUnit.JOINT_ARRIVAL
        assert step_ms(block, StepUnit.JOINT_ARRIVAL) == pytest.approx(STEP_MS)
        unknown, joint = replace(block, counters={JOINED_OUTPUTS: 1}), joint_decoding(block)
        assert joint is not None and step_unit([block, unknown]) is StepUnit.JOINT_TOKEN
        per_token = STEP_MS * sum(joint.arrivals) / sum(joint.tokens)
        assert step_ms(block, StepUnit.JOINT_TOKEN) == pytest.approx(per_token), "no prefill of others is inside"


def joined(sizes: Sequence[int]) -> Block:
    """A stream whose chunks are not the steps [2, 0, 3, 1] of each of its requests."""
    steps_of_server = stream([[2, 0, 3, 1]] * 3).served
    assert steps_of_server is not None
    return served([request(sizes)] * 3, steps_of_server.acceptance)


@pytest.mark.parametrize(
    "block",
    [
        joined((3, 5, 2)),
        joined((3, 1, 6)),
        joined((3, 1, 4, 1, 1)),
        joined((1,) * 10),
        replace(stream([[2, 0, 3, 1]] * 3), counters={JOINED_OUTPUTS: 1}),
        replace(stream([[2, 0, 3, 1]] * 3), counters={NO_DRAFT_COUNTERS: 1}),
    ],
    ids=["two steps in a chunk", "more than K + 1", "a step in two", "a chunk per token", "joined", "no counters"],
)
def test_where_chunks_are_not_steps_time_is_per_token_and_requests_are_counted_together(block: Block) -> None:
    assert step_unit([stream([[2, 0, 3, 1]] * 3), block]) is StepUnit.TOKEN
    assert request_records(block) is None and list(by_prompt([block])) == [(0, 0)]
    assert step_ms(block, StepUnit.TOKEN) == pytest.approx(block.decoding_ns / block.emitted / 1e6)
    assert "since its arrivals are not its steps" in StepUnit.TOKEN.words


def test_requests_that_one_side_cannot_tell_apart_are_counted_together_on_both() -> None:
    apart, together = stream([[2, 0, 3, 1]] * 3), joined((3, 5, 2))
    assert length_counts([apart]) == [{(0, slot): (10, 4) for slot in range(3)}]
    assert length_counts([apart], [together]) == [{(0, 0): (30, 12)}] * 2


def test_a_step_without_a_draft_is_an_arrival_but_no_request_is_known_by_itself() -> None:
    made = stream([[2, 0, 3, 1]] * 3)
    assert made.served is not None and made.served.acceptance is not None
    record = replace(made.served.acceptance, hist=(2, 3, 3, 3), drafted_at_pos=(11,) * 3, emitted=29)
    block = replace(made, served=replace(made.served, acceptance=record), counters={"undrafted_steps": 1})
    assert step_unit([block]) is StepUnit.ARRIVAL and request_records(block) is None


@given(st.lists(st.integers(1, 3), min_size=12, max_size=20))
def test_a_baseline_token_is_a_step_whatever_its_chunks_hold(sizes: list[int]) -> None:
    gaps = [size * 6_000_000 for size in sizes]
    one = ServedRequest(0, tuple(accumulate([0, *gaps])), (1, *sizes))
    block = served([one, one], None)
    assert step_ms(block, step_unit([block])) == pytest.approx(6)


def test_sixteen_requests_in_two_sets_have_an_interval_over_sixteen() -> None:
    blocks = [
        replace(stream([[(n * 7 + slot + part) % 4 for n in range(20 + slot)] for slot in range(8)]), prompt_set=part)
        for part in range(2)
    ]
    length = next(length_values(by_prompt(blocks).values(), total_of(blocks)))
    assert length.n == 16 and length.ci_low is not None and length.ci_high is not None
    assert length.value is not None and length.ci_low < length.value < length.ci_high


def test_under_load_requests_are_known_by_the_prompts_that_they_answer() -> None:
    made = stream([[2, 0, 3, 1], [1, 1]])
    assert made.served is not None
    block = replace(made, served=replace(made.served, prompts=(0, 3)))
    assert list(by_prompt([block])) == [(0, 0), (0, 3)]
