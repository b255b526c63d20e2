"""One rule from config ids to boundaries; contradictions refused; the rule printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.checkpoints.auxiliary_layers import IDS, capture_keys, parse_boundaries, resolve_boundaries
from specgate.errors import CheckpointError, UsageError
from tests.checkpoints.folders import DRAFT, keys


def test_nested_ids_are_outputs_of_layers() -> None:
    capture = resolve_boundaries(keys(DRAFT, eagle_config={IDS: [1, 17, 33]}), 36)
    assert capture.boundaries == (2, 18, 34)
    assert capture.rule == "nested eagle_config ids [1, 17, 33] are outputs of layers: boundaries [2, 18, 34]"


def test_nested_ids_that_reach_the_layer_count_are_boundaries() -> None:
    capture = resolve_boundaries(keys(DRAFT, eagle_config={IDS: [24, 30, 36]}), 36)
    assert capture.boundaries == (24, 30, 36)
    assert "no layer has id 36" in capture.rule


def test_top_level_ids_are_boundaries() -> None:
    capture = resolve_boundaries(keys(DRAFT, **{IDS: [2, 18, 33]}), 36)
    assert (capture.boundaries, capture.rule) == ((2, 18, 33), "top-level ids [2, 18, 33] are boundaries")


def test_nested_layer_ids_are_boundaries() -> None:
    assert resolve_boundaries(keys(DRAFT, eagle_config={"layer_ids": [2, 18, 33]}), 36).boundaries == (2, 18, 33)


@pytest.mark.parametrize("silent", [{}, {IDS: None}, {"eagle_config": None}, {"eagle_config": {IDS: []}}])
def test_without_ids_the_default_of_the_authors_counts(silent: dict[str, object]) -> None:
    capture = resolve_boundaries(keys(DRAFT, **silent), 30)
    assert capture.boundaries == (2, 15, 27)
    assert "default boundaries 2, n // 2, n - 3 = [2, 15, 27]" in capture.rule


def test_keys_that_contradict_each_other_are_refused_with_both_readings() -> None:
    config = keys(DRAFT, **{IDS: [1, 17, 33], "eagle_config": {IDS: [1, 17, 33]}})
    with pytest.raises(CheckpointError) as error:
        resolve_boundaries(config, 36)
    assert "top-level ids [1, 17, 33] are boundaries" in error.value.message
    assert "boundaries [2, 18, 34]" in error.value.message
    assert error.value.hint is not None and "--option capture=2,18,34" in error.value.hint


def test_an_override_wins_over_contradicting_keys() -> None:
    config = keys(DRAFT, **{IDS: [1, 17, 33], "eagle_config": {IDS: [1, 17, 33]}})
    capture = resolve_boundaries(config, 36, [2, 18, 33])
    assert (capture.boundaries, capture.rule) == ((2, 18, 33), "override: boundaries [2, 18, 33]")


@pytest.mark.parametrize("override", [None, (2, 18, 37)])
def test_a_boundary_beyond_the_target_is_refused_with_its_layer_count(override: tuple[int, ...] | None) -> None:
    config = keys(DRAFT, eagle_config={IDS: [1, 17, 39]})
    with pytest.raises(CheckpointError, match=r"has 36 layers, so boundaries 0 to 36\n.*another target"):
        resolve_boundaries(config, 36, override)


@pytest.mark.parametrize("ids", [[18, 2, 33], [2, 2, 33]])
def test_boundaries_that_do_not_ascend_are_refused(ids: list[int]) -> None:
    with pytest.raises(CheckpointError, match=r"ids \[.*\] are boundaries: not ascending"):
        resolve_boundaries(keys(DRAFT, **{IDS: ids}), 36)


def test_the_default_of_a_target_too_small_for_it_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"n - 3 = \[2, 2, 1\]: not ascending"):
        resolve_boundaries(keys(DRAFT), 4)


def test_ids_that_are_no_list_of_integers_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r'eagle_config\.eagle_aux_hidden_state_layer_ids = "1,17"\n.*list'):
        resolve_boundaries(keys(DRAFT, eagle_config={IDS: "1,17"}), 36)


@given(st.sets(st.integers(1, 36), min_size=1, max_size=5).map(sorted))
def test_what_is_written_resolves_to_the_boundaries_it_was_written_for(boundaries: list[int]) -> None:
    assert resolve_boundaries(keys(DRAFT, **capture_keys(boundaries)), 36).boundaries == tuple(boundaries)


@given(st.sets(st.integers(1, 36), min_size=1, max_size=5).map(sorted))
def test_each_convention_alone_resolves_what_is_written_in_both(boundaries: list[int]) -> None:
    for key, value in capture_keys(boundaries).items():
        assert resolve_boundaries(keys(DRAFT, **{key: value}), 36).boundaries == tuple(boundaries)


def test_the_embedding_is_the_output_of_no_layer_and_written_as_a_boundary_alone() -> None:
    assert capture_keys((0, 1, 2)) == {IDS: [0, 1, 2]}
    assert resolve_boundaries(keys(DRAFT, **capture_keys((0, 1, 2))), 36).boundaries == (0, 1, 2)


def test_the_option_lists_boundaries_separated_by_commas() -> None:
    assert parse_boundaries("2, 18,34") == (2, 18, 34)
    with pytest.raises(UsageError, match=r"option capture = '2;18'\n.*commas"):
        parse_boundaries("2;18")
