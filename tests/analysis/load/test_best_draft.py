"""The best draft length at a level: by blocks whose speeds are known, and what is not told from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specgate.analysis.load.best_draft import best_drafts
from specgate.analysis.load.figures import best_in_words
from specgate.contract import Comparison, Run
from tests.support.loaded import load_scenario, loaded_run


@pytest.fixture(scope="module")
def run() -> Run:
    scenario = load_scenario((1, 16), rounds=4)
    return loaded_run(replace(scenario, grid=replace(scenario.grid, spec=(1, 3, 5))))


def test_the_best_is_the_fastest_of_all_and_the_baseline_where_drafts_cost(run: Run) -> None:
    for best in best_drafts(run.scenarios, run.comparisons, {}):
        speeds = {
            result.cell.role.k: result.values["output_tok_s"].value or 0
            for result in run.cells
            if result.cell.point.level == best.level
        }
        assert best.k == max(speeds, key=lambda k: speeds[k]) and best.next_k != best.k
        assert best.ratio == pytest.approx(speeds[best.k] / speeds[best.next_k], rel=0.02)
        assert best.ci_low < best.ratio < best.ci_high and best.next_k not in best.as_good
    text = best_in_words(best_drafts(run.scenarios, run.comparisons, {}))
    assert text.startswith("best draft length: spec-3 at 1 client (")


def with_ratios(comparison: Comparison, factor: float, noise: np.random.Generator) -> Comparison:
    pairs = len(comparison.log_ratios)
    log_ratios = tuple(math.log(factor) + float(x) for x in 0.02 * noise.normal(size=pairs))
    return replace(comparison, log_ratios=log_ratios)


def test_the_true_best_is_among_those_that_are_not_told_apart(run: Run) -> None:
    """Forty runs in which draft length 3 is the best by 1 %, with 2 % of noise in each pair."""
    noise, missed, apart = np.random.default_rng(5), 0, 0
    for _ in range(40):
        known = [
            with_ratios(c, {1: 1.70, 3: 1.717, 5: 1.1}[c.cell.role.k], noise)
            for c in run.comparisons
            if c.cell.point.batch == 1
        ]
        (best,) = best_drafts(run.scenarios, known, {})
        missed += 3 not in (best.k, *best.as_good)
        apart += not {0, 5} & set(best.as_good)
    assert missed <= 4, "at 95 %, two of forty"
    assert apart >= 36, "5 lies 36 % behind"
