"""A selection of combinations has every two choices together."""

from __future__ import annotations

from itertools import product

from tests.eagle3.cupy.kernels.crossed import pairwise


def test_every_two_choices_stand_together_in_few_rows() -> None:
    choices = ("abcd", (1, 2, 3), (None, True))
    rows = [*product(*choices)]
    selected = pairwise(rows)
    assert {(a, b) for a, b, _ in selected} == {*product(choices[0], choices[1])}
    assert {(a, c) for a, _, c in selected} == {*product(choices[0], choices[2])}
    assert {(b, c) for _, b, c in selected} == {*product(choices[1], choices[2])}
    assert 12 <= len(selected) <= 14 and pairwise([*product("ab", "cd")]) == [*product("ab", "cd")]
