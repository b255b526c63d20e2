"""`-o tree=…`: what is read from it, and what it is refused for before any weight is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.lib.trees.options import DEFAULT_WIDTH
from specgate.backends.eagle3.reference.open import open_engine
from specgate.backends.eagle3.reference.tree import plan_tree
from specgate.contract import Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError
from tests.pairs.tiny import write_random_pair


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "eagle_tree.yaml"
    path.write_text("choices: [[0], [1], [0, 0]]\n")
    return path


def test_no_tree_is_asked_for_by_default() -> None:
    assert plan_tree({"device": "cpu"}, 3, "cpu") is None


def test_a_file_is_read_and_a_shorter_role_takes_its_first_levels(file: Path) -> None:
    plan = plan_tree({"tree": str(file)}, 2, "cpu")
    assert plan is not None
    assert (plan.nodes, plan.rows) == (3, 4)
    assert [(g.levels, g.nodes) for g in (plan.growth(2, "cpu"), plan.growth(1, "cpu"))] == [(2, 3), (1, 2)]


def test_a_dynamic_tree_has_a_width_of_its_own_and_no_more_nodes_than_candidates() -> None:
    plan = plan_tree({"tree": "dynamic:24"}, 4, "cpu")
    assert plan is not None
    assert plan.growth(4, "cpu") == DynamicGrowth(4, DEFAULT_WIDTH, 24)
    assert plan.growth(1, "cpu").nodes == DEFAULT_WIDTH
    narrow = plan_tree({"tree": "dynamic:24", "tree_width": "3"}, 4, "cpu")
    assert narrow is not None
    assert narrow.growth(4, "cpu") == DynamicGrowth(4, 3, 24)


@pytest.mark.parametrize(
    ("options", "k", "message"),
    [
        ({"tree_width": "4"}, 3, "option tree_width without tree"),
        ({"tree": "dynamic"}, 3, "option tree = dynamic: NODES: a whole number of at least 1 is needed"),
        ({"tree": "dynamic:0"}, 3, "a whole number of at least 1"),
        ({"tree": "dynamic:-3"}, 3, "a whole number of at least 1"),
        ({"tree": "dynamic:" + "9" * 5000}, 3, "a whole number of at least 1"),
        ({"tree": "dynamic:8", "tree_width": "x"}, 3, "option tree_width = x: a whole number of at least 1 is needed"),
        ({"tree": "dynamic:2"}, 3, "2 draft tokens reach 2 levels at most, but spec-3 is asked"),
        ({"tree": "dynamic:50", "tree_width": "3"}, 3, "spec-3 has 21 candidates where 3 nodes per level are expanded"),
        ({"tree": "dynamic:64"}, 3, "on a CPU the reference engine verifies at most 63 bit-exactly"),
        ({"tree": "none.yaml"}, 3, "none.yaml: cannot be read"),
    ],
)
def test_a_tree_that_cannot_be_meant_is_refused_by_name(options: dict[str, str], k: int, message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_tree(options, k, "cpu")
    assert message in str(error.value)


def test_a_tree_of_other_levels_than_the_longest_role_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="a tree of 2 levels, but the longest draft asked for is spec-3"):
        plan_tree({"tree": str(file)}, 3, "cpu")
    with pytest.raises(UsageError, match="tree_width with the tree of a file"):
        plan_tree({"tree": str(file), "tree_width": "2"}, 2, "cpu")


def test_an_engine_is_opened_with_a_tree_and_refused_one_that_is_wider_than_its_draft(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path, seed=1, draft_vocab=4)
    pair = PairRef("tiny", target, draft)
    request = OpenRequest(pair, "float32", 2, 64, 2, False, {"device": "cpu", "tree": "dynamic:6", "tree_width": "3"})
    assert open_engine(request).facts().details["draft tree"] == "dynamic: the 6 likeliest tokens, 3 nodes wide"
    wide = OpenRequest(pair, "float32", 2, 64, 2, False, {"device": "cpu", "tree": "dynamic:6", "tree_width": "6"})
    with pytest.raises(UsageError, match="6 tokens behind a node, but the draft knows 4 in all"):
        open_engine(wide)


def test_a_file_with_one_branch_is_opened_as_the_chain_that_it_is(tmp_path: Path) -> None:
    target, draft = write_random_pair(tmp_path, seed=1)
    (tmp_path / "chain.yaml").write_text("choices: [[0], [0, 0]]\n")
    options = {"device": "cpu", "tree": str(tmp_path / "chain.yaml")}
    engine = open_engine(OpenRequest(PairRef("tiny", target, draft), "float32", 1, 64, 2, False, options))
    assert engine.tree is None
    assert "draft tree" not in engine.facts().details
    engine.prefill([[1, 2, 3]], draft=True)
    assert "tree_tokens" not in engine.decode(Role(2), Budget(steps=3), ()).counters
