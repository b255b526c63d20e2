"""Option `-o tree=…`, and its refusal where no kernel is made for it."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.device import shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.attention.attention import MOST_NODES, TreeNodes
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import STATIC_SHARED_BYTES
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.lib.refusals import ELSEWHERE
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.lib.trees.options import (
    TREE,
    WIDTH,
    check_ranks,
    check_width,
    dynamic_tree,
    is_dynamic,
    tree_of_roles,
)
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError


def chosen_tree(request: OpenRequest) -> DraftTree | None:
    """The tree that the spec roles draft; None where they draft chains, as the tree of a file with one branch is.

    Raises UsageError for a tree that is none or is not the roles', and for what no kernel is made for.
    """
    text = request.options.get(TREE)
    check_width(request.options)
    if text is None:
        return None
    shape: DraftTree = (
        dynamic_tree(text, request.options.get(WIDTH), request.max_k)
        if is_dynamic(text)
        else tree_of_roles(text, request.max_k)
    )
    if not request.max_k or shape.is_chain:
        return None
    if shape.rows > MOST_NODES:
        raise UsageError(
            f"option {TREE} = {text}: {shape.nodes} draft tokens; back end cupy verifies at most {MOST_NODES - 1}",
            hint=f"a smaller tree; {ELSEWHERE}, on a GPU",
        )
    if request.max_batch * shape.rows > MAX_ROWS:
        raise UsageError(
            f"option {TREE} = {text}: batch {request.max_batch} of {shape.rows} rows each makes "
            f"{request.max_batch * shape.rows} rows per step, at most {MAX_ROWS} are supported",
            hint=f"a batch of {MAX_ROWS // shape.rows}, or a smaller tree",
        )
    if isinstance(shape, DynamicGrowth) and shape.forest > MOST_NODES:
        raise UsageError(
            f"option {WIDTH} = {shape.width}: spec-{shape.levels} runs the draft on {shape.forest} nodes, "
            f"{shape.width} on each level but the last; back end cupy takes at most {MOST_NODES}",
            hint=f"a {WIDTH} of at most {MOST_NODES // (shape.levels - 1)}; {ELSEWHERE}",
        )
    return shape


def check_draft(shape: DraftTree | None, text: str, draft: DraftGeometry) -> None:
    """Raise UsageError for a draft that knows too few tokens."""
    if shape is not None:
        ranks = shape.width if isinstance(shape, DynamicGrowth) else shape.highest_rank + 1
        check_ranks(text, ranks, draft.draft_vocab)


def check_memory(sizes: Sizes, target: TargetGeometry) -> None:
    """Raise UsageError where a block of attention cannot hold the tree's keys and values on this GPU."""
    if sizes.tree is None:
        return
    rows = max(sizes.tree.rows, sizes.tree.forest if isinstance(sizes.tree, DynamicGrowth) else 0)
    heads = sizes.heads(target)
    nodes = TreeNodes(0, rows, sizes.tree.depth).shared_bytes(rows, heads)
    ring = sizes.fmha.fitted(heads.head_dim, 0, kv=heads.kv).ring_bytes(heads.head_dim, kv=heads.kv)
    least = STATIC_SHARED_BYTES + ring
    if nodes + least > shared_memory_limit():
        raise UsageError(
            f"option {TREE}: attention over {rows} rows needs {nodes + least} bytes of shared memory per "
            f"block, and this GPU has {shared_memory_limit()}",
            hint="a smaller tree, or fewer warps (-o fmha=warps:4)",
        )
