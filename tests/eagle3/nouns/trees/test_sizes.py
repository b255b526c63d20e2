"""Sizes that a tree needs of an engine, and its expected gain: against sizes counted by hand and trees listed by
force.
"""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest

from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.nouns.trees.sizes import (
    Room,
    advised,
    blocks,
    buffers,
    expected_length,
    likeliest_tree,
    memory,
    too_small,
)
from specgate.checkpoints.spec_config.formats.trtllm import read_object
from specgate.checkpoints.spec_config.sizes import SpecConfig, broken_rules
from tests.pairs.tiny import write_random_pair

SHAPE = TreeShape.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])


def test_the_sizes_of_a_chain_are_those_of_its_config() -> None:
    assert advised(TreeShape.chain(4)) == SpecConfig.chain(4)


def test_advised_sizes_keep_the_rules_and_are_those_that_tensorrt_llms_choices_imply() -> None:
    needed = advised(SHAPE)
    assert list(broken_rules(needed)) == []
    stated = read_object({"decoding_type": "Eagle", "eagle_choices": [list(p) for p in SHAPE.paths]}, "here").terms
    named = {"k": 3, "path_len": 4, "verified": 8, "non_leaves": 2}
    assert {term: stated[term].value for term in named} == named
    assert needed == SpecConfig(3, 4, 8, 2)


def test_every_size_that_is_too_small_is_named() -> None:
    room = Room(1, max_decoding_tokens=7, max_path_len=4, num_speculative_tokens=2, max_non_leaves_per_layer=1)
    assert [sentence.split(" = ")[0] for sentence in too_small(SHAPE, room)] == [
        "num_speculative_tokens",
        "max_decoding_tokens",
        "max_non_leaves_per_layer",
    ]
    assert list(too_small(SHAPE, Room(1, 8, 4, 3, 2))) == []


def test_buffers_are_as_large_as_the_tree_or_as_the_engine_says() -> None:
    own = {b.name: b.shape for b in buffers(SHAPE, Room(2))}
    assert own["draft_paths"] == (2, 8, 4)
    assert own["packed_masks"] == (2, 8, 1)
    engines = {b.name: b for b in buffers(SHAPE, Room(2, max_decoding_tokens=40, max_path_len=6))}
    assert engines["draft_paths"].shape == (2, 40, 6)
    assert (engines["packed_masks"].shape, engines["packed_masks"].bytes) == ((2, 40, 2), 640)
    assert engines["leaf_mask"].bytes == 80


def test_memory_counts_keys_and_values_of_target_and_draft(tmp_path: Path) -> None:
    from specgate.backends.eagle3.lib.pair import open_draft, open_target

    folders = write_random_pair(tmp_path, seed=1)
    target = open_target(folders[0]).geometry
    draft = open_draft(folders[1], target).geometry
    result = memory(SHAPE, Room(2), target, draft, 2)
    per_target, per_draft = 4 * 2 * 2 * 16 * 2, 2 * 2 * 16 * 2
    assert result.position == per_target + per_draft
    assert result.tree == 2 * (8 * per_target + 3 * per_draft)  # nodes with children besides the root: [0], [1], [0, 0]
    assert result.chain == 2 * (4 * per_target + 2 * per_draft)
    assert result.logits == 2 * 8 * 320 * 4
    assert (blocks(8, 16), blocks(17, 16)) == (1, 2)


def test_an_expected_length_sums_what_every_node_adds() -> None:
    assert expected_length(TreeShape.chain(2), [0.5, 0.25]) == 1.75
    assert expected_length(TreeShape.of([(0,), (1,), (1, 0)]), [0.5, 0.25]) == 1.875
    assert expected_length(TreeShape.of([(0,), (3,)]), [0.5, 0.25]) == 1.5


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_no_tree_of_as_many_tokens_is_expected_to_accept_more(nodes: int) -> None:
    """Held against every set of paths on three levels that is a tree."""
    ranks = [0.5, 0.3, 0.1]
    paths = [path for level in (1, 2, 3) for path in product(range(3), repeat=level)]
    trees = (
        TreeShape.of(chosen)
        for chosen in combinations(paths[:20], nodes)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    best = likeliest_tree(nodes, 3, ranks)
    assert best.nodes == nodes
    assert expected_length(best, ranks) == pytest.approx(max(expected_length(tree, ranks) for tree in trees))


def test_the_example_in_the_documentation_is_the_best_tree_of_its_shares() -> None:
    from specgate.backends.eagle3.nouns.trees.file import read_tree
    from tests.support.command import ROOT

    shape = read_tree(ROOT / "docs" / "examples" / "eagle_tree.yaml")
    assert shape == likeliest_tree(16, 4, [0.67, 0.14, 0.02, 0.02])
