"""What is known of a pair before a run, and what follows from it for the gates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.core import Cell, PairRef, Point, Policy, Role, Rule
from specgate.errors import CheckpointError
from specgate.planning.byte_outlook import Planted, of_cell, planted_of
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
    assert gives == f"  at the planted AL of 2.90 and an expert overlap of 0.40, {speed:.2f}× with both at their floors"
    assert rule.startswith("  fast (min 1.5×): at the planted AL of 2.90, it takes an expert overlap of 0.")
    assert rule.endswith(" or more (it is 0.40)")


def test_without_a_measured_overlap_only_the_gates_are_spoken_of() -> None:
    (rule,) = said(Planted({3: 2.9}, ()), FAST)
    assert "at the planted AL of 2.90, it takes" in rule and "it is" not in rule
    assert said(None) == []


def test_a_pair_that_was_not_planted_is_held_to_the_length_that_the_policy_asks_for() -> None:
    assert said(None, LONG, FAST)[0].startswith("  fast (min 1.5×): at the AL of 3 that long asks for, it takes")
    assert said(None, FAST)[0].startswith("  fast (min 1.5×): with every draft accepted (AL 4), it takes")
    (beyond,) = said(None, Rule("fast", "speed", True, params={"min": 3.9}))
    assert beyond.endswith(f"out of reach where all is at its floor: at most {4 / cycle(4.0):.2f}×")


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
