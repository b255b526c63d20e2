"""The kernels of a tree beside attention: candidates, tokens, acceptance, compaction, against plain Python or torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SCALE_POSITIONS, Heads
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Slots
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeSettle, TreeToken, TreeTop, parts_of
from specgate.backends.eagle3.cupy.memory.coded_pages import block_scales, key_codes, outer_of, value_codes
from specgate.backends.eagle3.cupy.memory.trees import TreeBuffers, levels_of
from specgate.backends.eagle3.lib.kv.modes import MODES, KvMode
from specgate.backends.eagle3.lib.trees.accepting import accept_tree, compact, compaction
from specgate.backends.eagle3.lib.trees.topology import ancestors
from specgate.backends.eagle3.nouns.trees.shape import Ranks, TreeShape
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import counted, index_of, normal, relative_error
from tests.eagle3.cupy.kernels.matmul.test_maxima import maxima_beside
from tests.eagle3.cupy.kernels.sampling.drawing import greedy
from tests.eagle3.cupy.kernels.trees.random_trees import masks_of, random_shape
from tests.eagle3.cupy.pairs import DRAFT
from tests.eagle3.lib.trees.brute_force import ByHand

ACTIVE = (0, 2, 3)
"""Of four slots, these decode."""
EPS = 1e-5
SMALL = Heads(2, 1, 64, 200)


def state(max_rows: int, device: str) -> Slots:
    slots = Slots.allocate(4, max_rows, 8, device)
    slots.active[: len(ACTIVE)] = counted(ACTIVE, device)
    slots.active_count[0] = len(ACTIVE)
    return slots


def likeliest(row: Tensor, count: int) -> list[int]:
    """Columns by falling logit, the lower column first where two are equal."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda column: (-values[column], column))[:count]


@pytest.mark.parametrize(("columns", "top"), [(300, 1), (300, 5), (5000, 4), (9000, 64), (40, 40)])
def test_the_largest_of_every_part_are_found_in_order_with_ties_to_the_lowest_column(
    device: str, columns: int, top: int
) -> None:
    logits = normal(8, columns, dtype=torch.float32, scale=3, device=device).round()  # many ties
    logits[0, columns // 2] = float("nan")
    slots, parts = state(2, device), parts_of(columns)
    candidates = torch.full((8 * parts * top,), -1, dtype=torch.int64, device=device)
    kernel = TreeTop(columns, top)
    kernel(slots.rows(4, 2), candidates=candidates, sums=torch.zeros(8 * parts, 2, device=device), logits=logits)
    configs = candidates.view(8, parts, top)
    assert (configs[6:] == -1).all()  # rows of the slot that does not decode
    for row in range(1, 6):
        listed = index_of(configs[row][configs[row] != 0])
        together = sorted(listed.tolist(), key=lambda column: (-float(logits[row, column]), column))
        assert together[:top] == likeliest(logits[row], top)
        for part in configs[row]:
            there = index_of(part[part != 0]).tolist()
            assert there == sorted(there, key=lambda column: (-float(logits[row, column]), column))
    assert columns // 2 in index_of(configs[0][configs[0] != 0]).tolist()


def test_more_tokens_than_a_draft_knows_are_refused() -> None:
    with pytest.raises(ValueError, match="the 41 largest of 40 columns"):
        TreeTop(40, 41)
    with pytest.raises(ValueError, match="the 41 likeliest of 40 tokens"):
        TreeToken(64, 40, False, False, max_rows=2, top=41, first_node=1, nodes=1, sources=1, rows=0)


@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_a_level_has_the_tokens_of_its_ranks_and_feeds_the_nodes_with_children(
    device: str, norm_output: bool, norm_before_residual: bool
) -> None:
    hidden, vocab, columns = 64, 90, 70
    shape = TreeShape.of([(0,), (2,), (0, 0), (0, 3), (2, 1), (0, 3, 0), (2, 1, 5), (2, 1, 0)])
    slots = state(shape.rows, device)
    ids = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))[:columns].int().to(device)
    weights = InputWeights(
        *(normal(*s, seed=i, device=device) for i, s in enumerate([(vocab, hidden), (hidden,), (hidden,)]))
    )
    nodes = TreeBuffers.allocate(shape, DRAFT, 4, device).nodes
    order = {path: number for number, path in enumerate(shape.paths, 1)}
    frontier: list[Ranks] = [()]
    for number, level in enumerate(levels_of(shape, shape), 1):
        rows = slots.rows(4, level.sources)
        logits = normal(rows.most, columns, dtype=torch.float32, seed=number, device=device)
        stream = normal(rows.most, hidden, dtype=torch.float32, seed=number, device=device)
        normed = normal(rows.most, hidden, seed=7 + number, device=device)
        pre_norm = PreNormRows(normed, stream.square().view(rows.most, -1, NORM_GROUP).sum(-1))
        out = torch.full((4 * max(1, level.rows), 2 * hidden), float("nan"), dtype=torch.bfloat16, device=device)
        onward = torch.full((4 * max(1, level.rows), hidden), float("nan"), device=device)
        sizes = shape.rows, level.top, level.first, level.nodes, level.sources, level.rows
        rest = {"nodes": nodes, "target_ids": ids, "maxima": maxima_beside(logits), "eps": EPS}
        kernel = TreeToken(hidden, columns, norm_output, norm_before_residual, *sizes)
        groups = rows, slots, pre_norm, weights
        kernel(*groups, input=out, next_stream=onward, stream=stream, logits=logits, **rest)
        below = [path for path in shape.paths if len(path) == number and shape.children[order[path]]]
        own = stream.double()
        if norm_output:
            scale = (stream.double().square().mean(-1, keepdim=True) + EPS).rsqrt()
            own = (normed.double() * scale).bfloat16().double()
        for a, slot in enumerate(ACTIVE):
            for path in (p for p in shape.paths if len(p) == number):
                source = a * level.sources + frontier.index(path[:-1])
                token = int(ids[likeliest(logits[source], path[-1] + 1)[-1]])
                assert slots.drafts[slot, order[path] - 1] == token
                if path in below:
                    row = a * level.rows + below.index(path)
                    want = oracles.draft_input(
                        weights.embedding[token], own[source], weights.embedding_norm, weights.feature_norm, EPS
                    )
                    assert relative_error(out[row], want) < 5e-3
                    kept = want[hidden:] if norm_before_residual else own[source]
                    assert relative_error(onward[row], kept) < 5e-3
        assert out[len(ACTIVE) * level.rows :].isnan().all()
        frontier = below
    assert not slots.drafts[1].any() and not slots.fault.any()


def tokens_of(logits: Tensor, ranks: Sequence[int], device: str) -> Slots:
    """The drafts of a tree of one level with these ranks, behind rows of logits of three active slots."""
    columns, shape = logits.shape[1], TreeShape.of([(rank,) for rank in ranks])
    (level,) = levels_of(shape, shape)
    slots = state(shape.rows, device)
    weights = InputWeights(*(normal(*of, device=device) for of in ((columns, 64), (64,), (64,))))
    pre_norm = PreNormRows(normal(4, 64, device=device), normal(4, 8, dtype=torch.float32, device=device))
    out, onward, stream = (torch.zeros(4, width, device=device) for width in (128, 64, 64))
    token = TreeToken(64, columns, False, False, shape.rows, level.top, 1, level.nodes, 1, 0)
    nodes = TreeBuffers.allocate(shape, DRAFT, 4, device).nodes
    ids, maxima = torch.arange(columns, dtype=torch.int32, device=device), maxima_beside(logits)
    own = {"input": out.bfloat16(), "next_stream": onward, "stream": stream, "logits": logits, "maxima": maxima}
    token(slots.rows(4, 1), slots, pre_norm, weights, **own, nodes=nodes, target_ids=ids, eps=EPS)
    return slots


FOUND = [
    *((300, (0, 1, 2, 3, 4)), (5000, (0, 2, 3)), (9000, (0, 31, 63)), (40, (0, 38, 39)), (33, (32,)), (17, (0,))),
    (21000, (1, 4)),
]


@pytest.mark.parametrize(("columns", "ranks"), FOUND)
@pytest.mark.parametrize("kind", ["many ties", "no ties", "neighbours", "all equal"])
def test_the_tokens_of_all_ranks_are_found_with_ties_to_the_lowest(
    device: str, columns: int, ranks: tuple[int, ...], kind: str
) -> None:
    logits = normal(4, columns, dtype=torch.float32, scale=3, device=device)
    if kind == "many ties":
        logits = logits.round()
    elif kind == "neighbours":  # all of the likeliest are in a few parts of a few threads
        logits[:, columns // 2 :] += 30
    elif kind == "all equal":
        logits[:] = -1.5
    slots = tokens_of(logits, ranks, device)
    for a, slot in enumerate(ACTIVE):
        want = likeliest(logits[a], ranks[-1] + 1)
        assert slots.drafts[slot, : len(ranks)].tolist() == [want[rank] for rank in ranks]
    assert not slots.fault.any()


@pytest.mark.parametrize("ranks", [(1, 2), (40,)])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_level_whose_logits_are_not_finite_says_so(device: str, ranks: tuple[int, ...], bad: float) -> None:
    logits = normal(4, 70, dtype=torch.float32, device=device)
    logits[1, 69] = bad  # of slot 2, whose nodes have no rank 0
    assert Fault(int(tokens_of(logits, ranks, device).fault)) is Fault.DRAFT_NOT_FINITE


@dataclass(frozen=True, slots=True)
class Settling:
    """The end of a step of a tree over a small cache. `masks` and `parents` are of as many rows as the engine has."""

    heads: Heads
    kernel: TreeSettle
    slots: Slots
    tree: TreeBuffers
    masks: Tensor
    parents: Tensor
    k: Tensor
    v: Tensor
    features: Tensor
    block_table: Tensor
    scales: Tensor | None = None

    @classmethod
    def of(cls, shape: TreeShape, device: str, layers: int = 1, heads: Heads = SMALL, max_rows: int = 0) -> Settling:
        rows, width, blocks = max_rows or shape.rows, 128, 4 * heads.max_blocks
        tree = TreeBuffers.allocate(shape, DRAFT, 4, device).with_scales(layers, heads, heads)
        more = (0, rows - shape.rows)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(1))
        return cls(
            heads=heads,
            kernel=TreeSettle(heads, layers, blocks, width, shape.rows, shape.depth, rows),
            slots=state(rows, device),
            tree=tree,
            masks=torch.nn.functional.pad(tree.masks, more),
            parents=torch.nn.functional.pad(tree.parents, more),
            k=pages(layers, blocks, *heads.page_shapes[0], dtype=heads.cached, device=device),
            v=pages(layers, blocks, *heads.page_shapes[1], dtype=heads.cached, seed=1, device=device),
            features=normal(4, rows, width, device=device),
            block_table=order.view(4, -1).int().to(device),
            scales=pages(layers, blocks, *heads.scale_shape[0], dtype=heads.scale_shape[1], seed=2, device=device)
            if heads.scale_shape
            else None,
        )

    def entries(self) -> list[Tensor]:
        """Return what the cache has of positions, [layers, S, G, P, …] each: keys and values; in NVFP4 codes, and the
        scales of their blocks.
        """
        of_positions = [self.k, self.v.transpose(3, 4)]
        if self.scales is not None and self.heads.kv == "nvfp4":
            of_positions = [key_codes(self.k), value_codes(self.v), *block_scales(self.scales)]
        return [of[:, self.block_table.long()].transpose(2, 3).flatten(3, 4).clone() for of in of_positions]

    def __call__(self, choices: Tensor) -> None:
        tree, slots = self.tree, self.slots
        nodes = {} if tree.scales is None else {"node_scales": tree.scales, "scaled_slots": tree.scales.shape[1]}
        groups = slots.rows(4, self.kernel.rows), slots, self, tree
        self.kernel(*groups, k_pages=self.k, v_pages=self.v, choices=choices, **nodes)
        assert not tree.readers.any() and not choices[: len(ACTIVE) * self.kernel.rows].any()


def pages(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    """Random ones: numbers, or codes."""
    numbers = normal(*shape, seed=seed, device=device)
    return numbers.to(dtype) if dtype.is_floating_point else numbers.view(torch.int16).to(dtype)


@pytest.mark.parametrize(("nodes", "levels"), [(2, 1), (12, 4), (31, 5), (32, 3), (63, 7)])
def test_the_longest_path_is_accepted_as_brute_force_and_the_reference_accept_it(
    device: str, nodes: int, levels: int
) -> None:
    dice = random.Random(nodes)
    shape = random_shape(dice, nodes, levels, widest=16)
    settle = Settling.of(shape, device, max_rows=shape.rows + 1)  # in the buffers of a larger tree
    slots, tree = settle.slots, settle.tree
    mask = ancestors(torch.tensor([shape.parents]), levels)
    lengths = list[int]()
    for _ in range(12):
        drafts = [[dice.randrange(3) for _ in range(shape.nodes)] for _ in range(4)]
        targets = [[dice.randrange(3) for _ in range(shape.rows)] for _ in range(4)]
        slots.drafts[:, : shape.nodes] = counted([t for one in drafts for t in one], device).view(4, -1)
        logits = torch.zeros(len(ACTIVE) * shape.rows, 3)
        logits[range(len(logits)), [t for slot in ACTIVE for t in targets[slot]]] = 1
        choices = torch.zeros(4 * shape.rows, dtype=torch.int64)
        choices[: len(logits)] = greedy(logits)
        settle(choices.to(device))
        assert not slots.fault.any()
        for slot in ACTIVE:
            want = ByHand(shape.parents).accepted(drafts[slot], targets[slot])
            given = [torch.tensor([t]) for t in (drafts[slot], targets[slot], shape.parents)]
            tokens = accept_tree(given[0], given[1], given[2], mask, levels)
            length = int(slots.accepted[slot])
            assert length == len(want) - 1 == int(tokens.length)
            assert tree.path[slot, : length + 1].tolist() == want == tokens.path[0, : length + 1].tolist()
            emitted = slots.target_tokens[slot, : length + 1].tolist()
            assert emitted == [targets[slot][n] for n in want] == tokens.tokens[0, : length + 1].tolist()
            lengths.append(length)
    assert len({*lengths}) > 1


@pytest.mark.parametrize(
    ("node", "mask", "parent"),
    [(0, 3, 0), (3, 0b1000, 1), (3, 0b11011, 1), (2, 0b101, 3), (4, 0b10011, 2), (1, 0, 0), (0, 0, 0)],
    ids=["root", "no ancestor", "a node too many", "parent behind", "another parent", "nothing", "an empty root"],
)
def test_a_mask_that_is_not_the_trees_is_found(device: str, node: int, mask: int, parent: int) -> None:
    settle = Settling.of(TreeShape.of([(0,), (1,), (0, 0), (0, 1)]), device)
    for broken in (False, True):
        if broken:
            settle.masks[2, node], settle.parents[2, node] = mask, parent
        settle(greedy(torch.zeros(4 * 5, 3)).to(device))
        assert Fault(int(settle.slots.fault)) is (Fault.MASK_INTEGRITY if broken else Fault(0))


def test_a_target_that_is_not_finite_is_found_at_every_node(device: str) -> None:
    shape = TreeShape.of([(0,), (1,), (0, 0)])
    for node in range(shape.rows):
        settle, logits = Settling.of(shape, device), torch.zeros(4 * shape.rows, 3)
        logits[shape.rows + node, 1] = float("nan")
        settle(greedy(logits).to(device))
        assert Fault(int(settle.slots.fault)) is Fault.TARGET_NOT_FINITE


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("begin", [BLOCK - 2, 5, 48, BLOCK - 9])
@pytest.mark.parametrize("kv", MODES)
def test_the_accepted_path_lies_where_a_chain_has_it_in_all_layers_and_nothing_else_moves(
    device: str, kv: KvMode, head_dim: int, begin: int
) -> None:
    """The trees of the slots differ, as dynamic ones do. Of a cache in E4M3, a scale comes along where its positions
    begin on the path.
    """
    paths = {0: [0, 3, 9, 21], 2: [0], 3: [0, 1, 2, 3, 39]}
    shape = random_shape(random.Random(0), 39, 4)
    settle = Settling.of(shape, device, layers=3, heads=Heads(4, 2, head_dim, 200, kv))
    slots = settle.slots
    slots.length.copy_(counted([begin, 0, 100, begin + BLOCK], device))
    slots.drafts.fill_(7)
    settle.tree.path.fill_(77)
    for slot, way in paths.items():
        parents = [0] * shape.rows
        for parent, node in pairwise(way):
            parents[node] = parent
            slots.drafts[slot, node - 1] = 5
        settle.parents[slot] = counted(parents, device)
        settle.masks[slot] = torch.tensor(masks_of(parents), device=device)
    want = settle.entries()
    wanted_features = settle.features.clone()
    for slot, way in paths.items():
        padded = torch.tensor([[*way, *[-1] * (shape.depth + 1 - len(way))]], device=device)
        start = slots.length[slot : slot + 1].long()
        read, write = compaction(padded, start, start)
        for cache in want:
            for layer in cache:
                compact(layer[slot : slot + 1], read, write)
        wanted_features[slot, : len(way)] = settle.features[slot, way]
    wanted_scales = None
    if settle.scales is not None:
        wanted_scales = outer_of(settle.scales) if kv == "nvfp4" else settle.scales.clone()
    if wanted_scales is not None and settle.tree.scales is not None:
        made = settle.tree.scales
        made.copy_(normal(*made.shape, dtype=torch.float32, seed=2, device=device))
        for slot, way in paths.items():
            for depth, node in enumerate(way):
                at = int(slots.length[slot]) + depth
                if at % SCALE_POSITIONS == 0:
                    block = int(settle.block_table[slot, at // BLOCK])
                    wanted_scales[:, block, :, at % BLOCK // SCALE_POSITIONS] = made[:, slot, :, node]
        assert settle.scales is not None and torch.equal(wanted_scales, settle.scales) == (begin not in (BLOCK - 2, 48))
    logits = torch.zeros(4 * shape.rows, 8)
    logits[:, 5] = 1
    settle(greedy(logits).to(device))
    for slot, way in paths.items():
        assert int(slots.accepted[slot]) == len(way) - 1 and settle.tree.path[slot, : len(way)].tolist() == way
    assert not slots.fault.any()
    assert all(torch.equal(*both) for both in zip(settle.entries(), want, strict=True))
    assert torch.equal(settle.features, wanted_features)
    if settle.scales is not None and wanted_scales is not None:
        kept = outer_of(settle.scales) if kv == "nvfp4" else settle.scales
        assert torch.equal(kept.nan_to_num(), wanted_scales.nan_to_num())
