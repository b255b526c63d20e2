"""Every page in a real browser: on a phone, on a laptop and on paper, light and dark.

Needs a Chromium on the search path and the extra `browser`; skipped with a reason where either is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specgate import plugins
from specgate.archive.comparing.acceptance import acceptance_of
from specgate.archive.comparing.engines import matrix_of
from specgate.archive.stored_runs import load_run
from specgate.contract.two_builds import TwoBuilds
from tests.reports.page.test_browser import everything
from tests.reports.views.test_two_builds import unsteady
from tests.reports.views.test_views import contrast, followed, looping, trends
from tests.support.browser import A4, NEEDED, WIDTHS, opened, too_wide, violations
from tests.support.factories import corrupt, scenario
from tests.support.stored_runs import store

DRAWS = True
pytestmark = NEEDED

PAGES = ("run", "builds", "engines", "history", "acceptance", "ab")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, stored: TwoBuilds) -> dict[str, Path]:
    """The page of a run, and one per view: with verdicts of every kind, and a slower column."""
    folder = tmp_path_factory.mktemp("pages")
    kinds = [scenario("a-scenario-with-a-long-name", spec=(2, 3), batch=(4,), context=(4096,)), scenario("b-64")]
    a = store(folder / "a", scenarios=kinds)
    b = store(folder / "b", scenarios=kinds, cycle_ns=40_000_000, base_ns=9_000_000)
    c = store(folder / "c", scenarios=kinds, change=lambda block: corrupt(block) if block.role.k == 2 else block)
    loaded = [load_run(run) for run in (a, b, c)]
    runs = [one.run for one in loaded]
    result = followed(store(folder / "first"), 24)
    subjects = {
        "builds": contrast(a, b),
        "engines": matrix_of(runs),
        "acceptance": acceptance_of([*loaded, load_run(looping(folder))]),
        "history": type(result)(
            (*result.runs, *runs), (*result.series, *trends(*loaded).series), result.groups, ("one: not readable",)
        ),
        "ab": unsteady(stored, one_build=False),
    }
    pages = {name: plugins.view(name).render(subject, "html") for name, subject in subjects.items()}
    for name, page in {"run": everything(), **pages}.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_opening_a_page_logs_nothing_and_requests_nothing_else(name: str, browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files[name], 1280) as page:
        page.wait_for_load_state("networkidle")
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


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [*((name, *seen) for name in PAGES for seen in (("light", 1280), ("dark", 480))), ("run", "dark", 400)],
)
def test_axe_finds_no_violation(name: str, scheme: str, width: int, browser: Any, files: dict[str, Path]) -> None:
    with opened(browser, files[name], width, scheme=scheme) as page:
        assert violations(page) is None


@pytest.mark.parametrize(("name", "also"), [("builds", ".verdict .facts"), ("ab", ".verdict .reason")])
def test_what_decides_a_comparison_is_on_the_first_screen(
    name: str, also: str, browser: Any, files: dict[str, Path]
) -> None:
    with opened(browser, files[name], 1280) as page:
        for what in (".verdict h1", ".verdict .reason", also, "#section-0 ~ .pictures figure figcaption"):
            assert page.locator(what).first.bounding_box()["y"] < 800, what
