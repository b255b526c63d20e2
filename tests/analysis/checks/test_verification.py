"""A cycle is no shorter than a baseline step: the bound on speed-ups, on blocks whose times are exact."""

from __future__ import annotations

import pytest

from specgate.analysis.checks.verification import check_verification
from specgate.analysis.rounds import pairs_of
from specgate.contract import Block, Cell, Role
from specgate.errors import InvalidResult
from tests.support.factories import blocks_of, plan_of, scenario


def pairs(cycle_over_step: float) -> list[tuple[Block, Block]]:
    """Pairs whose cycle takes `cycle_over_step` of a baseline step, within some percent."""
    plan = plan_of(scenario("a", spec=(3,), prompt_sets=4))
    blocks = [
        b for b in blocks_of(plan, base_ns=10_000_000, cycle_ns=round(10_000_000 * cycle_over_step)) if not b.warmup
    ]
    return list(pairs_of(blocks, Cell(plan.points[0], Role(3))))


@pytest.mark.parametrize("cycle_over_step", [0.1, 0.25, 0.5, 0.8, 0.94])
def test_a_cycle_that_is_shorter_than_a_step_is_refused_with_both_figures(cycle_over_step: float) -> None:
    with pytest.raises(InvalidResult, match="faster than verification allows"):
        check_verification(pairs(cycle_over_step), scenario("a"))


@pytest.mark.parametrize("cycle_over_step", [0.98, 1.0, 1.4, 4.0])
def test_a_cycle_that_is_about_a_step_or_longer_is_not(cycle_over_step: float) -> None:
    check_verification(pairs(cycle_over_step), scenario("a"))
