"""Colours of the page can be told from their ground: contrast as WCAG 2.2 defines it, for what axe cannot see (SVG)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from specgate.reports.page.html import TEMPLATES

STYLE = (TEMPLATES / "style.html").read_text(encoding="utf-8")
TEXT = ("ink", "muted", "pass", "fail", "inconclusive", "invalid", "skipped")
GROUNDS = ("page", "surface", "shade")
DRAWN = tuple(f"role-{k}" for k in range(9))


def schemes() -> Iterator[tuple[str, dict[str, str]]]:
    light, dark = re.findall(r":root \{(.*?)\n\s*\}", STYLE, re.DOTALL)[:2]
    for name, block in (("light", light), ("dark", dark)):
        yield name, dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "colours"), list(schemes()))
def test_every_text_stands_out_from_every_ground_it_may_stand_on(scheme: str, colours: dict[str, str]) -> None:
    data = {(text, on): contrast(colours[text], colours[on]) for text in TEXT for on in GROUNDS}
    assert {pair: ratio for pair, ratio in data.items() if ratio < 4.5} == {}, scheme


@pytest.mark.parametrize(("scheme", "colours"), list(schemes()))
def test_every_line_of_a_picture_stands_out_from_its_panel(scheme: str, colours: dict[str, str]) -> None:
    data = {role: contrast(colours[role], colours["surface"]) for role in DRAWN}
    assert {role: ratio for role, ratio in data.items() if ratio < 3} == {}, scheme
