"""A real browser for tests of pages: Chromium on the search path, driven by the extra `browser`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
NEEDED = [
    pytest.mark.slow("opens pages in a browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the search path"),
]
"""Marks of a test module that opens pages."""
WIDTHS = (480, 1280)
"""Pixels of the screens that pages are made for: a phone and a laptop."""
A4 = (700, 1000)
"""Pixels of a sheet of A4 within its margins."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window. Skips where the extra is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, width: int, *, scheme: str = "light", media: str = "screen") -> Iterator[Any]:
    """The page `file`, everything on it unfolded. `said`: what it wrote to the console; `asked`: what it requested."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.emulate_media(media=media, color_scheme=scheme)
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    yield page
    page.close()


def violations(page: Any) -> str | None:
    """Return axe-core's objections to a page; None if there are none."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the extra `browser` is not installed")
    results = axe.Axe().run(page)
    report: str = results.generate_report()
    return report if results.violations_count else None


def too_wide(page: Any) -> list[str]:
    """Return elements that reach beyond the page: paper does not scroll, and a screen only within a table that may."""
    texts: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
            .filter(one => matchMedia('print').matches || !one.closest('.scroll'))
            .map(one => one.tagName + '.' + one.className + ': ' + one.textContent.trim().slice(0, 40))"""
    )
    return texts
