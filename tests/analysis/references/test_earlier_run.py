"""The rule that `bench/simulations/` simulates is the one that judges, and it keeps its error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.simulations.error_rates import bound
from bench.simulations.gate_simulation import Between, sequential
from bench.simulations.noises import Floats, Turns
from bench.simulations.since_green_simulation import DECISIONS, MARGIN_PCT, histories, scenario_of, simulate, stepping
from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.analysis.intervals.decision import FALSE_FAIL, FALSE_PASS, decide
from specgate.analysis.references import between_two_runs, paired_by_round
from specgate.analysis.stats import planned_interim_looks
from specgate.contract.references import CellTimes

MARGIN = math.log1p(MARGIN_PCT / 100)


def times(logs: Floats) -> CellTimes:
    """A cell of eight prompt sets whose steps take exp(`logs`) ms."""
    turns = tuple(range(len(logs)))
    sets, rounds = tuple(t % 8 for t in turns), tuple(t // 8 for t in turns)
    return CellTimes(turns, sets, rounds, tuple(t % 2 for t in turns), tuple(round(1e9 * math.exp(x)) for x in logs))


@pytest.mark.parametrize("loss", [0.0, 0.02, 0.06])
def test_the_simulated_rule_is_the_one_that_judges(loss: float) -> None:
    noise, runs = np.random.default_rng(3), 12
    scenario = scenario_of("8 × 4")
    looks, between = planned_interim_looks(scenario), between_two_runs([])
    old, new = (noise.normal(0.0, 0.008, (runs, looks[-1])) for _ in range(2))
    floor, fail = -MARGIN, FALSE_FAIL / DECISIONS
    same = Turns((0,) * looks[-1], (0,) * looks[-1])
    allowed = Between(np.full(runs, OF_TIME.process_sd * math.sqrt(2)), math.inf)
    result = sequential(old - new - loss, same, looks, allowed, floor, fail, alone=True)
    for i in range(runs):
        pairs = paired_by_round(times(old[i]), times(new[i] + loss), "step_ns")
        decision = decide(pairs, looks[-1], looks, floor, between, fail, alone=True)
        assert (decision.side == "above", decision.side == "below") == (result.above[i], result.below[i])
        assert decision.side == "open" or decision.pairs == result.pairs[i]


@pytest.mark.parametrize("kind", ["AR(1) 0.9 of the times", "1 block in 13 stalls by 3 %", "process sd 0.6 %"])
@pytest.mark.parametrize("shape", ["4 × 8", "8 × 4"])
def test_a_loss_as_large_as_the_margin_is_rarely_green_and_rarely_red(shape: str, kind: str) -> None:
    out = simulate(shape, kind, 4000, 0.002, np.random.default_rng(5), MARGIN)
    assert bound(out.above)[1] <= FALSE_PASS
    assert bound(out.below)[1] <= FALSE_FAIL / DECISIONS


def test_an_unchanged_build_passes_at_the_noise_of_an_h200_and_a_loss_of_8_percent_fails() -> None:
    noise = np.random.default_rng(7)
    assert simulate("8 × 4", "process sd 0.2 %", 2000, 0.001, noise, 0.0).above.mean() > 0.97
    assert simulate("8 × 4", "process sd 0.2 %", 2000, 0.001, noise, math.log1p(0.08)).below.mean() > 0.99


def test_ten_builds_that_lose_half_a_percent_each_are_not_green_and_unchanged_ones_are() -> None:
    creeping = histories("4 × 8", 0.002, 200, 0.001, np.random.default_rng(9), math.log1p(0.005), 20)
    assert not creeping.green[:, 9:].any() and creeping.red[:, 19].all()
    alone = histories("4 × 8", 0.002, 200, 0.001, np.random.default_rng(9), math.log1p(0.005), 10, anchored=False)
    assert alone.green[:, 9].any()
    unchanged = histories("4 × 8", 0.002, 200, 0.001, np.random.default_rng(9), 0.0, 30)
    assert unchanged.green.mean() > 0.97 and not unchanged.red.any()


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_clock_step_that_the_watch_sees_hides_no_loss_and_makes_none(part: float) -> None:
    unseen = stepping("4 × 8", 0.024, 1000, np.random.default_rng(11), MARGIN, None)
    seen = stepping("4 × 8", 0.024, 1000, np.random.default_rng(11), MARGIN, part)
    assert unseen.above.mean() > 0.05 and not seen.above.any() and not seen.below.any()
    assert stepping("4 × 8", 0.0, 2000, np.random.default_rng(12), 0.0, part).above.mean() > 0.965
