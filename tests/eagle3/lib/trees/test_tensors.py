"""Trees as tensors against brute force, and by hand where a reader can follow."""

from __future__ import annotations

import random

import pytest
import torch

from specgate.backends.eagle3.lib.trees import accepting, topology
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth, FixedGrowth, likeliest, parents_of
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from tests.eagle3.lib.trees.brute_force import MadeUpDraft, differences, grown, growth_differences, random_parents

PARENTS = torch.tensor([[0, 0, 0, 1, 1, 3]])
"""Two children of the root, two of the first of them, and one of the first of these."""


@pytest.mark.parametrize("seed", range(12))
def test_random_trees_are_what_brute_force_says(seed: int) -> None:
    dice = random.Random(seed)
    rows, levels = dice.choice([2, 3, 8, 31, 32, 33, 64, 65]), dice.randint(1, 9)
    assert list(differences(dice, 40, rows, levels)) == []


@pytest.mark.parametrize("seed", range(6))
def test_grown_trees_are_the_likeliest_of_all_candidates(seed: int) -> None:
    dice = random.Random(100 + seed)
    levels, width = dice.randint(1, 5), dice.randint(1, 5)
    assert list(growth_differences(dice, 20, levels, width, dice.randint(levels, 40))) == []


def test_a_small_tree_reads_as_it_is_drawn() -> None:
    mask = topology.ancestors(PARENTS, 3)
    assert mask[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 1],
    ]
    assert topology.pack(mask)[0, :, 0].tolist() == [0b1, 0b11, 0b101, 0b1011, 0b10011, 0b101011]
    assert topology.depths(mask).tolist() == [[0, 1, 1, 2, 2, 3]]
    assert topology.leaf_mask(mask).tolist() == [[False, False, True, False, True, True]]
    assert topology.leaf_paths(mask, 3, 3).tolist() == [[[0, 2, -1, -1], [0, 1, 4, -1], [0, 1, 3, 5]]]


def test_the_longest_path_that_the_target_follows_is_accepted_with_its_bonus() -> None:
    mask = topology.ancestors(PARENTS, 3)
    drafts = torch.tensor([[50, 51, 60, 61, 70]])
    targets = torch.tensor([[50, 61, 99, 98, 97, 96]])  # 50 behind the root, 61 behind node 1: the way 0, 1, 4
    accepted = accepting.accept_tree(drafts, targets, PARENTS, mask, 3)
    assert accepted.length.tolist() == [2]
    assert accepted.path.tolist() == [[0, 1, 4, -1]]
    assert accepted.tokens[0, :3].tolist() == [50, 61, 97]
    read, write = accepting.compaction(accepted.path, torch.tensor([10]), torch.tensor([10]))
    assert (read.tolist(), write.tolist()) == ([[11, 14, 13]], [[11, 12, 13]])


def test_where_the_target_follows_no_draft_the_bonus_alone_is_emitted() -> None:
    mask = topology.ancestors(PARENTS, 3)
    accepted = accepting.accept_tree(torch.full((1, 5), 7), torch.full((1, 6), 8), PARENTS, mask, 3)
    assert (accepted.length.tolist(), accepted.path.tolist()) == ([0], [[0, -1, -1, -1]])
    assert accepted.tokens[0, 0] == 8


def test_compaction_level_by_level_reads_no_row_that_it_has_written() -> None:
    """As a kernel may do it that has no room for a copy: in place, from the first level on."""
    dice = random.Random(5)
    for _ in range(50):
        parents = torch.tensor([random_parents(dice, 20, 6)])
        mask = topology.ancestors(parents, 6)
        path = topology.leaf_paths(mask, 6, 20)[:, :1]
        read, write = (rows[0, 0].tolist() for rows in accepting.compaction(path, torch.tensor([[3]]), torch.tensor(3)))
        cache = list(range(40))
        for source, target in zip(read, write, strict=True):
            cache[target] = cache[source]
        nodes = [node for node in path[0, 0].tolist() if node >= 0]
        assert cache[3 : 3 + len(nodes)] == [3 + node for node in nodes]


@pytest.mark.parametrize("parents", [[0, 0, 5], [1, 0, 0], [0, 2, 1], [0, -1, 0]])
def test_masks_of_parents_that_are_no_tree_are_broken(parents: list[int]) -> None:
    mask = topology.ancestors(torch.tensor([[0, 0, 1]]), 2)
    assert topology.broken_rows(topology.pack(mask), torch.tensor([parents])).any()


def test_a_bit_beyond_the_last_row_is_seen() -> None:
    packed = topology.pack(topology.ancestors(PARENTS, 3))
    packed[0, 2, 0] |= 1 << 30
    assert topology.broken_rows(packed, PARENTS)[0].tolist() == [False, False, True, False, False, False]


def test_a_fixed_tree_grows_into_itself_whatever_the_probabilities() -> None:
    shape = TreeShape.of([(0,), (1,), (4,), (0, 0), (1, 0), (1, 2), (0, 0, 1), (1, 2, 0)])
    drafts = [MadeUpDraft(seed, 8) for seed in range(3)]
    paths, parents = grown(drafts, FixedGrowth(shape))
    assert paths == [list(shape.paths)] * 3
    assert parents.tolist() == [list(shape.parents)] * 3


def test_a_dynamic_tree_of_width_one_is_a_chain() -> None:
    paths, parents = grown([MadeUpDraft(1, 1)], DynamicGrowth(4, 1, 4))
    assert tuple(paths[0]) == TreeShape.chain(4).paths
    assert parents.tolist() == [[0, 0, 1, 2, 3]]


def test_exact_ties_go_to_the_earlier_candidates() -> None:
    scores = torch.tensor([[-1.0, -1.0, -2.0, -1.0, -1.0]])
    assert likeliest(scores, 3).tolist() == [[0, 1, 3]]


def test_parents_are_found_among_the_chosen() -> None:
    pool_parents = torch.tensor([[-1, -1, -1, 0, 0, 2, 2, 5, 5]])
    assert parents_of(torch.tensor([[0, 2, 6]]), pool_parents).tolist() == [[0, 0, 0, 2]]
