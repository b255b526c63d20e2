"""Static trees of draft tokens, as TensorRT-LLM, Medusa and vLLM write them: one path of ranks per node."""

from __future__ import annotations

from collections import Counter

from specgate.checkpoints.spec_config.formats.collect_terms import Terms
from specgate.checkpoints.spec_config.terms import Said
from specgate.errors import UsageError

Paths = list[tuple[int, ...]]


def tree_paths(value: object, where: str, key: str) -> Paths:
    """The paths of a static tree. Raises UsageError for anything else than lists of integers."""
    entries = value if isinstance(value, list | tuple) else []
    paths = [tuple(path) if isinstance(path, list | tuple) else () for path in entries]
    if not paths or not all(path and all(type(i) is int and i >= 0 for i in path) for path in paths):
        raise UsageError(f"{where}: {key}: lists of child indices are needed, such as [[0], [0, 0], [1]]")
    nodes = set(paths)
    if orphans := [list(path) for path in paths if len(path) > 1 and path[:-1] not in nodes]:
        raise UsageError(f"{where}: {key}: {orphans[0]} has no parent: {orphans[0][:-1]} is not among the paths")
    return paths


def static_tree(terms: Terms, paths: Paths, by: str) -> None:
    """Put the sizes that a tree of `paths` has into `terms`: its depth, its nodes, the widest node, and the nodes with
    children.
    """
    depth = max(map(len, paths))
    parents = {path[:-1] for path in paths}
    children = Counter(path[:-1] for path in set(paths))
    sizes = {
        "k": depth,
        "path_len": depth + 1,
        "verified": len(set(paths)) + 1,
        "topk": max(children.values()),
        "non_leaves": max(Counter(map(len, parents)).values()),
        "tree": "chain" if len(set(paths)) == depth else "static tree",
    }
    terms.update({term: Said(value, "stated", by) for term, value in sizes.items()})
