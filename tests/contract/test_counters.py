"""Counters beside acceptance, against a count of the raw rows and of the ends of slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import Finish
from specgate.contract.samples.counters import speculation_counters

RUNS = st.integers(1, 8).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.lists(st.integers(0, k), max_size=9), min_size=1, max_size=5))
)
"""(k, per slot the accepted drafts of the steps it took part in)."""


def rows_of(slots: list[list[int]]) -> list[tuple[int, ...]]:
    """accepted[step][slot], −1 from the step on at which a slot is finished."""
    steps = max(map(len, slots))
    return [tuple(taken[step] if step < len(taken) else -1 for taken in slots) for step in range(steps)]


@given(RUNS)
def test_what_is_rewound_is_what_was_drafted_and_not_accepted(run: tuple[int, list[list[int]]]) -> None:
    k, slots = run
    result = speculation_counters(rows_of(slots), [Finish.STEPS] * len(slots), k)
    steps, accepted = sum(map(len, slots)), sum(map(sum, slots))
    assert result["rewound_tokens"] + accepted == k * steps
    assert result["rewind_steps"] + sum(taken.count(k) for taken in slots) == steps
    assert result["rewind_steps"] <= result["rewound_tokens"] <= k * result["rewind_steps"]


@given(RUNS)
def test_chains_of_one_length_count_as_if_each_had_been_written_down(run: tuple[int, list[list[int]]]) -> None:
    k, slots = run
    rows = rows_of(slots)
    drafted = [tuple(k if a >= 0 else -1 for a in row) for row in rows]
    ends = [Finish.STEPS] * len(slots)
    assert speculation_counters(rows, ends, drafted) == speculation_counters(rows, ends, k)


def test_of_shorter_chains_less_is_rewound() -> None:
    result = speculation_counters([(1, 0), (2, -1)], ["steps", "eos"], [(1, 3), (4, -1)])
    assert (result["rewound_tokens"], result["rewind_steps"]) == (0 + 3 + 2, 2)


@given(RUNS, st.integers(1, 5))
def test_steps_of_finished_slots_count_for_nothing(run: tuple[int, list[list[int]]], idle: int) -> None:
    k, slots = run
    ends = [Finish.LENGTH] * len(slots)
    rows = rows_of(slots)
    assert speculation_counters([*rows, *[(-1,) * len(slots)] * idle], ends, k) == speculation_counters(rows, ends, k)


@given(st.lists(st.sampled_from(Finish), min_size=1, max_size=12), st.booleans())
def test_every_slot_that_ended_is_counted_once_under_its_reason(ends: list[Finish], plain: bool) -> None:
    """Reasons may come as the enumeration or as its values, which is what `protocols.Decoded` holds."""
    reasons = [end.value for end in ends] if plain else ends
    result = speculation_counters([(0,) * len(ends)], reasons, 3)
    disabled = {reason: n for reason, n in result.items() if reason.startswith("disabled_")}
    assert disabled == {
        "disabled_multitoken_eos": ends.count(Finish.EOS),
        "disabled_multitoken_stop": ends.count(Finish.STOP),
        "disabled_multitoken_length": ends.count(Finish.LENGTH),
    }
    assert sum(disabled.values()) + ends.count(Finish.STEPS) == len(ends)


def test_the_counters_of_a_hand_made_block() -> None:
    rows = [(3, 0), (1, 3), (-1, 2)]
    assert speculation_counters(rows, ["eos", "steps"], 3) == {
        "rewound_tokens": 0 + 3 + 2 + 0 + 1,
        "rewind_steps": 3,
        "disabled_multitoken_eos": 1,
        "disabled_multitoken_stop": 0,
        "disabled_multitoken_length": 0,
    }
