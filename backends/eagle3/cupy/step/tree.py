"""The draft's tree: one extension over what was accepted, then the draft on the nodes with children, level by level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeChoose, TreeGrow, TreeToken, TreeTop
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, LayerBuffers
from specgate.backends.eagle3.cupy.memory.model import Draft
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.cupy.memory.trees import Level, levels_of
from specgate.backends.eagle3.cupy.step.chain import Extension
from specgate.backends.eagle3.cupy.step.layer import Layer, RowPositions
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape


class TreeLevel(ABC):
    """The launchers of one level: the LM head behind the rows before it, its tokens, and the draft's layer over those
    of its nodes that have children, where any have.
    """

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, level: Level, gemms: Gemms, *, maxima: bool) -> None:
        """`maxima`: whether the LM head leaves some of its logits."""
        g = draft.geometry
        self.draft, self.level = draft, level
        self.lm_head = gemms(
            *("EAGLE3_LM_HEAD_SMALLVOC", g.draft_vocab, g.hidden, slots * level.sources), scaled=True, maxima=maxima
        )
        self.layer = (
            Layer(g, sizes, slots, gemms, rows=level.rows, query_rows=level.rows, tree=level.forest)
            if level.forest
            else None
        )

    @property
    @abstractmethod
    def own(self) -> Mapping[str, Kernel]:
        """Return the kernels that turn logits into tokens, by name."""

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order."""
        layer = self.layer.kernels() if self.layer else {}
        return {"lm_head": self.lm_head, **self.own, **{f"layer.{name}": kernel for name, kernel in layer.items()}}

    def groups(self, b: Buffers, before: LayerBuffers, rows: Rows) -> tuple[object, ...]:
        """Return what has the operands of a level's kernels."""
        return rows, before, before.pre_norm, b.draft, b.tree, b.slots, self.draft, self.draft.input

    @abstractmethod
    def tokens(self, b: Buffers, before: LayerBuffers, here: LayerBuffers, rows: Rows) -> None:
        """The level's tokens from the logits behind `rows`, which are in `before` with their streams; and the draft's
        input, whose streams go to `here`.
        """


class FixedLevel(TreeLevel):
    """A level of the tree of a file."""

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, level: Level, gemms: Gemms) -> None:
        super().__init__(draft, sizes, slots, level, gemms, maxima=True)
        g = draft.geometry
        self.token = TreeToken(
            *(g.hidden, g.draft_vocab, g.norm_output, g.norm_before_residual, sizes.max_rows),
            *(level.top, level.first, level.nodes, level.sources, level.rows),
        )

    @property
    def own(self) -> Mapping[str, Kernel]:
        return {"token": self.token}

    def tokens(self, b: Buffers, before: LayerBuffers, here: LayerBuffers, rows: Rows) -> None:
        self.token(*self.groups(b, before, rows), next_stream=here.stream, eps=self.draft.geometry.rms_eps)


class DynamicLevel(TreeLevel):
    """A level of a dynamic tree. Behind the last one, the tree is chosen from the candidates of all."""

    def __init__(
        self,
        draft: Draft,
        sizes: Sizes,
        slots: int,
        number: int,
        level: Level,
        growth: DynamicGrowth,
        whole: DynamicGrowth,
        gemms: Gemms,
    ) -> None:
        """Level `number`, from 1 on, of `growth`, which is the first levels of `whole`."""
        super().__init__(draft, sizes, slots, level, gemms, maxima=False)
        g = draft.geometry
        self.top = TreeTop(g.draft_vocab, level.top)
        self.grow = (
            TreeGrow(
                *(g.hidden, g.draft_vocab, g.norm_output, g.norm_before_residual),
                *(growth.width, number, whole.pool, whole.forest),
            )
            if level.forest
            else None
        )
        of_tree = growth.nodes, growth.levels, growth.width, whole.pool, whole.forest, sizes.max_rows
        self.choose = TreeChoose(g.draft_vocab, *of_tree)

    @property
    def own(self) -> Mapping[str, Kernel]:
        return {"top": self.top, **({"grow": self.grow} if self.grow else {"choose": self.choose})}

    def tokens(self, b: Buffers, before: LayerBuffers, here: LayerBuffers, rows: Rows) -> None:
        assert b.tree is not None
        groups = self.groups(b, before, rows)
        self.top(*groups)
        with mark("EAGLE_TREE_MASKS"):
            if self.grow is None:
                self.choose(*groups)
                return
            eps = self.draft.geometry.rms_eps
            self.grow(*groups, next_stream=here.stream, masks=b.tree.forest, eps=eps)


def levels_with(
    draft: Draft, sizes: Sizes, slots: int, shape: DraftTree, whole: DraftTree, gemms: Gemms
) -> Sequence[TreeLevel]:
    """Those of `shape`, which is the first levels of `whole`."""
    levels = levels_of(shape, whole)
    if isinstance(shape, TreeShape):
        return [FixedLevel(draft, sizes, slots, level, gemms) for level in levels]
    assert isinstance(whole, DynamicGrowth)
    return [
        DynamicLevel(draft, sizes, slots, number, level, shape, whole, gemms) for number, level in enumerate(levels, 1)
    ]


class Tree(Extension):
    """The draft's forward passes over a tree as a page of kernel calls. What it says behind a path is what it says in a
    chain of that path, whatever else the tree has.
    """

    name, branches = "tree", True

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, shape: DraftTree, gemms: Gemms) -> None:
        """`shape`: the first levels of `sizes.tree`. Raises ValueError for a draft that is split among GPUs."""
        assert sizes.tree is not None
        if draft.shard.ranks > 1:
            raise ValueError("a tree of a draft that is split among GPUs: each knows the likeliest of its own tokens")
        super().__init__(draft, sizes, slots, shape.depth + 1, gemms)
        self.levels = levels_with(draft, sizes, slots, shape, sizes.tree, gemms)

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order."""
        return {
            **self.kernels_of_extension(),
            **{
                f"level{number}.{name}": kernel
                for number, level in enumerate(self.levels, 1)
                for name, kernel in level.kernels().items()
            },
        }

    def __call__(self, b: Buffers) -> None:
        """Leave the draft token of node n of every active slot in `b.slots.drafts`, at n - 1."""
        assert b.draft is not None and b.tree is not None
        d, tree, slots, w = b.draft, b.tree, b.slots, self.draft.weights
        eps = self.draft.geometry.rms_eps
        self.extend(b)
        before = d.layer
        for each in self.levels:
            level, rows = each.level, slots.rows(self.slots, each.level.sources)
            # A row's stream is read by all its children, so that theirs go elsewhere.
            here = replace(before, stream=tree.stream if before.stream is d.layer.stream else d.layer.stream)
            with mark("EAGLE_DRAFT_LM_HEAD"):
                each.lm_head(before.logits, before.pre_norm, w.lm_head, rows, eps=eps, maxima=tree.maxima)
                each.tokens(b, before, here, rows)
            if each.layer is not None:
                at = RowPositions(self.draft.rope, b.kv, slots.length, nodes=tree.in_draft)
                nodes = slots.rows(self.slots, level.rows)
                each.layer(here, w.layer, w.norm, d.pages, 0, d.input, nodes, nodes, at)
            before = here
