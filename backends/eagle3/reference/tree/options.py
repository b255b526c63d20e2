"""Option `-o tree=…`: the tree of a file, or a tree of the draft's likeliest tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth, FixedGrowth, Growth
from specgate.backends.eagle3.lib.trees.options import (
    TREE,
    WIDTH,
    check_width,
    described,
    dynamic_tree,
    is_dynamic,
    refuse_others,
    tree_of_roles,
)
from specgate.backends.eagle3.lib.trees.options import check_ranks as check_option_ranks
from specgate.backends.eagle3.reference.ops import FEW_ROWS
from specgate.checkpoints.trees.shape import TreeShape
from specgate.errors import UsageError


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
        """True if it is more than a chain. A tree with one branch is drafted and verified as a chain."""
        return self.shape is None or not self.shape.is_chain

    def growth(self, k: int, device: str) -> Growth:
        """Return the growth of the tree for spec-`k`. A role shorter than the tree drafts its first levels."""
        if self.shape is None:
            return DynamicGrowth(k, self.width, self.nodes)
        return FixedGrowth(self.shape.first_levels(k), device)

    @property
    def words(self) -> str:
        """For the facts that an engine states of itself."""
        return described(self.shape or DynamicGrowth(self.levels, self.width, self.nodes))


def plan_tree(options: Mapping[str, str], max_k: int, device: str) -> TreePlan | None:
    """The tree that `options` ask for; None where they ask for none. `max_k`: the longest role's draft tokens.

    Raises UsageError for a tree that is none, that is not the roles', or that does not go with another option.
    """
    check_width(options)
    if TREE not in options:
        return None
    refuse_others(options)
    option = options[TREE]
    if is_dynamic(option):
        growth = dynamic_tree(option, options.get(WIDTH), max_k)
        plan = TreePlan(option, None, growth.most, max_k, growth.width)
    else:
        shape = tree_of_roles(option, max_k)
        plan = TreePlan(option, shape, shape.nodes, shape.depth)
    if device == "cpu" and plan.rows > FEW_ROWS:
        raise UsageError(
            f"option {TREE} = {option}: {plan.nodes} draft tokens; on a CPU the reference engine verifies at most "
            f"{FEW_ROWS - 1} bit-exactly",
            hint="a smaller tree, or device=cuda",
        )
    return plan


def check_ranks(plan: TreePlan, draft_vocab: int) -> None:
    """Raise UsageError where the tree takes more tokens behind a node than the draft knows."""
    check_option_ranks(plan.asked, plan.width if plan.shape is None else plan.shape.highest_rank + 1, draft_vocab)
