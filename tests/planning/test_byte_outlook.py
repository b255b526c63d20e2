"""Facts about a pair before a run, and their consequences for the gates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract import Cell, PairRef, Point, Policy, Role, Rule
from specgate.errors import CheckpointError
from specgate.planning.byte_outlook import Planted, amount, of_cell, planted_of
from tests.support.experts import EXPERTS, ROUTED

CELL = Cell(Point("s", "fake", 64, 1), Role(3))
FAST = Rule("fast", "speed", True, params={"min": 1.5})
LONG = Rule("long", "acceptance", True, params={"min": 3.0})


def said(planted: Planted | None, *rules: Rule) -> list[str]:
    return list(of_cell(ROUTED, CELL, planted, Policy("mine", rules)))[1:]


def cycle(touched: float) -> float:
    """Bytes of a cycle over those of a step, by hand."""
    draft = 0.85e9 + 2 * 0.75e9
    return (3e9 + 4 * 8192 + touched * 4 * 50e6 + draft) / (3e9 + 8192 + 4 * 4 * 50e6)


def test_a_planted_pair_is_held_to_the_length_and_the_overlap_that_it_was_made_with() -> None:
    touched = (4.0, EXPERTS.distinct(2, 0.4), EXPERTS.distinct(3, 0.4), EXPERTS.distinct(4, 0.4))
    gives, rule = said(Planted({3: 2.9}, touched), FAST, LONG)
    speed = 2.9 / cycle(EXPERTS.distinct(4, 0.4))
    assert gives == (
        f"  the planted AL of 2.90 and an expert overlap of 0.40 give {speed:.2f}× with step and cycle at their floors"
    )
    assert rule.startswith("  fast (min 1.5×): at the planted AL of 2.90, it takes an expert overlap of 0.")
    assert rule.endswith(" or more (it is 0.40)")


def test_without_a_measured_overlap_only_the_gates_are_spoken_of() -> None:
    (rule,) = said(Planted({3: 2.9}, ()), FAST)
    assert "at the planted AL of 2.90, it takes" in rule and "it is" not in rule
    assert said(None) == []


def test_a_planted_length_that_no_overlap_helps_is_not_called_out_of_reach() -> None:
    (rule,) = said(Planted({3: 1.2}, ()), FAST)
    assert rule.endswith(
        f"the planted AL of 1.20 does not do at any overlap; it takes an AL of {1.5 * cycle(4.0):.2f} at overlap 1"
    )


def test_without_a_planted_length_a_gate_takes_one_at_overlap_1_and_one_at_overlap_0() -> None:
    apart = cycle(EXPERTS.distinct(4))
    (rule,) = said(None, replace(FAST, params={"min": 1.2}))
    assert (
        rule
        == f"  fast (min 1.2×): it takes an AL of {1.2 * cycle(4.0):.2f} at overlap 1, {1.2 * apart:.2f} at overlap 0"
    )
    (capped,) = said(None, replace(FAST, params={"min": 4 / cycle(EXPERTS.distinct(4, 0.3))}))
    least = 4 * cycle(4.0) / cycle(EXPERTS.distinct(4, 0.3))
    assert capped.endswith(
        f"it takes an AL of {least:.2f} at overlap 1; below an overlap of 0.30 not even AL 4 would do"
    )
    assert "AL of 1.00 at overlap 1" in said(None, replace(FAST, params={"min": 0.1}))[0]  # no cycle gives less


def test_what_an_acceptance_rule_asks_for_at_least_puts_no_speed_out_of_reach() -> None:
    little = Rule("other-acceptance", "acceptance", True, params={"min": 1.1})
    assert said(None, little, FAST) == said(None, FAST)
    assert "out of reach" not in said(None, little, FAST)[0]


@pytest.mark.parametrize("planted", [None, Planted({3: 2.9}, ())])
def test_out_of_reach_is_only_what_every_draft_accepted_and_all_experts_shared_do_not_give(
    planted: Planted | None,
) -> None:
    most = 4 / cycle(4.0)
    (beyond,) = said(planted, replace(FAST, params={"min": most * 1.001}))
    assert beyond.endswith(
        f"out of reach with step and cycle at their floors: {most:.2f}× at most, at AL 4 and overlap 1"
    )
    assert "out of reach" not in said(planted, replace(FAST, params={"min": most * 0.999}))[0]


def test_an_overlap_that_reads_0_00_is_not_asked_for() -> None:
    just = replace(FAST, params={"min": 4 / cycle(EXPERTS.distinct(4, 0.001))})
    assert said(None, just)[0].endswith(", 4.00 at overlap 0")
    assert said(Planted({3: 4.0}, ()), just)[0].endswith("it takes no overlap")


def test_bytes_are_told_in_a_unit_that_shows_them() -> None:
    assert [amount(size) for size in (6.218e9, 1e8, 99e6, 12_345.0)] == ["6.22 GB", "0.10 GB", "99.00 MB", "0.01 MB"]


def drafted(folder: Path, planted: object) -> PairRef:
    (folder / "config.json").write_text(json.dumps({"planted": planted} if planted else {"model_type": "llama"}))
    return PairRef("mine", folder, folder)


def test_the_config_of_a_planted_draft_says_what_is_known(tmp_path: Path) -> None:
    section = {"predicted_acceptance_length": {"spec-1": 1.8, "spec-3": 3.0}, "measured": {"experts_touched": [4, 7.5]}}
    assert planted_of(drafted(tmp_path, section)) == Planted({1: 1.8, 3: 3.0}, [4, 7.5])
    assert planted_of(drafted(tmp_path, {"measured": {}})) == Planted({}, [])
    assert planted_of(drafted(tmp_path, None)) is None
    assert planted_of(PairRef("mine", tmp_path, None)) is None


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"measured": {"experts_touched": "4"}}, "experts_touched"),
        ({"measured": {"experts_touched": [4, None]}}, "experts_touched"),
        ({"measured": {"experts_touched": [True]}}, "experts_touched"),
        ({"predicted_acceptance_length": {"spec-x": 2}}, "spec-x"),
        ({"predicted_acceptance_length": {"spec-3": "2"}}, "spec-3"),
    ],
)
def test_a_config_that_holds_something_else_is_refused_by_name(tmp_path: Path, section: object, key: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json.*{key}"):
        planted_of(drafted(tmp_path, section))
