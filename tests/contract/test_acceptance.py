"""The acceptance record against brute force over its own definition."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.acceptance import AcceptanceRecord, DraftCounts, Totals
from specgate.errors import InvalidResult

steps_of = st.integers(1, 6).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(
            st.integers(0, k).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))),
            min_size=1,
            max_size=40,
        ),
    )
)


def record_of(k: int, steps: list[tuple[int, int]]) -> AcceptanceRecord:
    with_draft = [(d, a) for d, a in steps if d > 0]
    emitted = sum(a + 1 for _, a in with_draft)
    return AcceptanceRecord.from_steps(k, [[a] for _, a in steps], [[d] for d, _ in steps], emitted, 0)


@given(steps_of)
def test_every_figure_is_what_counting_gives(case: tuple[int, list[tuple[int, int]]]) -> None:
    k, steps = case
    record = record_of(k, steps)
    record.check()
    counted = [(d, a) for d, a in steps if d > 0]
    assert record.steps == len(counted)
    assert record.accepted == sum(a for _, a in counted)
    assert record.drafted == sum(d for d, _ in counted)
    for i in range(k):
        drafted = sum(d > i for d, _ in counted)
        accepted = sum(a > i for _, a in counted)
        assert record.acceptance_at_pos[i] == (accepted / drafted if drafted else None)
    if counted:
        assert record.acceptance_length == 1 + record.accepted / len(counted)
        assert 1 <= record.acceptance_length <= k + 1


@given(steps_of, steps_of)
def test_pooling_two_records_counts_all_their_steps(
    a: tuple[int, list[tuple[int, int]]], b: tuple[int, list[tuple[int, int]]]
) -> None:
    k = max(a[0], b[0])
    assert record_of(k, a[1]) + record_of(k, b[1]) == record_of(k, a[1] + b[1])


def test_records_of_different_draft_lengths_pool_to_the_longer_one() -> None:
    assert record_of(2, [(2, 1)]) + record_of(3, [(3, 1)]) == record_of(3, [(2, 1), (3, 1)])


@given(steps_of)
def test_a_requests_own_counts_become_its_record_and_steps_without_a_draft_are_counted_apart(
    case: tuple[int, list[tuple[int, int]]],
) -> None:
    k, steps = case
    emitted, drafted = sum(a + 1 for _, a in steps), [(d, a) for d, a in steps if d]
    hist = tuple(sorted(Counter(a for _, a in drafted).items()))
    totals = Totals(len(drafted), sum(d for d, _ in drafted), sum(a for _, a in drafted))
    kept, undrafted = DraftCounts(totals, hist).record(k, emitted)
    kept.check()
    assert (kept.hist, kept.accepted, undrafted) == (
        record_of(k, steps).hist, totals.accepted, len(steps) - len(drafted)
    )  # fmt: skip
    apart, left = DraftCounts(totals, hist).record(k, emitted, [[a + 1 for _, a in steps]])
    assert (apart.skipped, left) == (undrafted, 0) and replace(apart, skipped=None) == kept
    if drafted:
        assert apart.acceptance_length == pytest.approx(emitted / len(steps))


@given(steps_of, st.data())
def test_arrivals_tell_steps_without_a_draft_from_tokens_that_were_cut_off(
    case: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    k, steps = case
    cut = data.draw(st.integers(0, steps[-1][1]))
    sizes = [a + 1 for _, a in steps]
    sizes[-1] -= cut
    drafted = [(d, a) for d, a in steps if d]
    totals = Totals(len(drafted), sum(d for d, _ in drafted), sum(a for _, a in drafted))
    hist, lengths = (tuple(sorted(Counter(step[i] for step in drafted).items())) for i in (1, 0))
    record, _ = DraftCounts(totals, hist, lengths).record(k, sum(sizes), [sizes])
    assert (record.skipped, record.truncated) == (len(steps) - len(drafted), cut)
    assert replace(record, skipped=None) == AcceptanceRecord.from_steps(
        k, [[a] for _, a in steps], [[d] for d, _ in steps], sum(sizes) - len(steps) + len(drafted), cut
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hist": (1, 1)}, "3 histogram bins"),
        ({"hist": (1, -1, 2)}, "negative"),
        ({"emitted": 99}, "steps + accepted - truncated"),
        ({"drafted_at_pos": (2, 1)}, "drafted_at_pos"),
        ({"drafted_at_pos": (3, 4)}, "increases"),
    ],
)
def test_a_broken_identity_is_named(change: dict[str, object], message: str) -> None:
    good = AcceptanceRecord(2, (1, 0, 2), (3, 3), 7, 0)
    good.check()
    with pytest.raises(InvalidResult) as caught:
        replace(good, **change).check()  # type: ignore[arg-type]  # deliberately of any shape
    assert message in str(caught.value)


def test_a_record_without_steps_has_no_length() -> None:
    empty = AcceptanceRecord(2, (0, 0, 0), (0, 0), 0, 0)
    empty.check()
    assert empty.acceptance_length is None
    assert empty.draft_acceptance_rate is None
    assert empty.acceptance_at_pos == (None, None)


@given(steps_of, st.booleans(), st.booleans())
def test_totals_give_every_figure_that_follows_from_them(
    case: tuple[int, list[tuple[int, int]]], knows_hist: bool, knows_positions: bool
) -> None:
    full = record_of(*case)
    if not full.steps:
        return
    part = replace(
        full,
        hist=full.hist if knows_hist else (),
        drafted_at_pos=full.drafted_at_pos if knows_positions else (),
        totals=Totals(full.steps, full.drafted, full.accepted),
    )
    part.check()
    for name in ("steps", "drafted", "accepted", "acceptance_length", "draft_acceptance_rate"):
        assert getattr(part, name) == getattr(full, name)
    assert part.acceptance_at_pos == (full.acceptance_at_pos if knows_hist and knows_positions else ())
    assert part.multi_token_share == (full.multi_token_share if knows_hist else None)
    assert (part + full).acceptance_length == full.acceptance_length
    assert (part + full).hist == (tuple(2 * n for n in full.hist) if knows_hist else ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"totals": Totals(4, 12, 13)}, "accepted = 13 ≤ drafted = 12"),
        ({"totals": Totals(4, 13, 6)}, "k · steps = 12"),
        ({"totals": Totals(4, 3, 3)}, "steps = 4 ≤ drafted"),
        ({"totals": Totals(4, 12, 5)}, "does not add up to steps = 4 and accepted = 5"),
        ({"totals": Totals(4, 11, 6)}, "does not add up to drafted = 11"),
        ({"hist": (1, 1, 1)}, "needs 4 histogram bins"),
        ({"emitted": 9}, "emitted = 9"),
        ({"hist": (), "totals": None}, "needs 4 histogram bins"),
    ],
)
def test_totals_that_contradict_the_counts_are_refused(changes: dict[str, Any], message: str) -> None:
    record = AcceptanceRecord(3, (1, 1, 1, 1), (4, 4, 4), 10, 0, Totals(4, 12, 6))
    record.check()
    with pytest.raises(InvalidResult, match=re.escape(message)):
        replace(record, **changes).check()
