"""The picture of changes from A to B: the side of every row, in words and shape as well as colour."""

from __future__ import annotations

import re
import warnings

import pytest

from specgate.reports.pictures.effects import SHOWN, Effect, effects

DRAWS = True


def effect(low: float | None, high: float | None, margin: float | None = None, name: str = "cell: step time") -> Effect:
    ratio = 1.0 if low is None or high is None else (low * high) ** 0.5
    return Effect(name, ratio, low, high, margin, f"{100 * (ratio - 1):+.1f} %")


@pytest.mark.parametrize(
    ("low", "high", "margin", "side"),
    [
        (1.01, 1.02, None, "better"),
        (0.95, 0.99, None, "worse"),
        (0.99, 1.02, None, "open"),
        (0.99, 1.01, 0.02, "same"),
        (1.005, 1.015, 0.02, "same"),
        (1.01, 1.03, 0.02, "better"),
        (None, None, 0.02, "open"),
    ],
)
def test_the_side_follows_from_the_interval_and_the_margin(
    low: float | None, high: float | None, margin: float | None, side: str
) -> None:
    assert effect(low, high, margin).side == side


def test_every_row_is_described_in_words() -> None:
    picture = effects("key", "Changes", [effect(1.01, 1.02), effect(0.8, 0.9, name="other: tok/s")])
    assert picture.svg is not None
    label = re.search(r'aria-label="([^"]*)"', picture.svg)
    assert label is not None
    assert "cell: step time: +1.5 %, better" in label[1] and "other: tok/s: -15.1 %, worse" in label[1]
    assert "the margin" not in picture.caption.split("dashed")[1]


def test_the_axis_shows_no_change_and_at_least_a_percent_either_way() -> None:
    picture = effects("key", "Changes", [effect(1.0001, 1.0002)])
    ticks = re.findall(r">([+-][\d.]+) %<|>(0)<", picture.svg or "")
    shown = {float(percent or zero) for percent, zero in ticks if percent != "+0.0"}
    assert 0 in shown and min(shown) <= -0.5 and max(shown) >= 0.5


def test_beyond_the_limit_the_first_rows_are_drawn_and_the_caption_says_so() -> None:
    picture = effects("key", "Changes", [effect(1.0, 1.1, name=f"row {n}") for n in range(SHOWN + 3)])
    assert f"Drawn are the first {SHOWN} of {SHOWN + 3}" in picture.caption
    assert f"row {SHOWN - 1}" in (picture.svg or "") and f"row {SHOWN}:" not in (picture.svg or "")


def test_a_name_of_180_characters_leaves_room_to_draw_in() -> None:
    name = f"org/{'a-very-long-name-' * 10}8B"
    rows = [Effect(f"{name} · batch {batch} · spec-3", 1.1, 1.0, 1.2, None, f"{batch} %") for batch in (1, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = effects("effects", "change", rows).svg or ""
    labels = re.findall(r">(org/[^<]*)</text>", drawn)
    assert [(label[:20], label[-18:]) for label in labels] == [
        ("org/a-very-long-name", "· batch 1 · spec-3"),
        ("org/a-very-long-name", "· batch 4 · spec-3"),
    ]
    assert max(map(len, labels)) < 62


def test_without_rows_there_is_no_picture_but_a_reason() -> None:
    picture = effects("key", "Changes", [])
    assert picture.svg is None and picture.caption.startswith("Left out:")
