"""Noise profiles: what an A/A run amounts to, and the margins that it refuses."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specgate.analysis.intervals.between_runs import LEAST
from specgate.contract import BetweenRuns, Block, Cell, Schedule, State
from specgate.contract.cycle_budget import Bandwidth
from specgate.errors import InvalidResult
from specgate.files.json_text import to_plain
from specgate.machine import bandwidth, inventory
from specgate.machine.noise_profile import (
    SCHEMA,
    NoiseProfile,
    between_runs,
    effect,
    effects,
    file_of,
    profile_of,
    warnings,
)
from specgate.run.calibration import noise_of, once, reduce, twice
from tests.support.factories import block, plan_of, scenario

PLAN = plan_of(scenario(rounds=4))  # 16 pairs; looks after 8 and 16
SCENARIO = PLAN.scenarios["demo-64"]
BASE, SPEC = PLAN.cells


def measured(sd: float = 0.004, second_slower: float = 0.0, drift: float = 0.0) -> list[Block]:
    """Every round with each role twice; the second block of a couple takes longer, and every block longer still."""
    noise = np.random.default_rng(1)
    made: list[Block] = []
    for round_ in twice(PLAN).rounds:
        for slot, role in enumerate(round_.order):
            factor = math.exp(noise.normal(0, sd) + second_slower * (slot % 2) + drift * len(made))
            made.append(block(round_, role, step_ns=round(10_000_000 * factor), position_in_round=slot))
    return made


def profile(**changes: float) -> NoiseProfile:
    return reduce(PLAN, [measured(**changes)], 2.0, "run", {"device": "a CPU"})


def test_two_blocks_of_each_role_run_in_a_row_in_both_directions() -> None:
    orders = [[str(role) for role in r.order] for r in twice(PLAN).rounds][-2:]
    forward = ["baseline", "baseline", "spec-3", "spec-3"]
    assert sorted(orders) == sorted([forward, forward[::-1]])


def test_a_machine_that_agrees_with_itself_is_accepted_with_its_noise() -> None:
    made = profile()
    assert made.accepted and set(made.cells) == {BASE.key, SPEC.key}
    assert made.cells[BASE.key].pairs == 16
    assert made.cells[BASE.key].sd == pytest.approx(0.004 * math.sqrt(2), rel=0.5)
    assert warnings(made) == ()


def test_a_cost_of_the_second_place_is_an_order_effect_and_no_difference() -> None:
    noise = noise_of(PLAN, BASE, measured(second_slower=0.03), 2.0)
    assert noise.state is State.PASS
    assert noise.order_effect == pytest.approx(-0.03, abs=0.005)


def test_a_steady_trend_is_reported_as_drift_per_block_of_the_cell() -> None:
    """Between two blocks of a cell's own there are, on average, as many of the other one's."""
    assert noise_of(PLAN, BASE, measured(sd=1e-6, drift=0.001), 2.0).drift_per_block == pytest.approx(0.002, rel=0.1)


def test_noise_that_hides_the_margin_rejects_the_machine_and_later_runs_say_so() -> None:
    made = profile(sd=0.1)
    assert not made.accepted and made.cells[BASE.key].state is State.INCONCLUSIVE
    assert "rejects this machine" in warnings(made)[0]


def test_half_a_couple_is_left_out_and_too_few_are_refused() -> None:
    blocks = measured()
    assert noise_of(PLAN, SPEC, blocks[:-1] if blocks[-1].cell == SPEC else blocks[1:], 2.0).pairs >= 15
    with pytest.raises(InvalidResult, match="too few"):
        noise_of(PLAN, SPEC, blocks[:12], 2.0)


def test_cells_that_were_not_calibrated_have_no_effect() -> None:
    other = Cell(replace(SPEC.point, context=128), SPEC.role)
    made = profile()
    assert effects(PLAN, replace(made, cells={other.key: made.cells[SPEC.key]})) == {}
    assert effects(PLAN, None) == {}


def test_a_noise_profile_is_read_back_from_beside_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "gpus", list)
    out = tmp_path / "runs"
    assert profile_of(out) is None
    file = file_of(out)
    assert file == tmp_path / "noise" / "cpu.json"
    file.parent.mkdir()
    made = profile()
    file.write_text(json.dumps({"schema": SCHEMA, **to_plain(NoiseProfile, made)}))
    assert profile_of(out) == made
    file.write_text("{}")
    with pytest.raises(InvalidResult, match="schema"):
        profile_of(out)


def test_a_gpus_noise_profile_is_named_by_its_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(inventory, "gpus", lambda: [{"uuid": "GPU-1a2b3c4d-0000"}])
    assert file_of(tmp_path / "runs").name == "1a2b3c4d.json"


# ── between runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def process(faster: float) -> list[Block]:
    """The rounds of a further process in which spec is faster by this log-ratio."""
    made = []
    for round_ in once(PLAN).rounds:
        for slot, role in enumerate(round_.order):
            factor = math.exp(-faster) if role.speculative else 1.0
            made.append(block(round_, role, step_ns=round(10_000_000 * factor), position_in_round=slot))
    return made


def several(*shifts: float, **facts: str) -> NoiseProfile:
    return reduce(PLAN, [measured(sd=1e-6), *map(process, shifts)], 2.0, "run", {"device": "a CPU", **facts})


def test_a_further_process_runs_every_prompt_set_once_in_each_order() -> None:
    kept = [r for r in once(PLAN).rounds if not r.warmup]
    assert len(kept) == 8 and {r.index for r in kept} == {0, 1}


def test_the_spread_of_processes_is_measured_for_speculation_alone() -> None:
    made = several(0.004, -0.004, 0.0)
    assert made.cells[BASE.key].between_processes is None
    between_processes = made.cells[SPEC.key].between_processes
    assert between_processes is not None
    assert between_processes.process_sd == pytest.approx(statistics.stdev([0, 0.004, -0.004, 0]), 0.01)
    assert between_processes.process_freedom == 3
    assert between_processes.least_process_sd == LEAST


def test_one_process_measures_no_spread_and_its_runs_assume_one(tmp_path: Path) -> None:
    made = profile()
    assert made.cells[SPEC.key].between_processes is None
    assert between_runs(PLAN, made, tmp_path / "runs") == {} == between_runs(PLAN, None, tmp_path / "runs")


def test_a_process_that_lacks_a_round_is_refused() -> None:
    with pytest.raises(InvalidResult, match="is not whole"):
        reduce(PLAN, [measured(), process(0.0)[:-1]], 2.0, "run", {"device": "a CPU"})


def test_three_machines_of_a_kind_add_what_they_differ_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "gpus", list)
    out, mine = tmp_path / "runs", several(0.001, 0.001)
    file_of(out).parent.mkdir()

    def store(name: str, made: NoiseProfile) -> None:
        (file_of(out).parent / name).write_text(json.dumps({"schema": SCHEMA, **to_plain(NoiseProfile, made)}))

    store("cpu.json", mine)
    store("b.json", several(0.011, 0.011))
    store("other.json", several(0.5, 0.5, draft_sha256="d"))
    alone = between_runs(PLAN, mine, out)[SPEC.key]
    assert (alone.process_freedom, alone.machine_freedom) == (2, None)
    store("c.json", several(0.021, 0.021))
    result = between_runs(PLAN, mine, out)[SPEC.key]
    means = [statistics.fmean(m) for m in ((0, 0.001, 0.001), (0, 0.011, 0.011), (0, 0.021, 0.021))]
    assert result.machine_sd == pytest.approx(statistics.stdev(means), 0.02)
    assert result.machine_freedom == 2


def test_a_measured_bandwidth_beside_the_profile_is_none_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "gpus", list)
    out, mine = tmp_path / "runs", several(0.001, 0.001)
    alone = between_runs(PLAN, mine, out)
    bandwidth.store(Bandwidth("2026-11-21T12:00:00+00:00", "a CPU", None, 1 << 28, 5, 1e9, 0.01), out)
    assert between_runs(PLAN, mine, out) == alone != {}


def test_the_effect_allows_for_what_differs_between_processes() -> None:
    assumed, known = effect(0.001, SCENARIO), effect(0.001, SCENARIO, BetweenRuns(0.0002, 4))
    assert assumed is not None and known is not None
    assert known < 0.01 < assumed < 0.03
    few = replace(SCENARIO, workload=replace(SCENARIO.workload, prompt_sets=1), schedule=Schedule(2, 1))
    assert effect(0.001, few) is None
