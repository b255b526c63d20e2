"""The page of `specgate ab`: in words, and in a real browser on a phone, a laptop and paper, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate import plugins
from specgate.archive.verification import verify_builds
from specgate.contract.two_builds import Parting, TwoBuilds, Word
from specgate.errors import ExitCode
from tests.support.browser import A4, NEEDED, WIDTHS, chromium, opened, too_wide, violations
from tests.support.command import Cli

DRAWS = True


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> TwoBuilds:
    """A comparison that was measured, of two looks, which ended with SLOWER."""
    cli = Cli(tmp_path_factory.mktemp("ab"), *pair)
    fixed = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", "-o", "step_ns=2000000")
    done = cli.run("ab", *fixed, "--new", "prompt_jitter=0.002", "--new", "slowdown=1.02", "--processes", "3")
    assert done.returncode in (1, 3), done.stdout + done.stderr
    (made,) = (cli.folder / "runs").glob("*-ab-*")
    result = verify_builds(made).result
    assert result is not None
    first = replace(result.looks[0], word=Word.CANNOT_TELL, reason="prefill time tiny/c24/b2 +0.10% (-0.30% … +0.51%)")
    return replace(result, looks=(first, replace(result.looks[0], pairs=16, error=0.0008)))


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


def test_builds_that_do_not_speculate_have_no_section_of_speculative_texts(stored: TwoBuilds) -> None:
    assert "own side's baseline" in plain(stored)
    assert "own side's baseline" not in plain(replace(stored, tokens=()))


@pytest.fixture(scope="module")
def page_file(stored: TwoBuilds, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "ab.html"
    file.write_text(plugins.view("ab").render(unsteady(stored, one_build=False), "html"), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


class TestInABrowser:
    pytestmark = NEEDED

    def test_opening_the_page_logs_nothing_and_requests_nothing_else(self, browser: Any, page_file: Path) -> None:
        with opened(browser, page_file, 1280) as page:
            assert (page.said, page.asked) == ([], [page_file.as_uri()])

    @pytest.mark.parametrize("width", WIDTHS)
    def test_a_screen_scrolls_in_one_direction_only(self, width: int, browser: Any, page_file: Path) -> None:
        with opened(browser, page_file, width) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert too_wide(page) == []

    def test_paper_has_room_for_everything(self, browser: Any, page_file: Path) -> None:
        with opened(browser, page_file, A4[0], media="print") as page:
            assert too_wide(page) == []

    @pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 480)])
    def test_axe_finds_no_violation(self, scheme: str, width: int, browser: Any, page_file: Path) -> None:
        with opened(browser, page_file, width, scheme=scheme) as page:
            assert violations(page) is None

    def test_the_word_and_its_picture_are_on_the_first_screen(self, browser: Any, page_file: Path) -> None:
        with opened(browser, page_file, 1280) as page:
            for what in (".verdict h1", ".verdict .reason", "#section-0 ~ .pictures figure figcaption"):
                assert page.locator(what).first.bounding_box()["y"] < 800, what
