"""Number of threads for a row of a prompt."""

from __future__ import annotations

from math import ceil
from typing import Final

MOST: Final = 512
"""Most threads of a row: more would leave an SM with too few rows to read while others wait for their sums."""
GROUP: Final = 8
"""Elements of a thread that lie beside each other."""


def row_threads(width: int) -> int:
    """Threads for a row of `width` elements: whole warps, as few as give each thread equally many groups."""
    groups = ceil(width / GROUP)
    each = ceil(groups / MOST)
    return 32 * ceil(groups / each / 32)
