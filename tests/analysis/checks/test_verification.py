"""A cycle is no shorter than a baseline step: the bound on speed-ups, on blocks whose times are exact."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from specgate.analysis.checks.verification import check_first_steps, check_prefills, check_untimed, check_verification
from specgate.analysis.rounds import pairs_of
from specgate.contract import BASELINE, BaselineText, Block, Cell, Role
from specgate.contract.samples.block import Served
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


@pytest.mark.parametrize(("of_step", "refused"), [(0.5, False), (1.0, False), (1.04, False), (1.07, True), (3.0, True)])
def test_a_pass_over_one_token_takes_no_longer_than_over_several(of_step: float, refused: bool) -> None:
    def phased(block: Block) -> Block:
        share = of_step * 0.5 if not block.role.speculative else 0.5 / 1.4
        return replace(block, phase_ns={"verify": round(share * sum(block.step_ns))})

    made = [(phased(a), phased(b)) for a, b in pairs(1.4)]
    if not refused:
        check_verification(made, scenario("a"))
        return
    with pytest.raises(InvalidResult, match="the target's pass over one token takes"):
        check_verification(made, scenario("a"), "NVIDIA H200")
    check_verification(made, scenario("a"), "cpu")


@pytest.mark.parametrize(
    ("prefill", "of_base", "of_step", "refused"),
    [
        *((10, 1.0, 1.0, ""), (10, 0.9, 1.2, ""), (0.1, 1.05, 1.0, "")),
        *((10, 1.0, 1.4, "faster than verification allows"), (10, 0.9, 1.4, "faster than verification allows")),
        *((0.1, 1.2, 1.0, "prefill takes"), (0.1, 1.5, 1.0, "prefill takes")),
    ],
)
def test_a_slow_baseline_does_not_hide_in_whole_requests(
    prefill: float, of_base: float, of_step: float, refused: str
) -> None:
    """Spec's prefill takes `prefill` times its decoding, the baseline's `of_base` of that. A cycle takes 1.3 steps,
    before the baseline slows down to `of_step`.
    """
    made = []
    for a, b in pairs(1.3 / of_step):
        ns = round(prefill * b.elapsed_ns)
        made.append((replace(a, prefill_ns=round(of_base * ns)), replace(b, prefill_ns=ns)))
    if not refused:
        check_verification(made, scenario("a", "full"))
        return
    with pytest.raises(InvalidResult, match=refused):
        check_verification(made, scenario("a", "full"))


@pytest.mark.parametrize(
    ("longer_ms", "decoding_ms", "refused"), [(4, 200, False), (4, 100, True), (20, 200, True), (20, 2000, True)]
)
def test_the_way_to_a_server_is_no_slow_baseline_as_far_as_requests_hardly_feel_it(
    longer_ms: int, decoding_ms: int, refused: bool
) -> None:
    """Spec's prefill takes 2 ms, the baseline's `longer_ms` more: 3 % of a request may go there, up to 5 ms."""
    made = [
        (
            replace(a, served=Served(()), prefill_ns=(2 + longer_ms) * 10**6, elapsed_ns=decoding_ms * 10**6),
            replace(b, served=Served(()), prefill_ns=2 * 10**6),
        )
        for a, b in pairs(1.3)
    ]
    with pytest.raises(InvalidResult, match="prefill takes") if refused else nullcontext():
        check_prefills(made)


def baseline_blocks() -> list[Block]:
    return [a for a, _ in pairs(1.4)]


@pytest.mark.parametrize(("slower", "refused"), [(0.7, False), (1.0, False), (1.03, False), (1.07, True), (1.38, True)])
def test_a_baseline_is_no_slower_where_it_is_timed(slower: float, refused: bool) -> None:
    """1.38 is a baseline that sleeps to 1.06 cycles of 1.3 steps."""
    blocks = baseline_blocks()
    texts = [
        BaselineText(b.point, b.prompt_set, b.worker_generation, b.tokens, b.finish, (0, round(2e8 / slower)), 20)
        for b in {b.prompt_set: b for b in blocks}.values()
    ]
    assert blocks[0].role == BASELINE
    if not refused:
        check_untimed(blocks, texts)
        return
    with pytest.raises(InvalidResult, match="where the same text goes on untimed"):
        check_untimed(blocks, texts)
    check_untimed(blocks, [replace(t, steps=0) for t in texts])


@pytest.mark.parametrize(
    ("moved_ms", "sets", "refused"),
    [(0, 8, False), (20, 8, False), (60, 8, True), (99, 8, True), (-20, 8, False), (-99, 8, True), (60, 2, False)],
)
def test_little_of_a_long_prefill_may_be_much_of_the_decoding(moved_ms: int, sets: int, refused: bool) -> None:
    """A prefill of 1,000 ms and 120 ms of decoding: 60 ms, which are 6 % of the prefill, double its speed."""
    blocks = [
        replace(
            b,
            prompt_set=i % sets,
            prefill_ns=(1000 + moved_ms) * 10**6,
            one_step_ns=1000 * 10**6 + sum(b.step_ns) // len(b.step_ns) + (-1) ** i * 10**6,
            step_ns=tuple(ns - moved_ms * 10**6 // len(b.step_ns) for ns in b.step_ns),
        )
        for i, b in enumerate(baseline_blocks())
    ]
    if not refused:
        check_first_steps(blocks)
        return
    with pytest.raises(InvalidResult, match="but the harness waits"):
        check_first_steps(blocks)


@pytest.mark.parametrize(
    ("prefill_ms", "refused"), [(100, False), (108, False), (92, False), (130, True), (70, True), (50, True), (0, True)]
)
def test_what_is_stated_of_prefill_is_what_the_harness_waits_for(prefill_ms: int, refused: bool) -> None:
    """The harness waits 110 ms for a step of 10 ms and its prefill."""
    blocks = [replace(b, prefill_ns=prefill_ms * 10**6, one_step_ns=110 * 10**6) for b in baseline_blocks()]
    if not refused:
        check_first_steps(blocks)
        return
    with pytest.raises(InvalidResult, match="but the harness waits 110 ms for a single step"):
        check_first_steps(blocks)


def test_rounds_that_repeat_a_prompt_set_are_held_to_it_alone() -> None:
    """Answers from memory, in a tenth of the time: with the first rounds among them, the mean scatters too much."""
    made = pairs(1.4)
    sets = len(made) // 2
    replayed = [
        (replace(a, prompt_set=i % sets, round=i), replace(b, prompt_set=i % sets, round=i))
        for i, (a, b) in enumerate(made)
    ]
    check_verification(replayed, scenario("a"))
    fast = [
        (a, replace(b, elapsed_ns=b.elapsed_ns // 10, step_ns=tuple(ns // 10 for ns in b.step_ns)))
        if i >= sets
        else (a, b)
        for i, (a, b) in enumerate(replayed)
    ]
    with pytest.raises(InvalidResult, match="faster than verification allows"):
        check_verification(fast, scenario("a"))
