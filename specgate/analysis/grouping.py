"""Things by what they have in common, in the order in which they come."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from specgate.contract import Block, Cell

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> defaultdict[K, list[T]]:
    """Return `key` of the items → the items that have it. Of a key that none has there are no items."""
    return collected((key(item), item) for item in items)


def collected(pairs: Iterable[tuple[K, T]]) -> defaultdict[K, list[T]]:
    """Return the first of `pairs` → all that come second beside it. Of a first that none has there are none."""
    of: defaultdict[K, list[T]] = defaultdict(list)
    for key, item in pairs:
        of[key].append(item)
    return of


def measured_by_cell(blocks: Iterable[Block]) -> defaultdict[Cell, list[Block]]:
    """Return cell → its blocks, but for those of warm-up."""
    return grouped((block for block in blocks if not block.warmup), lambda block: block.cell)
