"""The option `tree` of an engine: the tree of a file, what it does not go with, and how it is stated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specgate.eagle3.trees.file import read_tree
from specgate.eagle3.trees.shape import TreeShape
from specgate.errors import UsageError

TREE: Final = "tree"
DYNAMIC: Final = "dynamic"
"""What `tree=dynamic:NODES` begins with; every other value is a file."""


def refuse_others(options: Mapping[str, str]) -> None:
    """Raise UsageError for options that a tree does not go with."""
    for name, why in (
        ("drafter", "a stand-in proposes a chain"),
        ("tape", "a tape has the accept counts of a chain"),
        ("spec_config", "it is held against a chain (specgate align compares trees)"),
    ):
        if name in options and (name, options[name]) != ("drafter", "eagle3"):
            raise UsageError(f"option {TREE} with {name} = {options[name]}: {why}", hint="leave one of them out")


def tree_of_roles(asked: str, max_k: int) -> TreeShape:
    """The tree of file `asked`, for roles of up to `max_k` draft tokens; 0: there is no such role.

    Raises UsageError for a file that holds none, or one of other levels.
    """
    shape = read_tree(Path(asked).expanduser())
    if max_k and shape.depth != max_k:
        raise UsageError(
            f"option {TREE} = {asked}: a tree of {shape.depth} levels, but the longest draft asked for is spec-{max_k}",
            hint=f"ask for spec-{shape.depth}; a shorter role beside it drafts the tree's first levels",
        )
    return shape


def check_ranks(asked: str, ranks: int, draft_vocab: int) -> None:
    """Raise UsageError where a tree takes more tokens behind a node than the draft knows."""
    if ranks > draft_vocab:
        raise UsageError(
            f"option {TREE} = {asked}: {ranks} tokens behind a node, but the draft knows {draft_vocab} in all"
        )


def described(shape: TreeShape) -> str:
    """For the facts that an engine states of itself."""
    return f"{shape.nodes} tokens on {shape.depth} levels, sha256 {shape.sha256[:12]}"


def warning(words: str) -> str:
    """For readers of an engine's figures. `words`: what tree it is."""
    return (
        f"drafts are trees ({words}): acceptance is that of a tree, not of a chain, and spec-N counts a level "
        "of it as one draft token"
    )
