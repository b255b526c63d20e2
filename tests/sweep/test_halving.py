"""How many settings are measured in how many process pairs, and what is printed of them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from specgate.sweep.grid import baked
from specgate.sweep.halving import LAST_PAIRS, cost, halvings
from specgate.sweep.session import duration


@pytest.mark.parametrize("settings", [2, 3, 5, 24, 100, 3592])
def test_every_halving_keeps_the_better_half_until_one_is_left_and_the_last_has_an_interval(settings: int) -> None:
    steps = halvings(settings)
    assert steps[0].settings == settings and steps[-1].kept == 1 and steps[-1].pairs >= LAST_PAIRS
    for before, after in pairwise(steps):
        assert after.settings == before.kept and before.settings in (2 * after.settings, 2 * after.settings - 1)
        assert after.pairs == 2 * before.pairs


def test_a_single_setting_is_not_halved() -> None:
    assert halvings(1) == ()


@pytest.mark.parametrize("settings", [8, 24, 100, 3592])
def test_no_halving_costs_more_than_the_first_but_for_rounding(settings: int) -> None:
    steps = halvings(settings)
    first, *later = [cost(steps, number) for number in range(len(steps))]
    assert first == settings * steps[0].pairs
    assert all(pairs <= 1.5 * first for pairs in later) and sum(later) <= first * len(later)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.01, "0.01s"), (90, "90s"), (120, "2m"), (330, "5.5m"), (7200, "2h"), (9000, "2.5h")]
)
def test_times_are_written_as_a_command_line_takes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_bakes_a_setting_is_a_line_that_a_shell_reads() -> None:
    setting = {"env.TILE": "64", "fmha": "kv_tile:512,warps:4", "env.FLAGS": "a b"}
    assert baked(setting) == "export TILE=64 FLAGS='a b' -o fmha=kv_tile:512,warps:4"
