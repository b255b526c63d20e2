"""The explanation of a run: within 80 columns, and what it says follows from the budgets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.contract import Block, Role, Run
from specgate.contract.cycle_budget import Ceiling
from specgate.reports.common.figures import number
from specgate.reports.texts.explain import REPORT, beyond
from tests.support.budgets import asks, budgeted, split
from tests.support.experts import EXPERTS, ROUTED, with_counts
from tests.support.factories import blocks_of, corrupt, plan_of, policy_of, run_of, scenario


def explained(change: Callable[[Block], Block] = split, *, floor: float = 2.5, **options: Any) -> str:
    text = REPORT.render(budgeted(change, floor=floor, **options), asks(floor))
    assert all(len(line) <= 80 for line in text.splitlines())
    return text


def joined(text: str) -> str:
    return " ".join(text.split())


def test_the_parts_stand_beside_their_bytes_and_floors() -> None:
    lines = explained().splitlines()
    verify = next(line for line in lines if line.startswith("  verify") and "GB" in line)
    # 15 GB at 4.48 TB/s are 3.348 ms, of 80 % of 10 ms.
    assert verify.split() == ["verify", "8.00", "80.0", "%", "15.0", "GB", "3.35", "41.9", "%"]
    assert "bandwidth: 4,480 GB/s of NVIDIA H200, measured 2026-11-21T12:00:00+00:00" in lines[0]
    assert "baseline: 10.00 ms per step, mean of 96, at 70 cached positions per slot" in lines


def test_the_waterfall_ends_at_the_measured_speed_up() -> None:
    text = explained()
    assert "speed-up 2.02×, factor by factor and multiplied up:" in text
    rows = [line.split() for line in text.splitlines() if re.match(r"    \w+ +\d+\.\d\d×", line)]
    assert [row[0] for row in rows] == ["acceptance", "slots", "verify", "draft", "accept", "commit", "gap", "pairing"]
    assert rows[0][1] == "2.83×" and rows[-1][2] == "2.02×"


def test_a_gate_that_is_not_met_says_what_acceptance_length_would_do() -> None:
    text = joined(explained(floor=2.5))
    # 2.83 · 2.5 / 2.024 = 3.50
    assert "fast (min 2.5×): AL would have to be 3.50 (it is 2.83); with the cycle at its floor, " in text
    assert "fast (min 2×): AL could fall to 2.80 (it is 2.83)" in joined(explained(floor=2.0))
    assert "5.60 (it is 2.83), more than accepting every draft gives (4)" in joined(explained(floor=4.0))


def test_a_gate_out_of_reach_is_called_so() -> None:
    text = joined(explained(floor=9.0))
    assert "It cannot be reached on NVIDIA H200 with this pair" in text
    assert "cannot be reached" not in joined(explained(floor=2.5))
    prefill = "prefill alone takes longer than the gate allows: no acceptance length would do"
    assert prefill in joined(explained(floor=100.0, kind="full"))


def test_the_advice_names_the_part_that_is_furthest_above_its_floor() -> None:
    assert "Most would be won in verify, 7.85 ms above its floor: without these 4.61× for 2.02×." in joined(explained())


def test_near_the_floor_only_acceptance_helps() -> None:
    def near(made: Block) -> Block:
        draft = 560_000 * len(made.step_ns) if made.role.k else 0
        return replace(made, phase_ns={"draft": draft, "verify": made.elapsed_ns - draft})

    # Floors: 3.348 ms, and 0.525 ms for the draft.
    text = joined(explained(near, cycle_ns=4_000_000, base_ns=3_400_000))
    assert "The cycle is within 3.2 % of its floor: only a longer acceptance length would help (3.40× at AL 4)." in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lambda: explained(bandwidth=None), "no floors: no bandwidth measured here: specgate doctor --bandwidth"),
        (lambda: explained(traffic=None), "no floors: the engine does not say what its passes must move"),
        (lambda: explained(without_phases), "cannot be told: the engine does not split its steps"),
        (lambda: explained(corrupt), "spec-3: no times may be quoted: its tokens are not the baseline's"),
        (lambda: explained(too_long), "the parts do not add up to the cycle: they are 5.0 % off, more than 1.0 %"),
    ],
)
def test_what_is_not_known_is_said(text: Callable[[], str], message: str) -> None:
    assert message in joined(text())


def without_phases(made: Block) -> Block:
    return replace(made, phase_ns={})


def too_long(made: Block) -> Block:
    return replace(made, phase_ns={"verify": int(1.05 * made.elapsed_ns)})


def test_without_a_floor_the_largest_part_is_named() -> None:
    text = joined(explained(bandwidth=None))
    assert "The largest part is verify (80.0 %); its floor is not known." in text
    assert "bandwidth: none was measured when the run began" in text


def test_experts_stand_with_their_bytes_and_overlap() -> None:
    run = with_experts(overlap=0.5)
    text = joined(explained(counted(0.5), traffic=ROUTED))
    use = run.budgets["demo-64/fake/c64/b1/spec-3"].experts
    assert use is not None and use.overlap is not None
    assert (
        f"experts: {use.touched:.1f} of 32 per layer and pass, {number(use.bytes_per_pass / 1e9)} GB of the target's "
        f"pass; independent tokens would touch {EXPERTS.distinct(4):.1f}: overlap {use.overlap:.2f}"
    ) in text
    assert "experts: 4.0 of 32 per layer and pass, 800 MB of the target's pass" in text  # of the baseline
    assert text.count("independent tokens would touch") == 1  # of one token there is nothing to say
    uncounted = joined(explained(split, traffic=ROUTED))
    assert "per layer and pass if routed independently (the engine does not count them), 2.6" in uncounted


def test_a_gate_says_from_which_overlap_on_it_can_be_reached() -> None:
    def said(floor: float) -> str:
        return joined(explained(counted(0.5), floor=floor, traffic=ROUTED))

    budget = with_experts(overlap=0.5).budgets["demo-64/fake/c64/b1/spec-3"]
    assert budget.limit is not None and budget.experts is not None and budget.experts.overlap is not None
    now = f"(it is {budget.experts.overlap:.2f})"
    unless = "It cannot be reached on NVIDIA H200 with this pair unless the expert overlap is "
    match = re.search(rf"{re.escape(unless)}(\d\.\d\d) or more {re.escape(now)}", said(budget.limit.highest * 1.02))
    assert match is not None and budget.experts.overlap < float(match[1]) <= 1
    assert "with this pair, not even if all tokens of a request chose the same experts" in said(30.0)
    assert "It can be reached down to an expert overlap of 0." in said(budget.limit.highest * 0.98)
    assert "overlap of" not in said(1.1)  # independent tokens would do


def test_an_overlap_that_reads_0_00_is_called_that_of_independent_tokens() -> None:
    budget = with_experts(overlap=0.5).budgets["demo-64/fake/c64/b1/spec-3"]
    text = beyond(budget, Ceiling("fast", 2.5, None, None, False, 0.001), "NVIDIA H200")
    assert "unless the expert overlap is at least that of independent tokens (it is 0." in text


def counted(overlap: float) -> Callable[[Block], Block]:
    return lambda b: with_counts(split(b), overlap=overlap)


def with_experts(overlap: float) -> Run:
    return budgeted(counted(overlap), traffic=ROUTED)


def test_roles_of_several_lengths_each_have_their_own() -> None:
    plan = plan_of(scenario(spec=(1, 3)))
    blocks = blocks_of(plan, change=split)
    run = run_of(plan, blocks)
    budgets = cycle_budgets(plan, run.cells, run.comparisons, blocks, run.engines, None)
    text = REPORT.render(replace(run, budgets=budgets), policy_of())
    assert [r.cell.role for r in run.cells] == [Role(0), Role(1), Role(3)]
    assert "\nspec-1: " in text and "\nspec-3: " in text
