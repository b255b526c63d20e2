"""Phases of steps as a Chrome trace: nested ranges with the stamps' times, one file for several engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.phase_trace import PhaseTrace
from specgate.errors import EnvironmentRefused, UsageError

BEGAN = 1_764_000_000_000_000_123
STAMPS = torch.tensor([[0, 100, 900, 950, 1000], [1500, 1600, 2400, 2450, 2500]]) + BEGAN


def test_a_steps_phases_lie_in_it_at_the_gpus_own_times_and_a_second_engine_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "phases.json"
    PhaseTrace(file, "a GPU").add("BASE_DECODE_STEP", STAMPS[:0])
    assert not file.exists()
    PhaseTrace(file, "a GPU").add("EAGLE_CYCLE_SPEC_3", STAMPS)
    PhaseTrace(file, "a GPU").add("BASE_DECODE_STEP", STAMPS[1:] + 10_000)
    first, *events = json.loads(file.read_text().rstrip(",\n") + "]")
    assert first["args"] == {"name": "a GPU", "base_ns": BEGAN}
    times = [(event["name"], event["ts"], event["dur"]) for event in events]
    assert times[:5] == [
        ("EAGLE_CYCLE_SPEC_3", 0.0, 1.0),
        ("EAGLE_DRAFT", 0.0, 0.1),
        ("TARGET_VERIFY", 0.1, 0.8),
        ("EAGLE_ACCEPT", 0.9, 0.05),
        ("EAGLE_TAIL_COMMIT", 0.95, 0.05),
    ]
    assert times[5][:2] == ("EAGLE_CYCLE_SPEC_3", 1.5) and times[10][:2] == ("BASE_DECODE_STEP", 11.5)
    assert [event["args"]["step"] for event in events[::5]] == [0, 1, 0]


@pytest.mark.parametrize("content", ["", "[]", "[1,2]", '[{"name": "x", "args": {}},', "text"])
def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    (file := tmp_path / "other.json").write_text(content)
    with pytest.raises(UsageError, match=r"option phase_trace = .*other\.json: holds no such trace\n  name a new file"):
        PhaseTrace(file, "a GPU")
    assert file.read_text() == content


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=r"option phase_trace = .*gone/phases\.json: No such file"):
        PhaseTrace(tmp_path / "gone" / "phases.json", "a GPU").add("BASE_DECODE_STEP", STAMPS)
