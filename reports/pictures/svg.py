"""Inline SVG for pages: matplotlib draws the picture, the style sheet of the page gives it its colours.

Colours are drawn as placeholders and then replaced by CSS variables, so that one picture suits a light and a dark page.
The same data give the same bytes: the settings start from matplotlib's defaults, ids are made with a fixed salt, and no
date is written. Every id in a picture begins with its `name`, which must be unique on the page.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from specgate.contract import Role

_STYLE: Final[Mapping[str, object]] = {
    "svg.hashsalt": "specgate",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.handlelength": 1.1,
    "legend.borderpad": 0.0,
    "path.simplify": False,
}
INK, MUTED, GRID, FLOOR, SURFACE, GAIN, BAND = (f"#0d000{i}" for i in range(1, 8))
_VARIABLES: Final = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    FLOOR: "--fail",
    SURFACE: "--surface",
    GAIN: "--pass",
    BAND: "--role-0",
}
_UNWANTED: Final = re.compile(
    r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*|font-family: [^;]*; ", re.DOTALL
)
_COORDINATES: Final = re.compile(r'\b(?:d|x|y|width|height)="[^"]*"')
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_ROLES: Final = 9
_WIDTH, HEIGHT = 5.6, 2.7
"""Inches. The page scales a picture to the width of its column."""
WIDE: Final = 2 * _WIDTH
"""Width in inches of a picture that is as wide as the page."""
LONGEST: Final = 61
"""Characters of a label beside a picture of full width: 5 inches."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.24, 0.28, 0.46
"""Margins in inches: room for tick labels of six characters on the left, half of one on the right, a legend above, and
the axis label below.
"""


def colour(role: Role) -> str:
    """The placeholder of a role's colour: `--role-0` for the baseline, `--role-k` for spec-k. There are nine."""
    return tint(role.k)


def tint(n: int) -> str:
    """The placeholder of colour `n` of the same palette, for things that are not roles."""
    return f"#0d01{n % _ROLES:02x}"


def drawn(name: str, description: str, draw: Callable[[Any], None], height: float = HEIGHT) -> str:
    """The `<svg>` element of what `draw` draws on matplotlib axes; `description` is its text alternative."""
    return stacked(name, description, lambda panels: draw(panels[0]), (1.0,), height)


def stacked(
    name: str, description: str, draw: Callable[[Sequence[Any]], None], shares: Sequence[float], height: float
) -> str:
    """As `drawn`, with panels above each other that share the horizontal axis. `shares`: their relative heights."""

    def paint(figure: Any) -> None:
        grid = {"height_ratios": shares, "hspace": 0.34}
        panels = figure.subplots(len(shares), 1, sharex=True, squeeze=False, gridspec_kw=grid)[:, 0]
        figure.subplots_adjust(
            left=_LEFT / _WIDTH, right=1 - _RIGHT / _WIDTH, top=1 - _TOP / height, bottom=_BOTTOM / height
        )
        draw(panels)

    return _svg(name, description, paint, _WIDTH, height, layout=None)


def fitted(name: str, description: str, draw: Callable[[Any], None], width: float, height: float) -> str:
    """As `drawn`, with margins that are fitted to the labels. It takes twice the time; use it for long labels."""

    def paint(figure: Any) -> None:
        draw(figure.add_subplot())
        for axes in figure.axes:  # a label as long as the picture would leave no room to draw in
            axes.set_yticks(axes.get_yticks(), [_without_middle(label.get_text()) for label in axes.get_yticklabels()])

    return _svg(name, description, paint, width, height, layout="constrained")


def _without_middle(label: str) -> str:
    """A label of at most `LONGEST` characters, with its beginning and its end."""
    half = (LONGEST - 1) // 2
    return label if len(label) <= LONGEST else f"{label[:half]}…{label[-half:]}"


def _svg(
    name: str,
    description: str,
    paint: Callable[[Any], None],
    width: float,
    height: float,
    layout: Literal["constrained"] | None,
) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width, height), layout=layout)
        paint(figure)
        for axes in figure.axes:
            _tint(axes)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(buffer.getvalue(), name, description)


def _tint(axes: Any) -> None:
    axes.tick_params(colors=MUTED, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_color(MUTED)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(MUTED)
    for text in axes.texts:
        text.set_color(INK)
    if legend := axes.get_legend():
        for text in legend.get_texts():
            text.set_color(INK)


def rows_of_grid(axes: Any) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.7)


def percents(axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def few_ticks(axis: Any, most: int = 4) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most))


def whole_ticks(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def ratio_axis(axes: Any, which: str = "x") -> None:
    """Make an axis logarithmic, since mean and interval are those of logarithms. Its labels are plain numbers."""
    from matplotlib.ticker import MaxNLocator

    getattr(axes, f"set_{which}scale")("log")
    low, high = getattr(axes, f"get_{which}lim")()
    values = MaxNLocator(8 if which == "x" else 4, steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = {float(t) for t in values if low < t < high}
    ticks |= {1.0} if low <= 1 <= high else set()
    getattr(axes, f"set_{which}ticks")(sorted(ticks), [f"{t:g}" for t in sorted(ticks)])
    getattr(axes, f"set_{which}ticks")([], minor=True)


def legend(axes: Any, entries: int) -> None:
    if entries > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(entries, 6), columnspacing=1.2)


def _for_page(svg: str, name: str, description: str) -> str:
    """The `<svg>` element for the page, with ids of its own, CSS colours, a text alternative, and no fixed size."""
    svg = slim(svg[svg.index("<svg") :])
    # Remove metadata, a style sheet that would apply to the whole page, and the font, which the page chooses.
    svg = _UNWANTED.sub("", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"#0d01(\w\w)", lambda m: f"var(--role-{int(m[1], 16)})", svg)
    svg = re.sub(r"#0d00\w\w", lambda m: f"var({_VARIABLES[m[0]]})", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    opening = f'<svg {view[0]} role="img" aria-label="{html.escape(description)}">'
    return opening + svg[svg.index(">") + 1 :].rstrip() + "\n"


def slim(svg: str) -> str:
    """The same picture in half the bytes: without names of groups and rotations by 0, coordinates to 0.01 point."""
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", svg)
    svg = re.sub(r"\n\s+", "\n", svg)
    return _COORDINATES.sub(lambda match: _LONG_NUMBER.sub(lambda n: f"{float(n[0]):.2f}", match[0]), svg)
