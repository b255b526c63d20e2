"""The kernels of dynamic trees against the reference engine's drafting, given the same logits behind the same paths."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Slots
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeChoose, TreeGrow, TreeTop
from specgate.backends.eagle3.cupy.memory.trees import TreeBuffers, levels_of
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.reference import draft as reference
from specgate.backends.eagle3.reference.tree import DraftTree, grow_tree
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import counted, normal, relative_error
from tests.eagle3.cupy.kernels.trees.random_trees import masks_of
from tests.eagle3.cupy.pairs import DRAFT

ACTIVE = (0, 2, 3)
"""Of four slots, these decode."""
HIDDEN, VOCAB, EPS = 64, 90, 1e-5
Path = tuple[int, ...]
LogitsOf = Callable[[int, Path], Tensor]
"""A slot, and a path of columns of the draft's logits → the logits behind it."""


def smooth(seed: int, columns: int) -> LogitsOf:
    """Of no two candidates are the probabilities alike."""

    def of(slot: int, path: Path) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, slot, path)) % (1 << 40))
        return torch.randn(columns, generator=generator) * 4

    return of


def stepped(seed: int, columns: int) -> LogitsOf:
    """The likeliest token has all of the probability, but for what float32 does not hold. The others' logits are 64,
    128 and so on below: sums along paths are exact, and many are equal.
    """

    def of(slot: int, path: Path) -> Tensor:
        dice = random.Random(hash((seed, slot, path)))
        logits = torch.tensor(dice.choices((-64.0, -128.0, -192.0), k=columns))
        logits[dice.randrange(columns)] = 0
        return logits

    return of


def level(seed: int, columns: int) -> LogitsOf:
    """All tokens are equally likely."""
    return lambda slot, path: torch.full((columns,), float(seed % 5))


def repeated(seed: int, columns: int) -> LogitsOf:
    """The same behind every path of a slot, and few different logits."""
    return lambda slot, path: smooth(seed, columns)(slot, ()).round()


KINDS: Mapping[str, Callable[[int, int], LogitsOf]] = {
    "smooth": smooth,
    "stepped": stepped,
    "level": level,
    "repeated": repeated,
}


def reference_tree(
    growth: DynamicGrowth,
    logits_of: LogitsOf,
    ids: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    log_probs: Tensor | None = None,
) -> DraftTree:
    """Return the reference engine's drafts for the active slots. A hidden state is the number of a path.

    `log_probs` [B, 1, T]: in place of those that torch computes, where they are the same behind every path.
    """
    known: list[tuple[int, Path]] = [(slot, ()) for slot in ACTIVE]
    column_of = {int(token): column for column, token in enumerate(ids)}

    def head(weights: object, geometry: object, stream: Tensor) -> tuple[Tensor, Tensor]:
        rows = [[logits_of(*known[int(number)]) for number in of_slot[:, 0]] for of_slot in stream]
        return stream, torch.stack([torch.stack(of_slot) for of_slot in rows])

    def step(tokens: Tensor, hidden: Tensor, positions: Tensor, tree: object) -> Tensor:
        numbers = torch.empty_like(hidden)
        for b, of_slot in enumerate(tokens.tolist()):
            for f, token in enumerate(of_slot):
                slot, path = known[int(hidden[b, f, 0])]
                numbers[b, f, 0] = len(known)
                known.append((slot, (*path, column_of[token])))
        return numbers

    def likeliest(stream: Tensor, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens, result, hidden = reference.likeliest_tokens(weights, geometry, stream, ranks)
        return tokens, result if log_probs is None else log_probs.expand_as(result), hidden

    monkeypatch.setattr(reference, "draft_head", head)
    weights, geometry = cast(Any, SimpleNamespace(target_ids=ids)), cast(Any, SimpleNamespace(norm_output=False))
    return grow_tree(
        growth,
        torch.arange(len(ACTIVE), dtype=torch.float64)[:, None],
        torch.zeros(len(ACTIVE), dtype=torch.long),
        likeliest,
        cast(Any, step),
    )


@dataclass(frozen=True, slots=True)
class Drafting:
    """The kernels of a dynamic tree of up to `whole`, with the draft's layer and head left out."""

    growth: DynamicGrowth
    whole: DynamicGrowth
    columns: int
    slots: Slots
    tree: TreeBuffers
    ids: Tensor
    weights: InputWeights

    @classmethod
    def of(cls, growth: DynamicGrowth, whole: DynamicGrowth, columns: int, device: str) -> Drafting:
        slots = Slots.allocate(4, whole.rows, 8, device)
        slots.active[: len(ACTIVE)] = counted(ACTIVE, device)
        slots.active_count[0] = len(ACTIVE)
        tree = TreeBuffers.allocate(whole, replace(DRAFT, hidden=HIDDEN, draft_vocab=columns), 4, device)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randperm(max(VOCAB, columns), generator=generator)[:columns].int().to(device)
        embedding = normal(max(VOCAB, columns), HIDDEN, device=device)
        norms = [normal(HIDDEN, seed=i, device=device) for i in (1, 2)]
        return cls(growth, whole, columns, slots, tree, ids, InputWeights(embedding, *norms))

    def run(self, logits_of: LogitsOf, *, norm_output: bool = False, norm_before_residual: bool = False) -> None:
        """Draft the tree of every active slot, and check the input of every row that the draft would run on."""
        growth, whole, device = self.growth, self.whole, self.ids.device
        frontier: list[list[Path]] = [[()] for _ in ACTIVE]
        pool, entries_of = self.tree.pool, self.tree.entries
        assert pool is not None and entries_of is not None
        for number, of_level in enumerate(levels_of(growth, whole), 1):
            rows = self.slots.rows(4, of_level.sources)
            logits = torch.full((rows.most, self.columns), 7.0)
            for a, slot in enumerate(ACTIVE):
                for f, path in enumerate(frontier[a]):
                    logits[a * of_level.sources + f] = logits_of(slot, path)
            TreeTop(self.columns, growth.width)(rows, self.tree, logits=logits.to(device))
            if of_level.forest is None:
                of = growth.nodes, growth.levels, growth.width, whole.pool, whole.forest, whole.rows
                TreeChoose(self.columns, *of)(rows, self.tree, self.slots, target_ids=self.ids)
                return
            stream = normal(rows.most, HIDDEN, dtype=torch.float32, seed=number, device=str(device))
            normed = normal(rows.most, HIDDEN, seed=7 + number, device=str(device))
            out = torch.full((4 * growth.width, 2 * HIDDEN), float("nan"), dtype=torch.bfloat16, device=device)
            onward = torch.full((4 * growth.width, HIDDEN), float("nan"), device=device)
            grow = TreeGrow(
                *(HIDDEN, self.columns, norm_output, norm_before_residual),
                *(growth.width, number, whole.pool, whole.forest),
            )
            pre_norm = PreNormRows(normed, stream.square().view(rows.most, -1, NORM_GROUP).sum(-1))
            made = {"input": out, "next_stream": onward, "stream": stream, "masks": self.tree.forest, "eps": EPS}
            grow(rows, self.tree, pre_norm, self.weights, self.slots, **made, target_ids=self.ids)
            own = stream.double()
            if norm_output:
                scale = (own.square().mean(-1, keepdim=True) + EPS).rsqrt()
                own = (normed.double() * scale).bfloat16().double()
            before, frontier = frontier, []
            for a, slot in enumerate(ACTIVE):
                first = (number - 1) * growth.width
                entries = entries_of[slot, first : first + growth.width].tolist()
                assert entries == sorted(entries)
                frontier.append([])
                for f, entry in enumerate(entries):
                    source = (entry - of_level.first) // growth.width
                    column = int(pool[slot, entry, 1])
                    frontier[a].append((*before[a][source], column))
                    want = oracles.draft_input(
                        self.weights.embedding[int(self.ids[column])],
                        own[a * of_level.sources + source],
                        *(self.weights.embedding_norm, self.weights.feature_norm, EPS),
                    )
                    row = a * growth.width + f
                    assert relative_error(out[row], want) < 5e-3
                    kept = want[HIDDEN:] if norm_before_residual else own[a * of_level.sources + source]
                    assert relative_error(onward[row], kept) < 5e-3
            assert out[len(ACTIVE) * growth.width :].isnan().all()

    def tree_of(self, slot: int) -> tuple[list[int], list[int], list[int]]:
        """(tokens, parents, masks) of a slot's tree."""
        rows = self.growth.rows
        return (
            self.slots.drafts[slot, : rows - 1].tolist(),
            self.tree.parents[slot, :rows].tolist(),
            self.tree.masks[slot, :rows].tolist(),
        )

    def scores(self, slot: int) -> Tensor:
        """float32 [pool]: as the kernels keep them."""
        assert self.tree.pool is not None
        bits = self.tree.pool[slot, : self.growth.pool, 0].contiguous().cpu()
        return torch.where(bits < 0, bits ^ -(1 << 31), ~bits).view(torch.float32)


def check_choices(drafting: Drafting, logits_of: LogitsOf) -> None:
    """The scores are those of the softmax in float64, and what was chosen by them is what the reference chooses by
    them.
    """
    growth, pool, entries_of = drafting.growth, drafting.tree.pool, drafting.tree.entries
    assert pool is not None and entries_of is not None
    for slot in ACTIVE:
        scores = drafting.scores(slot)[None]
        columns, entries = pool[slot, :, 1].tolist(), entries_of[slot].tolist()
        begin, frontier = 0, list[tuple[Path, float, int]]([((), 0.0, -1)])  # path, score in float64, entry
        above = list[int]()
        for number in range(1, growth.levels + 1):
            size = len(frontier) * growth.width
            for f, (path, score, entry) in enumerate(frontier):
                logs = logits_of(slot, path).double().log_softmax(-1)
                of = slice(begin + f * growth.width, begin + (f + 1) * growth.width)
                want = score + logs[columns[of]]
                assert torch.allclose(scores[0, of].double(), want, rtol=1e-6, atol=4e-6 * number)
                above += [entry] * growth.width
            if number == growth.levels:
                break
            chosen = growth.frontier(number, scores[:, begin : begin + size])[0].tolist()
            rows = entries[(number - 1) * growth.width : number * growth.width]
            assert rows == [begin + candidate for candidate in chosen]
            below = list[tuple[Path, float, int]]()
            for entry in rows:
                path, score, _ = frontier[(entry - begin) // growth.width]
                column = columns[entry]
                logs = logits_of(slot, path).double().log_softmax(-1)
                below.append(((*path, column), score + float(logs[column]), entry))
            frontier, begin = below, begin + size
        nodes = growth.chosen(scores)[0].tolist()
        number_of = {entry: node for node, entry in enumerate(nodes, 1)}
        tokens, parents, masks = drafting.tree_of(slot)
        assert tokens == [int(drafting.ids[columns[entry]]) for entry in nodes]
        assert parents == [0, *(number_of.get(above[entry], 0) for entry in nodes)]
        assert all(above[entry] < 0 or above[entry] in number_of for entry in nodes)
        assert masks == masks_of(parents)


SHAPES = {
    "one level": (DynamicGrowth(1, 5, 12), 300),
    "the usual width": (DynamicGrowth(4, 10, 31), 300),
    "deep": (DynamicGrowth(7, 3, 24), 300),
    "a chain": (DynamicGrowth(3, 1, 3), 300),
    "in parts": (DynamicGrowth(3, 4, 20), 9001),
    "all": (DynamicGrowth(2, 3, 12), 40),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_is_the_one_that_the_reference_drafts_from_the_same_logits(
    device: str, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    growth, columns = SHAPES[name]
    drafting = Drafting.of(growth, growth, columns, device)
    for seed in range(2 if columns > 1000 else 4):
        logits_of = KINDS[kind](seed, columns)
        drafting.run(logits_of)
        check_choices(drafting, logits_of)
        # Their last bit decides which sums along paths are equal, and depends on the order of a softmax's sum.
        first = torch.stack([drafting.scores(slot)[None, : growth.width] for slot in ACTIVE])
        log_probs = first if kind == "repeated" else None
        want = reference_tree(growth, logits_of, drafting.ids.cpu(), monkeypatch, log_probs)
        for b, slot in enumerate(ACTIVE):
            tokens, parents, _ = drafting.tree_of(slot)
            assert parents == want.parents[b].tolist()
            assert tokens == want.tokens[b].tolist()
    assert not drafting.slots.fault.any() and not drafting.slots.drafts[1].any() and not drafting.tree.masks[1].any()


@pytest.mark.parametrize("growth", [DynamicGrowth(2, 40, 63), DynamicGrowth(5, 16, 63)])
def test_the_widest_trees_are_chosen_as_the_reference_chooses_them(device: str, growth: DynamicGrowth) -> None:
    drafting = Drafting.of(growth, growth, 300, device)
    for kind in ("smooth", "stepped", "level"):
        logits_of = KINDS[kind](3, 300)
        drafting.run(logits_of)
        check_choices(drafting, logits_of)
    assert not drafting.slots.fault.any()


@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_a_shorter_role_grows_its_own_tree_in_the_buffers_of_a_larger_one(
    device: str, norm_output: bool, norm_before_residual: bool
) -> None:
    whole = DynamicGrowth(4, 4, 20)
    drafting = Drafting.of(whole.first_levels(2), whole, 300, device)
    logits_of = smooth(1, 300)
    drafting.run(logits_of, norm_output=norm_output, norm_before_residual=norm_before_residual)
    check_choices(drafting, logits_of)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_logits_that_are_not_finite_are_found_and_leave_a_tree(device: str, broken: float, depth: int) -> None:
    """A tree, so that the fault is the only one."""
    growth = DynamicGrowth(3, 4, 20)
    drafting = Drafting.of(growth, growth, 300, device)

    def logits_of(slot: int, path: Path) -> Tensor:
        logits = smooth(0, 300)(slot, path)
        if len(path) == depth and slot == 2:
            logits[299] = broken
        return logits

    drafting.run(logits_of)
    assert Fault(int(drafting.slots.fault)) is Fault.DRAFT_NOT_FINITE
    for slot in ACTIVE:
        tokens, parents, masks = drafting.tree_of(slot)
        assert all(parent < node for node, parent in enumerate(parents) if node) and masks == masks_of(parents)
        assert {*tokens} <= {*drafting.ids.tolist()}
