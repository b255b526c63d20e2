"""Empty pictures, in the place of those that take a tenth of a second each to draw."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specgate.reports.pictures import svg

if TYPE_CHECKING:  # `tests.support.undrawn` starts processes that need no pytest
    import pytest

DRAWN = svg._svg


def outline(
    name: str, description: str, paint: Callable[[Any], None], width: float, height: float, layout: str | None
) -> str:
    """Of the size and with the text alternative that `specgate.reports.pictures.svg` would give it."""
    view = f'viewBox="0 0 {72 * width:g} {72 * height:g}"'
    return f'<svg {view} role="img" aria-label="{html.escape(description)}"><g id="{name}-figure_1"/></svg>\n'


def drawn_again(patch: pytest.MonkeyPatch) -> None:
    """Real pictures, as a process of its own draws them."""
    patch.setattr(svg, "_svg", DRAWN)


def instead_of_drawing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("specgate.reports.pictures.svg._svg", outline)
