"""`eagle_tree.yaml`: what is read, and every way in which a file is no tree, named with line, key and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.eagle3.nouns.trees.file import read_tree
from specgate.backends.eagle3.nouns.trees.shape import DEEPEST, MOST_NODES, WIDEST, TreeShape
from specgate.errors import UsageError

MEDUSA = "[[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0]]"


def written(folder: Path, text: str) -> Path:
    file = folder / "eagle_tree.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as error:
        read_tree(written(folder, text))
    return str(error.value)


@pytest.mark.parametrize("key", ["choices", "eagle_choices", "medusa_choices"])
def test_choices_are_read_in_any_order_and_numbered_level_by_level(tmp_path: Path, key: str) -> None:
    shape = read_tree(written(tmp_path, f"{key}: {MEDUSA}\n"))
    assert shape.paths == ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    assert shape.parents == (0, 0, 0, 0, 1, 1, 2, 4)
    assert (shape.nodes, shape.rows, shape.depth) == (7, 8, 3)
    assert shape.level_sizes == (3, 3, 1)
    assert shape.non_leaves == (1, 2, 1)
    assert shape.leaves == (3, 5, 6, 7)
    assert shape.branching == (7 / 4, 3)
    assert not shape.is_chain


def test_parents_say_the_same_tree_in_another_order(tmp_path: Path) -> None:
    by_parents = read_tree(written(tmp_path, "parents: [0, 1, 0, 1, 0, 2, 3]\n"))
    assert by_parents == read_tree(written(tmp_path, f"choices: {MEDUSA}\n"))


def test_a_node_may_come_before_its_parent(tmp_path: Path) -> None:
    assert read_tree(written(tmp_path, "parents: [2, 0]\n")) == TreeShape.chain(2)


def test_a_chain_is_the_tree_with_one_branch(tmp_path: Path) -> None:
    shape = read_tree(written(tmp_path, "choices: [[0], [0, 0], [0, 0, 0]]\n"))
    assert shape == TreeShape.chain(3)
    assert shape.is_chain
    assert shape.non_leaves == (1, 1, 1)


def test_a_tree_cut_to_its_first_levels_is_still_a_tree(tmp_path: Path) -> None:
    shape = read_tree(written(tmp_path, f"choices: {MEDUSA}\n"))
    assert shape.first_levels(2).paths == ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0))
    assert shape.first_levels(1).parents == (0, 0, 0, 0)


def test_ranks_that_skip_a_likelier_sibling_are_counted_but_allowed() -> None:
    assert TreeShape.of([(0,), (2,), (0, 1)]).skipped_ranks == 2


def test_two_files_of_the_same_tree_have_the_same_digest(tmp_path: Path) -> None:
    first = read_tree(written(tmp_path, f"choices: {MEDUSA}\n")).sha256
    assert read_tree(written(tmp_path, f"# a comment\neagle_choices: {MEDUSA}\n")).sha256 == first
    assert TreeShape.chain(3).sha256 != first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("choices: [[0], [1], [0]]", "eagle_tree.yaml:1: choices[2]: [0]: a duplicate of choices[0] on line 1"),
        ("choices:\n- [0]\n- [1, 0]", "eagle_tree.yaml:3: choices[1]: [1, 0]: a gap: its parent [1] is not among the"),
        (f"choices: [{[0] * 40}]", f"too deep: level 40; a tree has at most {DEEPEST}"),
        ("choices: [[64]]", f"too wide: rank 64; a node has at most {WIDEST} children"),
        ("choices: [[-1]]", "choices[0]: [-1]: rank -1: the likeliest child has rank 0"),
        ("choices: [[0], []]", "choices[1]: []: an empty path is the root"),
        ("choices: []", "eagle_tree.yaml:1: choices: []: empty: a tree has at least one node"),
        ("choices: [[0.5]]", "choices[0][0]: 0.5:"),
        ("choices: [0, 1]", "choices[0]: 0:"),
        ("choices: null", "no tree in this file"),
        ("tree: [[0]]", "no such key"),
        ("choices: [[0]]\nparents: [0]", "choices and parents are both given"),
        ("parents: [1]", "eagle_tree.yaml:1: parents[0]: 1: a cycle: node 1 is its own parent"),
        ("parents: [0, 3, 4, 2]", "parents[1]: 3: a cycle: the parents of node 2 → 3 → 4 → 2"),
        ("parents: [0, 5]", "parents[1]: 5: a gap: there is no node 5; nodes are 0 (the root) to 2"),
        ("parents: [-1]", "a gap: there is no node -1"),
        (f"parents: {[0] * 65}", f"too wide: node 0 has 65 children; at most {WIDEST} are possible"),
        (f"parents: {list(range(33))}", "parents[32]: 32: too deep: node 33 is at level 33; a tree has at most 32"),
        (f"parents: {[0] * (MOST_NODES + 1)}", f"parents: too many nodes: 1024; at most {MOST_NODES} are possible"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_named_with_its_place_and_value(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text + "\n")


def test_every_bad_path_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, "choices:\n- [0]\n- [0]\n- [3, 1]\n- [0, 99]\n")
    assert "3 problems" in message
    assert all(f"eagle_tree.yaml:{line}: choices[{line - 2}]" in message for line in (3, 4, 5))


def test_two_circles_are_both_named(tmp_path: Path) -> None:
    message = refused(tmp_path, "parents: [2, 1, 0, 5, 4, 1]\n")
    assert "node 1 → 2 → 1" in message
    assert "node 4 → 5 → 4" in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read: No such file"):
        read_tree(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["[[0], [1], [0, 0]]", "- [0]\n- [1]\n", "mc_sim = [[0], [1], [0, 0]]"])
def test_a_list_without_a_key_gets_the_advice_to_write_one(tmp_path: Path, text: str) -> None:
    for name in ("medusa.json", "medusa.yaml", "choices.py"):
        (file := tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=name) as error:
            read_tree(file)
        assert (error.value.hint or "").startswith("write `choices:` before the list")
