"""A draft tree as SVG: levels from top to bottom, leaves side by side, every node with its rank."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from specgate.checkpoints.trees.shape import TreeShape

LABELLED: Final = 130
"""Draft tokens up to which nodes are large enough to be labelled."""
LEVEL: Final = 0.78
"""Inches between levels."""
SETTINGS: Final = {"svg.fonttype": "none", "svg.hashsalt": "specgate", "font.size": 8}


def picture(shape: TreeShape, name: str) -> str:
    """Return the picture as the text of an SVG file, the same bytes for the same tree. `name`: of the tree, for its
    title.
    """
    from matplotlib import rc_context, rcdefaults
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    labelled = shape.nodes <= LABELLED
    across, depth = places(shape), (0, *(len(path) for path in shape.paths))
    title = f"{name}: {shape.nodes} draft tokens on {shape.depth} levels, {len(shape.leaves)} leaves"
    width = 1.5 + (0.34 if labelled else 0.13) * (len(shape.leaves) - 1)
    text = io.StringIO()
    with rc_context():
        rcdefaults()
        with rc_context(SETTINGS):
            figure = Figure(figsize=(width, 0.8 + LEVEL * shape.depth), layout="constrained")
            axes = figure.add_subplot(frameon=False)
            at = list(zip(across, depth, strict=True))
            edges = [(at[node], at[shape.parents[node]]) for node in range(1, shape.rows)]
            axes.add_collection(LineCollection(edges, colors="#9aa3ad", linewidths=1))
            fills = ["#dbe9f6" if children else "#ffffff" for children in shape.children]
            size = 190 if labelled else 20
            axes.scatter(across, depth, s=size, c=["#2f6fab", *fills[1:]], edgecolors="#2f6fab", zorder=2)
            for node in range(1, shape.rows if labelled else 1):
                axes.annotate(str(shape.paths[node - 1][-1]), at[node], ha="center", va="center", zorder=3)
            levels = range(shape.depth + 1)
            axes.set_yticks(levels, ["root", *(f"level {level}" for level in levels[1:])])
            axes.set(xticks=(), xlim=(-0.8, len(shape.leaves) - 0.2), ylim=(shape.depth + 0.4, -0.4))
            axes.tick_params(length=0, labelcolor="#6a737d")
            figure.savefig(text, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return text.getvalue()


def places(shape: TreeShape) -> list[float]:
    """Return where each node stands across, the root first: leaves at 0, 1, 2, … as ranks order them, others above the
    middle of their children.
    """
    order = sorted(range(shape.rows), key=lambda node: shape.paths[node - 1] if node else ())
    across = [0.0] * shape.rows
    leaves = 0
    for node in order:
        if not shape.children[node]:
            across[node] = leaves
            leaves += 1
    for node in reversed(range(shape.rows)):  # children have higher numbers than their parents
        below = [across[child] for child in range(node + 1, shape.rows) if shape.parents[child] == node]
        if below:
            across[node] = (min(below) + max(below)) / 2
    return across
