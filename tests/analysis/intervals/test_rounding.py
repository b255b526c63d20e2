"""No figure is rounded to its bound."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.intervals.rounding import told_from


@given(st.floats(0, 4), st.sampled_from([0.0, 1.0, 1.8, 95.0]), st.floats(-1e-3, 1e-3), st.integers(1, 3))
def test_a_figure_is_never_rounded_to_the_bound_or_beyond_it(
    value: float, bound: float, off: float, digits: int
) -> None:
    for near in (value, bound + off, math.nextafter(bound, math.inf)):
        text = told_from(bound, near, digits)
        shown = float(text)
        if abs(near - bound) > 10.0 ** -(digits + 3):
            assert (shown > bound, shown < bound) == (near > bound, near < bound)
        assert len(text.partition(".")[2]) >= digits and abs(shown - near) <= 0.5 * 10.0**-digits
    assert told_from(bound, bound, digits) == f"{bound:.{digits}f}"
    assert told_from(1.0, 0.996, 2) == "0.996" and told_from(1.8, 1.79996, 3) == "1.79996"
    assert told_from(1.0, 1 - 1e-9, 2) == "1.00"
