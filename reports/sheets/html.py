"""Render a sheet as one HTML file that needs no network and no script, with light, dark and print styles. All text is
escaped.
"""

from __future__ import annotations

from specgate.core import State
from specgate.reports.common.summary import MARKS
from specgate.reports.page.html import TEMPLATES, shown
from specgate.reports.sheets.sheet import Sheet


def page(sheet: Sheet) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    marks = {state.value: MARKS[state] for state in State}
    return environment.get_template("sheet.html").render(sheet=sheet, marks=marks) + "\n"
