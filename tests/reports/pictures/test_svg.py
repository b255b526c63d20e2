"""Pictures stay the same when they are made smaller."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from specgate.reports.pictures import svg

DRAWS = True


def draw(axes: Any) -> None:
    axes.plot([0, 1, 2], [0.123456789, 1, 2], "o-", color=svg.INK, label='a <b> & "c"')
    axes.set(xlabel='x="1.23456"')
    svg.legend(axes, 2)


def test_a_picture_is_one_well_formed_element_with_its_text_alternative() -> None:
    drawn = svg.drawn("one", 'a "description" <of> it', draw)
    root = ET.fromstring(drawn)
    assert root.tag == "svg" and root.get("role") == "img"
    assert root.get("aria-label") == 'a "description" <of> it'
    assert root.get("width") is None and root.get("viewBox")


def test_every_reference_in_a_picture_has_its_target_and_begins_with_its_name() -> None:
    root = ET.fromstring(svg.drawn("one", "words", draw))
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    used = {element.get("href", "")[1:] for element in root.iter() if element.tag == "use"}
    clipped = {(element.get("clip-path") or "")[5:-1] for element in root.iter()} - {""}
    assert used and clipped
    assert used | clipped <= ids
    assert all(str(name).startswith("one-") for name in ids)


def test_texts_and_places_survive_the_shortening() -> None:
    path, words = '<path d="M 1.23456 -0.001234 \nL 10 20.5"/>', '<text x="3.14159">1.23456 left</text>'
    long = f'<svg><g id="axes_1">\n   {path}\n {words}</g></svg>'
    short = svg.slim(long)
    assert 'd="M 1.23 -0.00 \nL 10 20.5"' in short and 'x="3.14"' in short
    assert ">1.23456 left<" in short and "id=" not in short


@pytest.mark.parametrize("limits", [(0.5, 3.0), (1.2, 1.3), (0.9, 0.95)])
def test_a_ratio_axis_is_labelled_at_one_where_one_is_on_it(limits: tuple[float, float]) -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.set_xlim(limits)
    svg.ratio_axis(axes)
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert ("1" in labels) is (limits[0] <= 1 <= limits[1])
    assert axes.get_xscale() == "log"


def test_the_last_label_of_an_axis_that_ends_at_a_tick_lies_within_the_picture() -> None:
    root = ET.fromstring(svg.drawn("one", "words", lambda axes: axes.set(xlim=(0, 0.3018), xticks=[0, 0.3018])))
    width = float(root.get("viewBox", "").split()[2])
    (last,) = [text for text in root.iter("text") if text.text == "0.3018"]
    assert float(last.get("x", "")) + len("0.3018") * 0.64 * 8.5 / 2 <= width
