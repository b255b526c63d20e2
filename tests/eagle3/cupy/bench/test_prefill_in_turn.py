"""Two ways of a part of a prefill, in turn."""

from __future__ import annotations

from bench.kernels.prefill_parts import Compared, in_turn


def test_each_way_comes_first_in_every_other_round() -> None:
    order = list[str]()

    def way(name: str) -> float:
        order.append(name)
        return float(len(order))

    mine, theirs = in_turn(lambda: way("a"), lambda: way("b"), 4)
    assert "".join(order) == "abbaabba"
    assert mine == (1.0, 4.0, 5.0, 8.0) and theirs == (2.0, 3.0, 6.0, 7.0)


def test_a_row_has_times_of_a_prefill_and_the_median_of_the_rounds_ratios() -> None:
    row = Compared(32000, "gate", 31, "fused", "torch", (100.0, 100.0, 200.0), (300.0, 200.0, 800.0))
    assert row.ratios() == [3.0, 2.0, 4.0]
    assert row.line() == "| 32000 | gate | fused | torch | 3.100 | 9.300 | 3.000 (2.000 … 4.000) |"


def test_a_way_that_was_not_timed_says_why() -> None:
    row = Compared(32000, "attention", 31, "cudnn", "flash", reason="RuntimeError: No available kernel")
    assert row.line().endswith("| | | RuntimeError: No available kernel |")
