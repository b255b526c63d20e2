"""A draft tree as SVG: levels from top to bottom, leaves side by side, every node with its rank.

Written by hand, since it is circles and lines: it needs no drawing library, and stands by itself in a browser, light or
dark.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from specgate.checkpoints.trees.shape import TreeShape

LEVEL: Final = 56
"""Points between levels."""
MARGIN: Final = 28
LABEL: Final = 64
"""Points at the left for the names of the levels."""
LABELLED: Final = 130
"""Draft tokens up to which nodes are large enough to be labelled."""
STYLE: Final = """\
svg { background: #ffffff; font: 11px sans-serif }
line { stroke: #9aa3ad } circle { fill: #dbe9f6; stroke: #2f6fab } text { fill: #1f2328 }
.leaf { fill: #ffffff } .root { fill: #2f6fab } .level { fill: #6a737d }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 } line { stroke: #57606a } text { fill: #e6edf3 } .level { fill: #8b949e }
  circle { fill: #12304d; stroke: #6cb0f0 } .leaf { fill: #0d1117 } .root { fill: #6cb0f0 }
}"""


def picture(shape: TreeShape, name: str) -> str:
    """The picture as the text of an SVG file. `name`: of the tree, for readers that do not see it."""
    labelled = shape.nodes <= LABELLED
    gap, radius = (24, 10) if labelled else (9, 3)
    across = places(shape)
    depth = (0, *(len(path) for path in shape.paths))
    width = LABEL + 2 * MARGIN + gap * (len(shape.leaves) - 1)
    height = 2 * MARGIN + LEVEL * shape.depth

    def at(node: int) -> tuple[float, float]:
        return LABEL + MARGIN + gap * across[node], MARGIN + LEVEL * depth[node]

    said = html.escape(f"{name}: {shape.nodes} draft tokens on {shape.depth} levels, {len(shape.leaves)} leaves")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}">',
        f"<title>{said}</title>",
        f"<style>\n{STYLE}\n</style>",
    ]
    for level in range(shape.depth + 1):
        word = f"level {level}" if level else "root"
        parts.append(f'<text class="level" x="8" y="{MARGIN + LEVEL * level + 4}">{word}</text>')
    for node in range(1, shape.rows):
        (x, y), (above_x, above_y) = at(node), at(shape.parents[node])
        parts.append(f'<line x1="{above_x:.1f}" y1="{above_y:.1f}" x2="{x:.1f}" y2="{y:.1f}"/>')
    for node in range(shape.rows):
        x, y = at(node)
        look = "root" if not node else "leaf" if not shape.children[node] else "node"
        path = " → ".join(map(str, shape.paths[node - 1])) if node else "the newest committed token"
        parts.append(
            f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>node {node}: {path}</title></circle>'
        )
        if labelled and node:
            parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{shape.paths[node - 1][-1]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def places(shape: TreeShape) -> list[float]:
    """Where each node stands across, the root first: leaves at 0, 1, 2, … as ranks order them, others above the middle
    of their children.
    """
    order = sorted(range(shape.rows), key=lambda node: shape.paths[node - 1] if node else ())
    found = [0.0] * shape.rows
    leaves = 0
    for node in order:
        if not shape.children[node]:
            found[node] = leaves
            leaves += 1
    for node in reversed(range(shape.rows)):  # children have higher numbers than their parents
        below = [found[child] for child in range(node + 1, shape.rows) if shape.parents[child] == node]
        if below:
            found[node] = (min(below) + max(below)) / 2
    return found
