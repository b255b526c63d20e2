"""The benchmark of trees: the steps that it compares, what it prints, and the bytes that it counts."""

from __future__ import annotations

import pytest
import torch

from bench.tree_steps import (
    OWN,
    Own,
    bytes_moved,
    own_kernels,
    own_lines,
    prepare_path,
    stage_of,
    step_lines,
    times,
    tree_of,
)
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import maxima_of
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from tests.eagle3.cupy.bench.staged import no_launches
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, TARGET, without_weights

GEOMETRY = Geometry(TARGET, DRAFT, BOUNDARIES)


def test_a_tree_has_the_rows_that_are_asked_for_on_as_many_levels() -> None:
    assert [(tree_of(rows, 5).rows, tree_of(rows, 5).depth) for rows in (8, 32, 64)] == [(8, 5), (32, 5), (64, 5)]


def test_each_of_a_trees_own_kernels_is_in_its_step_and_moves_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    tree, pair = tree_of(16, 5), without_weights(TARGET, DRAFT, BOUNDARIES, 100 + 2048)
    stage = stage_of(GEOMETRY, pair, 100, 2, tree, NOTHING_TUNED, "meta")
    stage.run()
    calls = {name: [call for call in stage.calls if call.kernel.spec.stem == name] for name in OWN}
    assert [len(of) for of in calls.values()] == [0, tree.depth, 0, 0, 1]
    moved = {name: [bytes_moved(call) for call in of] for name, of in calls.items()}
    scanned = 2 * maxima_of(DRAFT.draft_vocab) * 4
    assert moved["tree_token"][0] == scanned + 2 * tree.non_leaves[1] * DRAFT.hidden * 14
    assert moved["tree_token"][-1] == tree.non_leaves[4] * scanned  # the draft runs on none of the last level
    path = TARGET.layers * TARGET.kv_heads * TARGET.head_dim * 2 * 2 + 3 * TARGET.hidden * 2
    assert moved["tree_settle"] == [2 * 2 * tree.depth * path + 2 * 16 * 24]
    chain = stage_of(GEOMETRY, pair, 100, 2, 3, NOTHING_TUNED, "meta")
    assert chain.sizes.tree is None and chain.cycle.chain is not None and chain.sizes.max_rows == 4


def test_a_dynamic_trees_own_kernels_are_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    growth, pair = DynamicGrowth(3, 4, 15), without_weights(TARGET, DRAFT, BOUNDARIES, 100 + 2048)
    stage = stage_of(GEOMETRY, pair, 100, 2, growth, NOTHING_TUNED, "meta")
    stage.run()
    calls = {name: [call for call in stage.calls if call.kernel.spec.stem == name] for name in OWN}
    assert [len(of) for of in calls.values()] == [3, 0, 2, 1, 1]
    moved = {name: [bytes_moved(call) for call in of] for name, of in calls.items()}
    assert moved["tree_grow"] == [2 * 4 * DRAFT.hidden * 14] * 2
    assert moved["tree_choose"] == [2 * growth.pool * 8]


def test_the_path_of_the_last_leaf_is_the_one_that_is_moved() -> None:
    tree = tree_of(16, 5)
    stage = stage_of(GEOMETRY, random_pair(GEOMETRY, 2148, "meta"), 100, 2, tree, NOTHING_TUNED, "cpu")
    prepare_path(stage)
    drafted = stage.b.slots.drafts
    path = [0, *(node + 1 for node in range(tree.nodes) if int(drafted[0, node]) < 0)]
    assert path[-1] == tree.rows - 1 and torch.equal(drafted[0], drafted[1])
    assert [tree.parents[node] for node in path[1:]] == path[:-1]


def test_steps_are_printed_beside_the_first_and_own_kernels_beside_the_goal() -> None:
    assert list(step_lines({"baseline": 5000.0, "tree": 6000.0})) == [
        "baseline                        5000.0 us/step   1.000",
        "tree                            6000.0 us/step   1.200",
    ]
    lines = list(own_lines([Own("tree_top", 4, 9.0, 0.5), Own("tree_settle", 1, 2.0, 0.01)]))
    assert lines[0] == "  tree_top        4 launches     9.0 us  floor   0.50 us"
    assert lines[-1].endswith("11.0 us  (within 20 us)")
    assert list(own_lines([Own("tree_top", 4, 21.0, 0.5)]))[-1].endswith("(MORE THAN 20 us)")


@pytest.mark.gpu
def test_all_steps_and_kernels_can_be_captured_and_timed() -> None:
    stream = Stream()
    with torch.inference_mode(), stream.current():
        pair = random_pair(GEOMETRY, 2148, "cuda")
        grown = stage_of(GEOMETRY, pair, 100, 2, tree_of(16, 5), NOTHING_TUNED, "cuda")
        growth = stage_of(GEOMETRY, pair, 100, 2, DynamicGrowth(3, 4, 15), NOTHING_TUNED, "cuda")
        chain = stage_of(GEOMETRY, pair, 100, 2, 3, NOTHING_TUNED, "cuda")
        stages = {"chain": chain, "tree": grown, "dynamic": growth}
        for stage in stages.values():
            stage.run()
        found, own = times(stages, stream, 1), own_kernels(grown, stream, 1e6)
        own += own_kernels(growth, stream, 1e6)
    assert all(took > 0 for took in found.values()) and all(each.took_us > 0 for each in own)
