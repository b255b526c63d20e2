"""Which draft trees the built-in engine takes, and how it refuses the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.engine import tree_option
from specgate.backends.eagle3.cupy.engine.limits import check_rows
from specgate.backends.eagle3.cupy.engine.open import check_options, sizes_of
from specgate.backends.eagle3.cupy.engine.run_parts import tree_counters
from specgate.backends.eagle3.cupy.engine.tree_option import check_draft, check_memory, chosen_tree
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.contract import Finish, PairRef
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.errors import UsageError
from tests.eagle3.cupy.pairs import DRAFT, MIXTURE, TARGET

SMALL = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
REQUEST = OpenRequest(PairRef("some", Path("target"), Path("draft")), "bfloat16", 4, 256, 3, perf_mode=False)


def asked(folder: Path, choices: list[list[int]], **changed: object) -> OpenRequest:
    file = folder / "tree.yaml"
    file.write_text(f"choices: {json.dumps(choices)}\n", encoding="utf-8")
    return replace(REQUEST, options={"tree": str(file)}, **changed)  # type: ignore[arg-type]


def test_a_tree_of_as_many_levels_as_the_longest_role_is_taken(tmp_path: Path) -> None:
    request = asked(tmp_path, SMALL)
    check_options(request.options)
    tree = chosen_tree(request)
    assert tree is not None and tree.rows == 6
    sizes = sizes_of(request, tree)
    assert (sizes.max_rows, sizes.most_drafts, sizes.most_emitted) == (6, 3, 4)
    assert sizes.positions == 256 + 2  # rows that a chain of three has not
    assert [sizes.rows_of(k) for k in range(4)] == [1, 3, 5, 6]
    assert sizes_of(REQUEST, None).max_rows == 4 and sizes_of(REQUEST, None).most_emitted is None


def test_a_tree_with_one_branch_and_a_run_without_drafts_are_what_they_are_without_it(tmp_path: Path) -> None:
    assert chosen_tree(REQUEST) is None
    assert chosen_tree(asked(tmp_path, [[0], [0, 0], [0, 0, 0]])) is None
    assert chosen_tree(asked(tmp_path, SMALL, max_k=0)) is None


def test_a_shorter_role_drafts_the_first_levels_and_a_chain_where_these_are_one() -> None:
    tree = TreeShape.of([(0,), (0, 0), (0, 1), (0, 0, 0)])
    sizes = sizes_of(REQUEST, tree)
    assert [sizes.tree_of(k) for k in (0, 1)] == [None, None]
    assert sizes.tree_of(2) == tree.first_levels(2) and sizes.tree_of(3) == tree


@pytest.mark.parametrize(
    ("choices", "changed", "message"),
    [
        (SMALL, {"max_k": 4}, r"a tree of 3 levels, but the longest draft asked for is spec-4\n  ask for spec-3"),
        (
            [[rank] for rank in range(64)],
            {"max_k": 1, "max_batch": 1},
            r"64 draft tokens; back end cupy verifies at most 63\n  a smaller tree; --backend reference has it",
        ),
        (
            SMALL,
            {"max_batch": 43},
            r"batch 43 of 6 rows each makes 258 rows per step, at most 256 are supported\n  a batch of 42, or",
        ),
        ([[0], [0, 1, 0]], {}, r"a gap: its parent \[0, 1\] is not among the choices"),
    ],
    ids=["levels", "nodes", "rows", "no tree"],
)
def test_a_tree_that_no_kernel_is_made_for_is_refused(
    tmp_path: Path, choices: list[list[int]], changed: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        chosen_tree(asked(tmp_path, choices, **changed))


def test_a_dynamic_tree_is_taken_as_the_reference_takes_it() -> None:
    request = replace(REQUEST, options={"tree": "dynamic:16"})
    check_options(request.options)
    tree = chosen_tree(request)
    assert tree == DynamicGrowth(3, 10, 16)
    sizes = sizes_of(request, tree)
    assert (sizes.max_rows, sizes.most_drafts, sizes.most_emitted) == (17, 3, 4)
    assert sizes.positions == 256 + 20 - 4  # the draft runs on ten nodes of two levels
    assert [sizes.rows_of(k) for k in range(4)] == [1, 11, 17, 17]
    narrow = replace(REQUEST, options={"tree": "dynamic:3", "tree_width": "1"})
    check_options(narrow.options)
    assert chosen_tree(narrow) == DynamicGrowth(3, 1, 3)
    assert chosen_tree(replace(request, max_k=0)) is None


@pytest.mark.parametrize(
    ("options", "changed", "message"),
    [
        ({"tree_width": "4"}, {}, r"option tree_width without tree\n"),
        ({"tree": "x.yaml", "tree_width": "4"}, {}, r"option tree_width with the tree of a file\n"),
        ({"tree": "dynamic"}, {}, r"option tree = dynamic: NODES: a whole number of at least 1 is needed"),
        ({"tree": "dynamic:0"}, {}, r"option tree = dynamic:0: NODES: a whole number of at least 1"),
        ({"tree": "dynamic:8", "tree_width": "0"}, {}, r"option tree_width = 0: a whole number of at least 1"),
        (
            {"tree": "dynamic:2"},
            {},
            r"2 draft tokens reach 2 levels at most, but spec-3 is asked\n  at least dynamic:3",
        ),
        ({"tree": "dynamic:8", "tree_width": "1"}, {}, r"spec-3 has 3 candidates where 1 nodes per level are expanded"),
        ({"tree": "dynamic:64"}, {}, r"64 draft tokens; back end cupy verifies at most 63\n"),
        ({"tree": "dynamic:63"}, {"max_batch": 5}, r"batch 5 of 64 rows each makes 320 rows per step"),
        (
            {"tree": "dynamic:40", "tree_width": "33"},
            {"max_batch": 1},
            r"option tree_width = 33: spec-3 runs the draft on 66 nodes, 33 on each level but the last; back end cupy "
            r"takes at most 64\n  a tree_width of at most 32; --backend reference has it",
        ),
    ],
)
def test_a_dynamic_tree_that_cannot_be_meant_is_refused_by_name(
    options: dict[str, str], changed: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        chosen_tree(replace(REQUEST, options=options, **changed))  # type: ignore[arg-type]


def test_a_target_with_experts_verifies_trees_of_as_many_rows_as_its_kernels_take() -> None:
    tree = TreeShape.of([(rank,) for rank in range(15)])
    check_rows(REQUEST, MIXTURE, tree)
    check_rows(replace(REQUEST, max_batch=5), TARGET, tree)
    plan = PartialPlan(1, 4, 2, 20)
    check_rows(replace(REQUEST, max_batch=2), MIXTURE, plan=plan)
    with pytest.raises(UsageError, match=r"batch 4 at spec-3 and specpv makes 96 rows .*\n.* a smaller specpv_refresh"):
        check_rows(REQUEST, MIXTURE, plan=plan)
    with pytest.raises(
        UsageError, match=r"batch 5 with a tree of 16 rows makes 80 rows .* at most 64 .*\n  a batch of 4"
    ):
        check_rows(replace(REQUEST, max_batch=5), MIXTURE, tree)


def test_a_draft_that_knows_too_few_tokens_is_refused() -> None:
    tree = TreeShape.of([(0,), (12,)])
    check_draft(tree, "tree.yaml", DRAFT)
    with pytest.raises(
        UsageError, match=r"option tree = tree\.yaml: 13 tokens behind a node, but the draft knows 12 in all"
    ):
        check_draft(tree, "tree.yaml", replace(DRAFT, draft_vocab=12))
    with pytest.raises(UsageError, match=r"dynamic:20: 10 tokens behind a node, but the draft knows 9 in all"):
        check_draft(DynamicGrowth(3, 10, 20), "dynamic:20", replace(DRAFT, draft_vocab=9))


def test_a_tree_that_the_gpus_shared_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TreeShape.of([(rank,) for rank in range(63)])
    sizes, wide = sizes_of(REQUEST, tree), replace(TARGET, head_dim=128)
    monkeypatch.setattr(tree_option, "shared_memory_limit", lambda: 100 << 10)
    check_memory(sizes, wide)
    monkeypatch.setattr(tree_option, "shared_memory_limit", lambda: 64 << 10)
    with pytest.raises(UsageError, match=r"over 64 rows needs 75776 bytes of shared memory .* this GPU has 65536\n"):
        check_memory(sizes, wide)


def test_a_block_counts_its_draft_tokens_and_the_masks_that_were_checked() -> None:
    tree = TreeShape.of([(0,), (1,), (0, 0)])
    accepted = ((2, 0), (1, -1), (-1, -1))
    decoded = Decoded(3, (1, 1, 1), ((1,), (2,)), accepted, ((2, 2),) * 3, (0, 0), (Finish.EOS,) * 2)
    counters = tree_counters(tree, decoded, Fault.MASK_INTEGRITY | Fault.KV_INTEGRITY)
    assert counters == {"tree_tokens": 9, "mask_checked_steps": 3, "mask_integrity_failures": 1}
    assert tree_counters(tree, decoded, Fault.KV_INTEGRITY)["mask_integrity_failures"] == 0
