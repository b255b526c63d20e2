"""What `-o tree=…` asks for: the tree of a file, or a tree of the draft's likeliest tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specgate.backends.reference.ops import FEW_ROWS
from specgate.eagle3.trees.asked import DYNAMIC, TREE, described, refuse_others, tree_of_roles
from specgate.eagle3.trees.asked import check_ranks as check_asked_ranks
from specgate.eagle3.trees.growing import DynamicGrowth, FixedGrowth, Growth
from specgate.eagle3.trees.shape import WIDEST, TreeShape
from specgate.errors import UsageError

WIDTH: Final = "tree_width"
DEFAULT_WIDTH: Final = 10
"""Nodes that the draft runs on per level, and candidates behind each: the `top_k` of EAGLE-2 and EAGLE-3."""
HINT: Final = "tree=FILE, such as eagle_tree.yaml, or tree=dynamic:NODES, such as tree=dynamic:24"


@dataclass(frozen=True, slots=True)
class TreePlan:
    """`shape`: the tree of a file; None for a dynamic tree of `nodes` draft tokens and `width` nodes per level.
    `levels`: of the longest role's tree.
    """

    asked: str
    shape: TreeShape | None
    nodes: int
    levels: int
    width: int = 0

    @property
    def rows(self) -> int:
        """Rows of a verification: the draft tokens and the root."""
        return self.nodes + 1

    @property
    def draft_rows(self) -> int:
        """Rows behind the positions of the longest path that the draft may write while it grows the tree."""
        return max(self.rows, (self.levels - 1) * self.width)

    @property
    def branches(self) -> bool:
        """Whether it is more than a chain. A tree with one branch is drafted and verified as the chain that it is."""
        return self.shape is None or not self.shape.is_chain

    def growth(self, k: int, device: str) -> Growth:
        """How the tree of spec-`k` grows. A shorter role than the tree's drafts its first levels."""
        if self.shape is None:
            return DynamicGrowth(k, self.width, self.nodes)
        return FixedGrowth(self.shape.first_levels(k), device)

    @property
    def words(self) -> str:
        """For the facts that an engine states of itself."""
        if self.shape is None:
            return f"dynamic: the {self.nodes} likeliest tokens, {self.width} nodes wide"
        return described(self.shape)


def plan_tree(options: Mapping[str, str], max_k: int, device: str) -> TreePlan | None:
    """The tree that `options` ask for; None where they ask for none. `max_k`: the longest role's draft tokens.

    Raises UsageError for a tree that is none, that is not the roles', or that does not go with another option.
    """
    if TREE not in options:
        if WIDTH in options:
            raise UsageError(f"option {WIDTH} without {TREE}", hint=HINT)
        return None
    refuse_others(options)
    asked = options[TREE]
    word, colon, count = asked.partition(":")
    if word == DYNAMIC:
        plan = dynamic(asked, count if colon else "", options.get(WIDTH), max_k)
    else:
        plan = of_file(asked, options, max_k)
    if device == "cpu" and plan.rows > FEW_ROWS:
        raise UsageError(
            f"option {TREE} = {asked}: {plan.nodes} draft tokens; on a CPU the reference engine verifies at most "
            f"{FEW_ROWS - 1} bit-exactly",
            hint="a smaller tree, or device=cuda",
        )
    return plan


def of_file(asked: str, options: Mapping[str, str], max_k: int) -> TreePlan:
    if WIDTH in options:
        raise UsageError(f"option {WIDTH} with the tree of a file", hint="a file says how wide each node is")
    shape = tree_of_roles(asked, max_k)
    return TreePlan(asked, shape, shape.nodes, shape.depth)


def dynamic(asked: str, count: str, width: str | None, max_k: int) -> TreePlan:
    nodes = whole(count, f"option {TREE} = {asked}: NODES", "draft tokens of the tree")
    wide = DEFAULT_WIDTH if width is None else whole(width, f"option {WIDTH} = {width}", "nodes per level")
    wide = min(wide, nodes)
    if wide > WIDEST:
        raise UsageError(f"option {WIDTH} = {width}: at most {WIDEST} children of a node are possible")
    if nodes < max_k:
        raise UsageError(
            f"option {TREE} = {asked}: {nodes} draft tokens reach {nodes} levels at most, but spec-{max_k} is asked",
            hint=f"at least {DYNAMIC}:{max_k}",
        )
    most = DynamicGrowth(max_k, wide, nodes).pool
    if max_k and nodes > most:
        raise UsageError(
            f"option {TREE} = {asked}: spec-{max_k} has {most} candidates where {wide} nodes per level are expanded",
            hint=f"at most {DYNAMIC}:{most}, or a larger {WIDTH}",
        )
    return TreePlan(asked, None, nodes, max_k, wide)


def check_ranks(plan: TreePlan, draft_vocab: int) -> None:
    """Raise UsageError where the tree takes more tokens behind a node than the draft knows."""
    check_asked_ranks(plan.asked, plan.width if plan.shape is None else plan.shape.highest_rank + 1, draft_vocab)


def whole(text: str, where: str, what: str) -> int:
    """A number of at least 1. Raises UsageError for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise UsageError(f"{where}: a whole number of at least 1 is needed, the {what}", hint=HINT)
    return int(text)
