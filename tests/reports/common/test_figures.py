"""Figures as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import Value
from specgate.reports.common.figures import NONE, figure, number, reason, span


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (0.01234, "0.0123"), (1.0, "1.00"), (12.345, "12.3"), (123.4, "123"), (1234.5, "1,234")],
)
def test_numbers_keep_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-6, 1e9))
def test_a_number_reads_back_within_its_last_digit(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_a_dash(value: float) -> None:
    assert number(value) == NONE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value("acceptance_length", 2.7345), "2.73"),
        (Value("draft_acceptance_rate", 0.5781), "57.8 %"),
        (Value("speedup_vs_ar_ratio", 1.634), "1.63×"),
        (Value("speedup_vs_ar_ratio", 0.996), "0.996×"),
        (Value("accept_hist[2]", 1200.0), "1,200"),
        (Value("active_count_max", 8.0), "8"),
        (Value("active_count_avg", 3.456), "3.46"),
        (Value("mean_tpot_ms", 12.345), "12.3"),
        (Value("mean_tpot_ms", None, reason_code="token_mismatch"), NONE),
        (None, NONE),
    ],
)
def test_a_figure_is_written_by_its_unit(value: Value | None, text: str) -> None:
    assert figure(value) == text


def test_an_interval_and_a_reason_are_shown_only_where_there_is_one() -> None:
    assert span(Value("acceptance_length", 2.7, ci_low=2.5, ci_high=2.9)) == "2.50 … 2.90"
    assert span(Value("speedup_vs_ar_ratio", 1.004, ci_low=0.998, ci_high=1.0)) == "0.998 … 1.00"
    assert span(Value("acceptance_length", 2.7)) is None
    assert reason(Value("mean_tpot_ms", None, reason_code="token_mismatch")) == "token mismatch"
    assert reason(Value("mean_tpot_ms", 1.0)) is None
