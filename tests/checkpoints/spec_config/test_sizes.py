"""Rules of a speculative config: all that are broken are named; two configs are compared field by field."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.spec_config.sizes import SIZES, SpecConfig, check
from specgate.errors import UsageError
from tests.checkpoints.folders import DRAFT, LLAMA, keys

TARGET = target_geometry(keys(LLAMA))
WINDOWED = draft_geometry(keys(DRAFT, sliding_window=4, use_sliding_window=True), TARGET, ("lm_head.weight",))[0]


def spec3(changes: Mapping[str, object]) -> SpecConfig:
    """Spec-3 as a chain, with `changes`."""
    return SpecConfig.read(
        {"num_speculative_tokens": 3, "max_path_len": 4, "max_decoding_tokens": 4, **changes}, "test"
    )


@given(st.integers(1, 64))
def test_a_chain_breaks_no_rule(k: int) -> None:
    check(SpecConfig.chain(k), "spec")


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1])
def test_a_size_that_is_not_positive_is_named(key: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"^spec: .*{key} = {value}: must be at least 1"):
        check(spec3({key: value}), "spec")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_path_len": 5}, "max_path_len = 5 is more than max_decoding_tokens = 4"),
        ({"max_path_len": 2}, "max_path_len = 2 is less than num_speculative_tokens = 3"),
        ({"max_non_leaves_per_layer": 9}, "max_non_leaves_per_layer = 9 is more than max_decoding_tokens = 4"),
        ({"tp": 2}, "tp = 2 with num_speculative_tokens = 3: several drafts need tp = 1"),
        ({"method": "medusa"}, "method = 'medusa'"),
    ],
)
def test_a_broken_rule_is_named_with_both_values(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^spec: {message}"):
        check(spec3(changes), "spec")


def test_all_broken_rules_are_in_one_message() -> None:
    with pytest.raises(UsageError) as error:
        check(SpecConfig(4, 3, 2, 0, 2), "spec")
    assert len(error.value.message.split("; ")) == 4


def test_several_drafts_may_use_as_many_gpus_as_the_engine_says_and_a_single_one_any() -> None:
    check(SpecConfig.chain(1, tp=2), "spec")
    check(SpecConfig.chain(3, tp=4), "spec", most_tp=4)
    with pytest.raises(UsageError, match="tp = 8 with num_speculative_tokens = 3: several drafts need tp <= 4"):
        check(SpecConfig.chain(3, tp=8), "spec", most_tp=4)


def test_positions_are_held_against_the_target() -> None:
    check(SpecConfig.chain(3), "spec", target=TARGET, positions=2048)
    with pytest.raises(UsageError, match="2049 positions are needed, the target has 2048"):
        check(SpecConfig.chain(3), "spec", target=TARGET, positions=2049)


def test_a_chain_is_held_against_the_drafts_window() -> None:
    check(SpecConfig.chain(4), "spec", draft=WINDOWED)
    with pytest.raises(UsageError, match=r"num_speculative_tokens = 5 in a draft window of 4: .*at most 4"):
        check(SpecConfig.chain(5), "spec", draft=WINDOWED)


def test_missing_sizes_are_those_of_a_chain() -> None:
    assert SpecConfig.read({"num_speculative_tokens": 3}, "engine") == SpecConfig.chain(3)
    assert SpecConfig.read({"num_speculative_tokens": 3, "max_decoding_tokens": 9}, "engine").max_decoding_tokens == 9


def test_what_cannot_be_read_is_named_key_by_key() -> None:
    with pytest.raises(UsageError) as error:
        SpecConfig.read({"max_path_length": 3, "tp": "two", "method": 3}, "engine.json")
    assert error.value.message == (
        "engine.json: num_speculative_tokens is missing; unknown key max_path_length (did you mean max_path_len?); "
        "tp = 'two': an integer is needed; method = 3: a string is needed"
    )
