"""The page of `specgate ab` in words."""

from __future__ import annotations

import re
from dataclasses import replace

from specgate import plugins
from specgate.contract.two_builds import Parting, TwoBuilds
from specgate.errors import ExitCode


def unsteady(two_builds: TwoBuilds, *, one_build: bool) -> TwoBuilds:
    """`two_builds` with another text of the old side's second process, as an A/A comparison or not."""
    cell = replace(two_builds.texts[0], changed=(Parting(1, 0, 7, 11, 12),), unsteady=(("old", 3, 1, 98),))
    sides = {**two_builds.sides, "new": replace(two_builds.sides["old"], name="new")} if one_build else two_builds.sides
    return replace(two_builds, sides=sides, texts=(cell, *two_builds.texts[1:]))


def plain(two_builds: TwoBuilds) -> str:
    return plugins.view("ab").render(two_builds, "all")


def test_the_console_has_a_row_per_quantity_the_word_last_and_no_processes(stored: TwoBuilds) -> None:
    *lines, last = plugins.view("ab").render(stored, "plain").splitlines()
    assert last.startswith("SLOWER: step time") and len(lines) <= 12
    assert any(re.search(r"^step time spec-2 .*SLOWER$", line) for line in lines)
    invalid = replace(stored, trouble=("new: x: 3 texts",), reason="new: x: 3 texts", word=None, code=ExitCode.INVALID)
    assert plugins.view("ab").render(invalid, "plain").splitlines()[-1] == "INVALID: new: x: 3 texts"
    assert "SLOWER" not in plugins.view("ab").render(invalid, "plain")


def test_texts_that_differ_in_one_build_are_not_put_down_to_a_change(stored: TwoBuilds) -> None:
    text = plain(unsteady(stored, one_build=True))
    assert "texts of one build differ between its processes: for 2 of" in text and "process against process" in text
    assert "set 1 slot 0 from token 7 on (11 → 12)" in text and "no change of a build" in text


def test_texts_that_differ_within_a_side_are_told_apart_from_those_of_the_change(stored: TwoBuilds) -> None:
    text = plain(unsteady(stored, one_build=False))
    assert "texts of one build differ between its processes: for 1 of" in text and "new against old" in text
    assert "old: set 3 slot 1 from token 98" in text


def test_an_interval_that_tells_nothing_is_left_out_and_the_line_says_so(stored: TwoBuilds) -> None:
    wide = tuple(replace(q, within_pct=400.0) for q in stored.quantities)
    text = plain(replace(stored, quantities=wide, within_pct=400.0))
    assert "> 100 %" in text and "Nothing is proven the same yet" in text and " … " not in text.partition("Tokens")[0]
    assert "The same within 2." in plain(stored)


def test_texts_that_repeat_have_no_note(stored: TwoBuilds) -> None:
    assert "texts of one build" not in plain(stored)


def test_every_look_is_shown_with_its_interval_and_its_word(stored: TwoBuilds) -> None:
    text = plain(stored)
    assert "99.68%\tCANNOT TELL" in text and "99.84% interval" in text
    assert "Interim looks" not in plain(replace(stored, looks=stored.looks[:1]))


def test_the_picture_says_that_a_longer_time_lies_to_the_left(stored: TwoBuilds) -> None:
    assert "of times of old / new, so that right is better" in plugins.view("ab").render(stored, "html")


def test_builds_that_do_not_speculate_have_no_section_of_speculative_texts(stored: TwoBuilds) -> None:
    assert "own side's baseline" in plain(stored)
    assert "own side's baseline" not in plain(replace(stored, tokens=()))
