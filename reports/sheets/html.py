"""Render a sheet as one HTML file that needs no network and no script, with light, dark and print styles. All text is
escaped.
"""

from __future__ import annotations

from specgate.reports.page.html import environment
from specgate.reports.sheets.sheet import Sheet


def page(sheet: Sheet) -> str:
    return environment().get_template("sheet.html").render(sheet=sheet) + "\n"
