"""The pages of several runs in a real browser: on a phone, on a laptop and on paper, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specgate import plugins
from specgate.archive.comparing.acceptance import acceptance_of
from specgate.archive.comparing.engines import matrix_of
from specgate.archive.stored_runs import load_run
from tests.reports.views.test_views import contrast, followed, looping, trends
from tests.support.browser import A4, NEEDED, WIDTHS, chromium, opened, too_wide, violations
from tests.support.factories import corrupt, scenario
from tests.support.stored_runs import store

DRAWS = True
pytestmark = NEEDED

PAGES = ("builds", "engines", "history", "acceptance")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page per view: with verdicts of every kind, and a slower column."""
    folder = tmp_path_factory.mktemp("pages")
    kinds = [scenario("a-scenario-with-a-long-name", spec=(2, 3), batch=(4,), context=(4096,)), scenario("b-64")]
    a = store(folder / "a", scenarios=kinds)
    b = store(folder / "b", scenarios=kinds, cycle_ns=40_000_000, base_ns=9_000_000)
    c = store(folder / "c", scenarios=kinds, change=lambda block: corrupt(block) if block.role.k == 2 else block)
    stored = [load_run(run) for run in (a, b, c)]
    runs = [one.run for one in stored]
    result = followed(store(folder / "first"), 24)
    subjects = {
        "builds": contrast(a, b),
        "engines": matrix_of(runs),
        "acceptance": acceptance_of([*stored, load_run(looping(folder))]),
        "history": type(result)(
            (*result.runs, *runs), (*result.series, *trends(*stored).series), result.groups, ("one: not readable",)
        ),
    }
    for name, subject in subjects.items():
        (folder / f"{name}.html").write_text(plugins.view(name).render(subject, "html"), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in subjects}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize("name", PAGES)
def test_opening_a_page_logs_nothing_and_requests_nothing_else(name: str, browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files[name], 1280) as page:
        assert (page.said, page.asked) == ([], [files[name].as_uri()])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_screen_scrolls_in_one_direction_only(name: str, width: int, browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files[name], width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert too_wide(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_paper_has_room_for_everything(name: str, browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files[name], A4[0], media="print") as page:
        assert too_wide(page) == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 480)])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(name: str, scheme: str, width: int, browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files[name], width, scheme=scheme) as page:
        assert violations(page) is None


def test_what_decides_a_comparison_is_on_the_first_screen(browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files["builds"], 1280) as page:
        for what in (".verdict h1", ".verdict .reason", ".verdict .facts", "#section-0 ~ .pictures figure figcaption"):
            assert page.locator(what).first.bounding_box()["y"] < 800, what
