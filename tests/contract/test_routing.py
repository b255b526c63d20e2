"""Counts of touched experts, by step and by layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract.routing import ExpertCounts, PassCounts, counts_of
from specgate.contract.routing.counts import histogram

STEPS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), min_size=3, max_size=3)), max_size=8)


@given(st.lists(st.integers(0, 12), max_size=20))
def test_a_histogram_counts_every_value_as_far_as_the_largest(values: list[int]) -> None:
    result = histogram(values)
    assert [n for n, times in enumerate(result) for _ in range(times)] == sorted(values)
    assert not result or result[-1] > 0


@given(STEPS)
def test_steps_and_layers_have_the_same_sums(steps: list[tuple[int, list[int]]]) -> None:
    rows, by_step = [n for n, _ in steps], [touched if n else [0, 0, 0] for n, touched in steps]
    counts = counts_of(by_step, rows)
    by_layers = {p.rows: [sum(n * t for n, t in enumerate(layer)) for layer in p.layers] for p in counts.passes}
    assert list(by_layers) == sorted({n for n in rows if n})
    for n, sums in by_layers.items():
        assert sums == [sum(s[layer] for s, r in zip(by_step, rows, strict=True) if r == n) for layer in range(3)]
    assert sum(counts.touched) == sum(map(sum, by_layers.values()))


def test_counts_are_short() -> None:
    assert counts_of([[4, 6], [5, 6]], [4, 4], [16, 5]) == ExpertCounts(
        (10, 11), (PassCounts(4, ((0, 0, 0, 0, 1, 1), (0, 0, 0, 0, 0, 0, 2))),), (16, 5)
    )
    with pytest.raises(ValueError, match="zip"):
        counts_of([[4, 6]], [4, 4])
