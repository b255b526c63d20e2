"""Nothing is left out of what is compiled."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set

from specgate.backends.eagle3.cupy.kernels.loader import Spec, entry_points, kernel_files
from tests.eagle3.cupy.kernels.compiled.covering import Kind, covering, is_tree, kind_of, largest_of_kind, pairs_of
from tests.eagle3.cupy.kernels.compiled.sweep import SIZES, by_wgmma, code_of, without_twins


def test_every_file_takes_part_in_a_step_or_a_prefill_or_measures_the_device(specs: list[Spec]) -> None:
    specs = [*specs, *by_wgmma()]
    assert {f"{spec.stem}.cu" for spec in specs} == {name for name in kernel_files() if name.endswith(".cu")}
    assert "read_memory" not in entry_points() and "matmul_rows" in entry_points()
    assert not [name for name in entry_points() if name.startswith("prefill")]
    text = "".join(spec.source for spec in specs)
    assert all(f'#line 1 "{name}"' in text for name in kernel_files() if name.endswith(".cuh"))


def test_no_code_but_of_attention_is_left_out_on_any_architecture(specs: list[Spec]) -> None:
    def codes(of: Sequence[Spec]) -> set[tuple[object, ...]]:
        return {code_of(spec) for spec in of if spec.stem != "attention"}

    assert all(codes(kept) == codes(specs) for kept in covering(specs).values())
    assert {*map(code_of, without_twins(specs))} == {*map(code_of, specs)}
    left_out = {spec.stem for spec in {*specs} - {*without_twins(specs)}}
    assert left_out == SIZES.keys()  # each has something that it spares


def test_of_attention_no_kind_of_a_trees_and_no_pair_of_a_chains_parts_is_left_out_on_any_architecture(
    specs: list[Spec],
) -> None:
    def kinds(of: Sequence[Spec], *, tree: bool) -> set[Kind]:
        return {kind_of(spec) for spec in of if spec.stem == "attention" and is_tree(spec) == tree}

    def pairs(of: Set[Kind]) -> set[tuple[tuple[str, Hashable], ...]]:
        return {pair for kind in of for pair in pairs_of(kind)}

    covered, chains = covering(specs), kinds(specs, tree=False)
    assert all(kinds(kept, tree=True) == kinds(specs, tree=True) for kept in covered.values())
    hands = [kinds(kept, tree=False) for kept in covered.values()]
    assert all(pairs(hand) == pairs(chains) and 2 * len(hand) < len(chains) for hand in hands)
    assert set[Kind]().union(*hands) == chains


def test_of_attentions_of_one_kind_that_with_most_rows_is_compiled(specs: list[Spec]) -> None:
    attentions = [spec for spec in without_twins(specs) if spec.stem == "attention" and is_tree(spec)]
    for kind, kept in largest_of_kind(attentions).items():
        rows = [int(dict(spec.constants)["TREE_ROWS"]) for spec in attentions if kind_of(spec) == kind]
        assert int(dict(kept.constants)["TREE_ROWS"]) == max(rows)
