"""The page of a run in a real browser: its buttons, its links, and what stands on its first screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.analysis.machine.conditions import conditions_of
from specgate.contract import Gap, LastGreen, Promotion
from specgate.reports.page.html import REPORT
from tests.support.browser import NEEDED, WIDTHS, too_wide
from tests.support.browser import opened as unfolded
from tests.support.budgets import MEMORY, with_traffic
from tests.support.experts import ROUTED, with_counts
from tests.support.factories import POLICY, blocks_of, corrupt, judged, margins_of, plan_of, run_of, scenario
from tests.support.surroundings import timed, watched

DRAWS = True

pytestmark = NEEDED


def everything() -> str:
    """A page that has every section: near ties, failures, warnings, the machine, green runs, changes, files."""
    plan = plan_of(scenario("cpu-one", context=(64,), spec=(2, 3), batch=(1, 2)), scenario("cpu-two", prompt_sets=2))
    blocks = timed(blocks_of(plan, change=lambda b: corrupt(b) if b.point.scenario == "cpu-two" else with_counts(b)))
    run = run_of(plan, blocks, margins=margins_of(blocks, 1e-4)[:1])
    budgets = cycle_budgets(plan, run.cells, run.comparisons, blocks, with_traffic(run, ROUTED), MEMORY)
    return REPORT.render(
        replace(
            judged(replace(run, conditions=conditions_of(plan, blocks, watched(blocks))), POLICY),
            promotion=Promotion({"cpu-one": "a" * 64}, 3, 2, "specgate micro"),
            last_green=LastGreen("earlier", "2026-11-20T10:00:00+00:00", (("packages.torch", "2.12", "2.13"),)),
            files={"env.json": "e" * 64},
            budgets=budgets,
            bandwidth=MEMORY,
            warnings=("the draft's head is small",),
            mde={c.cell.key: 0.02 for c in run.comparisons},
            not_judged=(Gap("speed", (run.cells[1].cell.key,), "its clock is shared"),),
        ),
        POLICY,
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(everything(), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    opened = browser.new_page()
    opened.goto(file.as_uri())
    yield opened
    opened.close()


def test_a_click_on_a_heading_sorts_its_table_by_number(page: Any) -> None:
    def column() -> list[float]:
        return [float(text.split("\n")[0]) for text in rows.locator("td:nth-child(2)").all_inner_texts()]

    page.locator("#speed ~ .pictures details").first.evaluate("fold => fold.open = true")
    table = page.locator("#speed ~ .pictures table").first
    rows = table.locator("tbody tr:not(:has-text('mismatch'))")
    before = column()
    heading = table.locator("th:nth-child(2)")
    heading.locator("button").click()
    assert column() == sorted(before) and heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").click()
    assert column() == sorted(before, reverse=True)


def test_one_button_opens_and_closes_what_is_folded(page: Any) -> None:
    folds = page.locator("details")
    page.click("#open-all")
    assert page.locator("details[open]").count() == folds.count() > 0
    page.click("#open-all")
    assert page.locator("details[open]").count() == 0


def test_a_mark_of_the_gate_matrix_leads_to_its_verdict(page: Any) -> None:
    page.locator(".matrix a").first.click()
    target = page.url.partition("#")[2]
    assert page.locator(f"#{target}").is_visible()


def test_a_script_that_is_not_the_pages_own_is_refused(browser: Any, file: Path, tmp_path: Path) -> None:
    planted = file.read_text(encoding="utf-8").replace("<h2", "<script>document.title = 'planted'</script><h2", 1)
    (tmp_path / "planted.html").write_text(planted, encoding="utf-8")
    opened = browser.new_page()
    opened.goto((tmp_path / "planted.html").as_uri())
    assert "specgate" in opened.title()
    opened.close()


def test_without_script_the_page_says_the_same(browser: Any, page: Any, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(file.as_uri())
    for part in ("header", "#gates ~ .panel", "#cells ~ .panel", "#speed ~ .pictures"):
        assert plain.locator(part).first.inner_text() == page.locator(part).first.inner_text()
    assert not plain.locator("#open-all").is_visible()
    context.close()


def test_a_narrow_screen_scrolls_in_one_direction_only(browser: Any, file: Path) -> None:
    opened = browser.new_page(viewport={"width": 400, "height": 800})
    opened.goto(file.as_uri())
    opened.click("#open-all")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    opened.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_without_a_space_does_not_widen_the_page(
    browser: Any, file: Path, tmp_path: Path, width: int
) -> None:
    """Files of prompts have such names."""
    named = file.read_text(encoding="utf-8").replace("cpu-one", "prompts_of_users_of_one_week_" * 4)
    (tmp_path / "named.html").write_text(named, encoding="utf-8")
    with unfolded(browser, tmp_path / "named.html", width) as opened:
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        assert too_wide(opened) == []


def test_what_a_reviewer_decides_from_is_on_the_first_screen(browser: Any, file: Path) -> None:
    """State, reason, figures with what is asked, what was not judged, policy, commit, machine: 1280 by 800 pixels."""
    with unfolded(browser, file, 1280) as opened:
        head = opened.locator("header.verdict").bounding_box()
        assert head["y"] + head["height"] <= 800
        text = opened.locator("header.verdict").inner_text()
        for part in (
            "speed-up",
            "asked",
            "acceptance length",
            "Not judged",
            "policy",
            "commit",
            "machine",
            "Run it again",
        ):
            assert part in text
