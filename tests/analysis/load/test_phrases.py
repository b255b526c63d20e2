"""Results of a sweep, in words."""

from __future__ import annotations

from dataclasses import replace

from specgate.analysis.load.figures import in_words
from specgate.contract.load import BreakEven, LevelRatio


def swept(*ratios: float | None) -> BreakEven:
    """A sweep that pays at every level whose ratio is known; levels double from 1 on."""
    levels = (
        LevelRatio(2.0**i, f"level {2**i}", 8 if ratio else 0, ratio, ratio and ratio - 0.1, ratio and ratio + 0.1)
        for i, ratio in enumerate(ratios)
    )
    return BreakEven("load", 1024, 3, False, tuple(levels), "everywhere", None, None, None, 0.95)


def test_a_sweep_that_pays_everywhere_says_from_where_to_where() -> None:
    assert in_words(swept(2.2, 2.1, 1.9)) == "speculation pays at every level from 1 to 4 clients"


def test_levels_that_were_not_measured_to_their_end_are_named_and_not_among_those_that_pay() -> None:
    text = in_words(swept(2.2, 2.1, None, None))
    assert text == "speculation pays at every known level from 1 to 2 clients; nothing is known of 4, 8 clients"
    assert in_words(swept(None, None)).endswith("at any level: nothing is known of 1, 2 clients")


def test_a_break_even_names_the_levels_that_it_follows_from_and_what_two_alone_lack() -> None:
    def stops(value: float, *ratios: float) -> str:
        return in_words(replace(swept(*ratios), outcome="crosses", value=value, low=value * 0.9, high=value * 1.1))

    assert stops(5.0, 2.2, 1.5, 1.1, 0.8, 0.7).endswith(
        "pays up to 5 clients, 95 % interval 4.5 to 5.5, by the levels 2, 4, 8 and 16"
    )
    assert stops(1.5, 1.5, 0.8, 0.7).endswith("by the levels 1, 2 and 4")
    line = "by a straight line between 1 and 2: levels of 0.5 and 4 would show whether it bends"
    assert stops(1.5, 1.5, 0.8).endswith(line)
