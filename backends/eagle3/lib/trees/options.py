"""The option `tree` of an engine: a file or a dynamic tree, and how it is stated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.file import read_tree
from specgate.backends.eagle3.nouns.trees.shape import WIDEST, TreeShape
from specgate.errors import UsageError

TREE: Final = "tree"
DYNAMIC: Final = "dynamic"
"""What `tree=dynamic:NODES` begins with; every other value is a file."""
WIDTH: Final = "tree_width"
DEFAULT_WIDTH: Final = 10
"""Nodes that the draft runs on per level, and candidates behind each: the `top_k` of EAGLE-2 and EAGLE-3."""
HINT: Final = "tree=FILE, such as eagle_tree.yaml, or tree=dynamic:NODES, such as tree=dynamic:24"


def is_dynamic(text: str) -> bool:
    return text.partition(":")[0] == DYNAMIC


def check_width(options: Mapping[str, str]) -> None:
    """Raise UsageError for a width without a dynamic tree."""
    if WIDTH in options and TREE not in options:
        raise UsageError(f"option {WIDTH} without {TREE}", hint=HINT)
    if WIDTH in options and not is_dynamic(options[TREE]):
        raise UsageError(f"option {WIDTH} with the tree of a file", hint="a file says how wide each node is")


def dynamic_tree(text: str, width: str | None, max_k: int) -> DynamicGrowth:
    """Read the dynamic tree `text`, for roles of up to `max_k` draft tokens; 0: there is no such role.

    Raises UsageError for numbers that are none, and for more or fewer nodes than the roles' levels have.
    """
    _, colon, count = text.partition(":")
    nodes = whole(count if colon else "", f"option {TREE} = {text}: NODES", "draft tokens of the tree")
    wide = DEFAULT_WIDTH if width is None else whole(width, f"option {WIDTH} = {width}", "nodes per level")
    wide = min(wide, nodes)
    if wide > WIDEST:
        raise UsageError(f"option {WIDTH} = {width}: at most {WIDEST} children of a node are possible")
    if nodes < max_k:
        raise UsageError(
            f"option {TREE} = {text}: {nodes} draft tokens reach {nodes} levels at most, but spec-{max_k} is asked",
            hint=f"at least {DYNAMIC}:{max_k}",
        )
    growth = DynamicGrowth(max_k, wide, nodes)
    if max_k and nodes > growth.pool:
        raise UsageError(
            f"option {TREE} = {text}: spec-{max_k} has {growth.pool} candidates where {wide} nodes per level are "
            "expanded",
            hint=f"at most {DYNAMIC}:{growth.pool}, or a larger {WIDTH}",
        )
    return growth


def whole(text: str, where: str, what: str) -> int:
    """A number of at least 1. Raises UsageError for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise UsageError(f"{where}: a whole number of at least 1 is needed, the {what}", hint=HINT)
    return int(text)


def tree_of_roles(text: str, max_k: int) -> TreeShape:
    """Read the tree file `text`, for roles of up to `max_k` draft tokens; 0: there is no such role.

    Raises UsageError for a file that holds none, or one of other levels.
    """
    shape = read_tree(Path(text).expanduser())
    if max_k and shape.depth != max_k:
        raise UsageError(
            f"option {TREE} = {text}: a tree of {shape.depth} levels, but the longest draft asked for is spec-{max_k}",
            hint=f"ask for spec-{shape.depth}; a shorter role beside it drafts the tree's first levels",
        )
    return shape


def check_ranks(text: str, ranks: int, draft_vocab: int) -> None:
    """Raise UsageError where a tree takes more tokens behind a node than the draft knows."""
    if ranks > draft_vocab:
        raise UsageError(
            f"option {TREE} = {text}: {ranks} tokens behind a node, but the draft knows {draft_vocab} in all"
        )


def described(shape: TreeShape | DynamicGrowth) -> str:
    """For the facts that an engine states of itself."""
    if isinstance(shape, DynamicGrowth):
        return f"dynamic: the {shape.most} likeliest tokens, {shape.width} nodes wide"
    return f"{shape.nodes} tokens on {shape.depth} levels, sha256 {shape.sha256[:12]}"


def warning(words: str) -> str:
    """For readers of an engine's figures. `words`: what tree it is."""
    return (
        f"drafts are trees ({words}): acceptance is that of a tree, not of a chain, and spec-N counts a level "
        "of it as one draft token"
    )
