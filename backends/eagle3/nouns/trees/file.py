"""`eagle_tree.yaml`: the choices of a tree, in the form that Medusa, EAGLE and TensorRT-LLM use, read strictly.

    choices: [[0], [1], [0, 0], [0, 1]]     a path of ranks per node
    parents: [0, 0, 1, 1]                   or: the parent of node 1, of node 2, …; 0 is the root

`eagle_choices` and `medusa_choices` are other names of `choices`. With `parents`, the children of a node have the ranks
0, 1, … in the order of their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.nouns.trees.shape import DEEPEST, MOST_NODES, WIDEST, TreeShape
from specgate.contract.reading import Problem
from specgate.errors import UsageError
from specgate.files import yamlfile
from specgate.files.yaml_schema import parse, refusal
from specgate.files.yamlfile import Document, Mark

LISTS: Final = ("choices", "eagle_choices", "medusa_choices")
HINT: Final = "choices: [[0], [1], [0, 0]], a path of ranks per node; or parents: [0, 0, 1], a parent per node"


Paths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TreeFile:
    """The keys of a tree file; exactly one is there."""

    choices: Paths | None = None
    eagle_choices: Paths | None = None
    medusa_choices: Paths | None = None
    parents: tuple[int, ...] | None = None


def read_tree(path: Path) -> TreeShape:
    """The tree of a file. Raises UsageError that names file, line, key, value and what is wrong with it."""
    try:
        document = yamlfile.load(path)
    except UsageError as error:
        if "where a mapping was expected" not in error.message:
            raise
        raise UsageError(error.message, hint=f"write `choices:` before the list: {HINT}") from None
    return tree_of(document)


def tree_of(document: Document) -> TreeShape:
    """As `read_tree`, of a document that was read."""
    file = parse(TreeFile, document)
    keys = [key for key in (*LISTS, "parents") if getattr(file, key) is not None]
    if len(keys) != 1:
        what = f"{' and '.join(keys)} are both given" if keys else "no tree in this file"
        raise UsageError(f"{document.path}: {what}", hint=HINT)
    key: str = keys[0]
    nodes: Sequence[object] = getattr(file, key)
    if not nodes:
        raise refusal(document, [Problem((key,), "empty: a tree has at least one node")])
    if len(nodes) > MOST_NODES:
        raise UsageError(f"{mark_of(document, key)}: too many nodes: {len(nodes)}; at most {MOST_NODES} are possible")
    if file.parents is not None:
        return from_parents(file.parents, document)
    return from_choices(getattr(file, key), key, document)


def mark_of(document: Document, key: str) -> str:
    mark: Mark = document.where((key,))
    return f"{mark.file}:{mark.line}: {key}"


def from_choices(paths: Paths, key: str, document: Document) -> TreeShape:
    """The tree of `paths`. Raises UsageError with every path that cannot be in it."""
    if problems := [Problem((key, i), why) for i, why in wrong_choices(paths, key, document)]:
        raise refusal(document, problems)
    return TreeShape.of(paths)


def wrong_choices(paths: Paths, key: str, document: Document) -> Iterator[tuple[int, str]]:
    """(index, what is wrong with it) of every path that cannot be in a tree."""
    first: dict[tuple[int, ...], int] = {}
    for i, path in enumerate(paths):
        first.setdefault(path, i)
    for i, path in enumerate(paths):
        if not path:
            yield i, "an empty path is the root, which is in every tree: leave it out"
        elif len(path) > DEEPEST:
            yield i, f"too deep: level {len(path)}; a tree has at most {DEEPEST}"
        elif min(path) < 0:
            yield i, f"rank {min(path)}: the likeliest child has rank 0, the next one 1"
        elif max(path) >= WIDEST:
            yield i, f"too wide: rank {max(path)}; a node has at most {WIDEST} children, of the ranks 0 to {WIDEST - 1}"
        elif first[path] != i:
            yield i, f"a duplicate of {key}[{first[path]}] on line {document.where((key, first[path])).line}"
        elif len(path) > 1 and path[:-1] not in first:
            yield i, f"a gap: its parent {list(path[:-1])} is not among the {key}"


def from_parents(parents: Sequence[int], document: Document) -> TreeShape:
    """The tree in which node i + 1 has the parent `parents[i]`. Raises UsageError with every node that is in none."""
    count = len(parents)
    problems = [
        Problem(("parents", i), f"a gap: there is no node {parent}; nodes are 0 (the root) to {count}")
        for i, parent in enumerate(parents)
        if not 0 <= parent <= count
    ]
    problems += [
        Problem(("parents",), f"too wide: node {node} has {n} children; at most {WIDEST} are possible")
        for node, n in Counter(parents).items()
        if n > WIDEST
    ]
    if problems:
        raise refusal(document, problems)
    above = (0, *parents)
    if problems := [Problem(("parents", circle[0] - 1), in_a_circle(circle)) for circle in circles(above)]:
        raise refusal(document, problems)
    ranks = ranks_of(above)
    paths = [path_to(node, above, ranks) for node in range(1, count + 1)]
    if deep := [i for i, path in enumerate(paths) if len(path) > DEEPEST]:
        why = f"too deep: node {deep[0] + 1} is at level {len(paths[deep[0]])}; a tree has at most {DEEPEST}"
        raise refusal(document, [Problem(("parents", deep[0]), why)])
    return TreeShape.of(paths)


def circles(above: Sequence[int]) -> Iterator[list[int]]:
    """Every circle of nodes that are each other's ancestors, from its lowest node on upward."""
    done = {0}
    for start in range(1, len(above)):
        way: dict[int, None] = {}
        node = start
        while node not in done and node not in way:
            way[node] = None
            node = above[node]
        if node not in done:
            circle = list(islice(way, list(way).index(node), None))
            lowest = circle.index(min(circle))
            yield circle[lowest:] + circle[:lowest]
        done |= way.keys()


def in_a_circle(circle: list[int]) -> str:
    if len(circle) == 1:
        return f"a cycle: node {circle[0]} is its own parent; a child of the root has the parent 0"
    return "a cycle: the parents of node " + " → ".join(map(str, [*circle, circle[0]]))


def ranks_of(above: Sequence[int]) -> list[int]:
    """The rank of every node among its siblings, in the order of their numbers; the root's is 0."""
    siblings: Counter[int] = Counter()
    ranks = [0]
    for parent in above[1:]:
        ranks.append(siblings[parent])
        siblings[parent] += 1
    return ranks


def path_to(node: int, above: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    path = list[int]()
    while node:
        path.append(ranks[node])
        node = above[node]
    return tuple(reversed(path))
