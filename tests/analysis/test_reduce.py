"""Blocks in, figures out: against sums over the same blocks, and with every contradiction named."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.cell_figures import decoding_in, eagle_speculation, summary_line
from specgate.analysis.reduce import SPEEDS, Checked, Known, measure
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.tokens.comparison import find_divergences
from specgate.contract import (
    BaselineText,
    Block,
    Budget,
    CellResult,
    Comparison,
    Finish,
    Margin,
    NearTies,
    Scenario,
    Served,
    ServedRequest,
)
from specgate.contract.token_check import NO_TOKEN
from tests.support.factories import blocks_of, corrupt, margins_of, plan_of, run_of, scenario

patterns = st.lists(st.integers(0, 6), min_size=1, max_size=7)


def measured(blocks: list[Block], role: str) -> list[Block]:
    return [b for b in blocks if b.role.name == role and not b.warmup]


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40)
@given(patterns, st.integers(1, 5), st.integers(1, 3))
def test_acceptance_is_what_counting_the_steps_gives(accept: list[int], k: int, batch: int) -> None:
    plan = plan_of(scenario(batch=(batch,), spec=(k,), prompt_sets=3, rounds=1))
    blocks = blocks_of(plan, accept=accept)
    result = run_of(plan, blocks).cells[1]
    counts = [a for b in measured(blocks, f"spec-{k}") for row in b.accepted for a in row]
    record = result.acceptance
    assert record is not None
    assert record.hist == tuple(counts.count(i) for i in range(k + 1))
    value = result.values["acceptance_length"]
    assert value.value == pytest.approx(1 + sum(counts) / len(counts))
    assert value.n == 3 * batch
    assert result.values["emitted_per_step"].value == pytest.approx(value.value)
    at = [result.values[f"acceptance_at_pos[{i}]"].value for i in range(1, k + 1)]
    assert at == pytest.approx([sum(a >= i for a in counts) / len(counts) for i in range(1, k + 1)])
    assert 1 + sum(x for x in at if x is not None) == pytest.approx(value.value)
    wasted = result.values["wasted_verify_ratio"].value
    assert wasted == pytest.approx(1 - (sum(counts) + len(counts)) / (len(counts) * (k + 1)))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 11), st.booleans(), st.booleans())
def test_a_look_in_brief_has_the_same_figures_and_comparisons(
    accept: list[int], missing: int, wrong: bool, first: bool
) -> None:
    """Also where blocks are missing, tokens are wrong, rounds are set aside, and the figures were computed before."""
    plan = plan_of(scenario(batch=(2,), spec=(2, 3), rounds=3, steps=4))
    made = blocks_of(plan, accept=accept, steps=4, change=partial(corrupt, at=3) if wrong else lambda b: b)
    blocks, known = whole_rounds(plan, made[missing:]), Known()
    aside = {plan.points[0].key: frozenset({(1, 0), (1, 1)})}

    def of(brief: bool) -> tuple[tuple[CellResult, ...], tuple[Comparison, ...]]:
        return measure(plan, blocks, (), NearTies(), Checked(), known=known, aside=aside, brief=brief)

    results = {brief: of(brief) for brief in (first, not first)}
    (whole, of_whole), (brief, of_brief) = results[False], results[True]
    assert of_whole == of_brief
    for one, other in zip(whole, brief, strict=True):
        bare = replace(one, values={}, series_ms=(), distributions={})
        assert replace(other, values={}) == bare and dict(other.values) == dict(one.values)


def test_speed_is_the_median_over_blocks() -> None:
    plan = plan_of(scenario(batch=(2,)))
    blocks = blocks_of(plan, jitter=0.2)
    values = run_of(plan, blocks).cells[0].values
    of = measured(blocks, "baseline")
    assert values["decode_tok_s"].value == pytest.approx(
        statistics.median(24 / (b.elapsed_ns / 1e9) for b in of), rel=1e-12
    )
    assert values["p50_tpot_ms"].value == pytest.approx(statistics.median(b.elapsed_ns / 12e6 for b in of), rel=0.2)
    assert values["decode_tok_s"].n == len(of) == 8
    assert "p50_ttft_ms" not in values and "output_tok_s" not in values


def test_the_speed_up_is_the_geometric_mean_over_pairs() -> None:
    plan = plan_of(scenario())
    blocks = blocks_of(plan, jitter=0.1)
    (comparison,) = run_of(plan, blocks).comparisons
    pairs = list(zip(measured(blocks, "baseline"), measured(blocks, "spec-3"), strict=True))
    logs = [math.log(s.emitted / s.elapsed_ns * b.elapsed_ns / b.emitted) for b, s in pairs]
    key = {(b.prompt_set, b.round): log for (b, _), log in zip(pairs, logs, strict=True)}
    assert sorted(comparison.log_ratios) == pytest.approx(sorted(key.values()))
    assert comparison.orders == tuple(1 if b.position_in_round == 0 else -1 for b, _ in pairs)
    low, mean, high = comparison.speedup.ci_low, comparison.speedup.value, comparison.speedup.ci_high
    assert mean == pytest.approx(statistics.geometric_mean(map(math.exp, logs)))
    assert low is not None and mean is not None and high is not None
    assert low < mean < high


def test_warm_up_blocks_count_for_nothing() -> None:
    plan = plan_of(scenario())
    blocks = blocks_of(plan)
    spoiled = [replace(b, elapsed_ns=1, tokens=((1,),)) if b.warmup else b for b in blocks]
    assert measure(plan, spoiled, (), NearTies()) == measure(plan, blocks, (), NearTies())


def test_blocks_of_two_processes_are_never_paired() -> None:
    plan = plan_of(scenario(prompt_sets=3, rounds=1))
    (comparison,) = run_of(
        plan, blocks_of(plan, change=lambda b: replace(b, worker_generation=b.prompt_set == 1 and b.role.speculative))
    ).comparisons
    assert len(comparison.log_ratios) == 2


def test_missing_blocks_are_counted_and_an_empty_cell_says_so() -> None:
    plan = plan_of(scenario())
    half = [b for b in blocks_of(plan) if b.prompt_set < 2]
    partial, empty = run_of(plan, half).cells[1], run_of(plan, ()).cells[1]
    assert (partial.status, partial.blocks, partial.reason) == ("partial", 4, "4 of 8 blocks are missing")
    assert (empty.status, empty.values, empty.acceptance) == ("failed", {}, None)


def test_the_series_is_numbered_in_running_order() -> None:
    plan = plan_of(scenario())
    cell = run_of(plan, blocks_of(plan)).cells[0]
    rounds = [r for r in plan.rounds if not r.warmup]
    assert [pair for pair, *_ in cell.series_ms] == list(range(8))
    assert [place for _, place, _ in cell.series_ms] == [r.order.index(cell.cell.role) for r in rounds]


def test_steps_without_drafts_are_left_out_of_acceptance() -> None:
    plan = plan_of(scenario(prompt_sets=1, rounds=1))

    def pause(b: Block) -> Block:
        """Steps 0–3 of a spec block decode without drafting: one token each."""
        if not b.role.speculative:
            return b
        accepted = ((0,),) * 4 + b.accepted[4:]
        emitted = sum(a + 1 for (a,) in accepted)
        tokens = (b.tokens[0][: 1 + emitted],)
        return replace(b, accepted=accepted, drafted=((0,),) * 4 + b.drafted[4:], tokens=tokens, counters={})

    record = run_of(plan, blocks_of(plan, change=pause)).cells[1].acceptance
    assert record is not None
    record.check()
    assert record.steps == 8


def test_speculation_that_never_drafts_has_no_acceptance_length() -> None:
    plan = plan_of(scenario(spec=(3,)))
    silent = blocks_of(plan, accept=(0,), change=lambda b: replace(b, drafted=((0,),) * 12, counters={}))
    result = run_of(plan, silent).cells[1]
    assert result.acceptance is not None and result.acceptance.steps == 0
    assert "acceptance_length" not in result.values


def test_steps_that_lost_their_draft_are_counted_and_cannot_be_more_than_had_none() -> None:
    plan = plan_of(scenario(spec=(3,)))

    def lost(steps: int) -> Callable[[Block], Block]:
        counters = {"disabled_draft_error": steps}
        return lambda b: replace(b, drafted=((0,),) * 12, counters=counters) if b.role.speculative else b

    baseline, spec = run_of(plan, blocks_of(plan, accept=(0,), change=lost(12))).cells
    value = spec.values["disabled_draft_error"]
    assert (value.value, value.n) == (8 * 12, 8 * 12)
    assert "disabled_draft_error" not in baseline.values
    for steps, says in ((13, "but 12 request-steps had no draft"), (-1, "a count is at least 0")):
        result = run_of(plan, blocks_of(plan, accept=(0,), change=lost(steps))).cells[1]
        assert (result.status, result.reason_code) == ("failed", "counter_identity")
        assert f"disabled_draft_error = {steps}" in (result.reason or "") and says in (result.reason or "")


# ── active slots ─────────────────────────────────────────────────────────────────────────────────────────────────────


def ending_at(made: Block, ends: list[int]) -> Block:
    """The block with slot s ended by EOS after `ends[s]` steps: its later entries are −1, its later tokens gone."""

    def cut(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(v if i < end else -1 for v, end in zip(r, ends, strict=True)) for i, r in enumerate(rows))

    accepted = cut(made.accepted)
    emitted = [sum(row[s] + 1 for row in accepted) for s in range(len(ends))]
    tokens = tuple(row[: 1 + n] for row, n in zip(made.tokens, emitted, strict=True))
    finish = tuple(Finish.EOS if end < len(accepted) else Finish.STEPS for end in ends)
    return replace(made, accepted=accepted, drafted=cut(made.drafted), tokens=tokens, finish=finish, counters={})


def stopping_at_eos(workload: Scenario) -> Scenario:
    return replace(workload, budget=replace(workload.budget, ignore_eos=False))


@settings(max_examples=40)
@given(patterns, st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_active_slots_are_those_that_a_step_worked_on(accept: list[int], ends: list[int]) -> None:
    plan = plan_of(stopping_at_eos(scenario(batch=(3,), prompt_sets=2, rounds=1)))
    blocks = blocks_of(plan, accept=accept, change=lambda b: ending_at(b, ends) if b.role.speculative else b)
    (_, spec), _ = measure(plan, blocks, (), NearTies())
    values = eagle_speculation(spec, blocks, Budget(steps=12))
    per_step = [sum(end > step for end in ends) for step in range(max(ends))] * 2
    assert values is not None
    if not per_step:
        assert values["active_count"] == {"min": None, "avg": None, "max": None}
        assert values["effective_accept_per_active_slot"] is None
        assert "active_count_avg" not in spec.values
        return
    shares = {"min": min(per_step), "avg": pytest.approx(sum(per_step) / len(per_step)), "max": max(per_step)}
    assert values["active_count"] == shares
    assert {name: spec.values[f"active_count_{name}"].value for name in shares} == shares
    emitted = sum(b.emitted for b in measured(blocks, "spec-3"))
    assert values["effective_accept_per_active_slot"] == pytest.approx(emitted / sum(per_step))


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_times_of_a_cell_whose_tokens_differ_are_withheld() -> None:
    plan = plan_of(scenario(spec=(2, 3)))
    run = run_of(plan, blocks_of(plan, change=lambda b: corrupt(b) if b.role.k == 3 else b))
    sound, broken = run.cells[1], run.cells[2]
    assert all(broken.values[m].value is None for m in SPEEDS if m in broken.values)
    assert {broken.values[m].reason_code for m in SPEEDS if m in broken.values} == {"token_mismatch"}
    assert run.comparisons[1].speedup.value is None
    assert sound.values["decode_tok_s"].value and run.comparisons[0].speedup.value
    assert broken.values["acceptance_length"].value


def test_a_margin_of_zero_excuses_nothing() -> None:
    plan = plan_of(scenario())
    blocks = blocks_of(plan, change=corrupt)
    (comparison,) = measure(plan, blocks, margins_of(blocks, 0.0), NearTies())[1]
    assert len(comparison.tokens.mismatches) == 8


def test_a_sequence_that_goes_on_where_the_baseline_ended_is_no_match_and_no_near_tie() -> None:
    plan = plan_of(stopping_at_eos(scenario(prompt_sets=1, rounds=1)))
    blocks = blocks_of(plan, change=lambda b: b if b.role.speculative else replace(b, finish=(Finish.EOS,)))
    ((_, divergence, expected),) = find_divergences([b for b in blocks if not b.warmup])
    assert (divergence.position, divergence.expected) == (len(expected), NO_TOKEN)
    (comparison,) = measure(plan, blocks, margins_of(blocks, 0.0), NearTies(1e-3))[1]
    assert comparison.tokens.mismatches


def test_rounds_that_do_not_repeat_their_tokens_are_counted() -> None:
    plan = plan_of(scenario())
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if b.round == 1 else b)
    baseline, spec = run_of(plan, blocks).cells
    assert baseline.values["repeat_mismatches"].value == 0
    assert spec.values["repeat_mismatches"].value == 4


def test_a_near_tie_excuses_the_token_that_is_one_and_no_other_at_the_same_place() -> None:
    plan = plan_of(scenario(prompt_sets=1, rounds=1))
    blocks = blocks_of(plan)
    (timed,) = measured(blocks, "baseline")
    at, (right, *_) = 5, timed.tokens[0][5:]
    near, wrong = right + 1, right + 2
    top = (0.0, -0.0625, *(-1.0 - i for i in range(10)))
    recorded = (right, near, *range(900_000, 900_010))
    place = timed.cell.key, timed.prompt_set, timed.round, 0, at
    again = tuple(value + (0.1 if i % 2 else -0.1) for i, value in enumerate(top))
    margin = Margin(*place, *top[:2], top=top, top_tokens=recorded, again=again)

    def counts(*came: int) -> tuple[float | None, float | None]:
        """(blocks and texts that do not repeat, divergences that a near tie excuses)."""
        row = timed.tokens[0]
        texts = [
            BaselineText(timed.point, timed.prompt_set, 0, ((*row[:at], token, *row[at + 1 :]),), timed.finish, (0, 1))
            for token in came
        ]
        cells, _ = measure(plan, blocks, [margin], NearTies(max_sigma=0.15), Checked(texts))
        values = cells[0].values
        excused = values.get("repeat_near_ties")
        return values["repeat_mismatches"].value, excused.value if excused else None

    assert counts(near) == (0, 1) and counts(wrong) == (1, None)
    assert counts(near, wrong) == counts(wrong, near) == (1, 1)


# ── eagle_speculation ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_speculation_block_counts_what_the_blocks_hold_and_a_baseline_has_none() -> None:
    plan = plan_of(scenario())
    blocks = blocks_of(plan)
    baseline, spec = run_of(plan, blocks).cells
    assert eagle_speculation(baseline, blocks, Budget(steps=12)) is None
    speculation = eagle_speculation(spec, blocks, Budget(steps=12))
    counts = [a for b in measured(blocks, "spec-3") for row in b.accepted for a in row]
    assert speculation is not None
    assert speculation["num_drafts"] == len(counts)
    assert speculation["total_draft_tokens"] == 3 * len(counts)
    assert speculation["total_accepted_tokens"] == sum(counts)
    assert speculation["mean_acceptance_rate"] == pytest.approx(sum(counts) / len(counts) / 3)
    assert speculation["mean_acceptance_length"] == pytest.approx(1 + sum(counts) / len(counts))
    assert speculation["multi_token_step_share"] == pytest.approx(sum(a >= 2 for a in counts) / len(counts))
    assert speculation["rewound_tokens"] == sum(3 - a for a in counts)
    (line,) = summary_line("a/spec-3", {**speculation, "disabled_multitoken_eos": 1, "disabled_multitoken_length": 2})
    tokens = f"{speculation['effective_accept_per_active_slot']:.3f}"
    assert line == (
        "EAGLE3_SUMMARY a/spec-3 disabled_finished=3 active_count_avg=1.000 active_count_min=1 active_count_max=1 "
        f"effective_accept_per_active_slot={tokens}"
    )
    assert not list(summary_line("a", {**speculation, "active_count": {"min": None, "avg": None, "max": None}}))


def test_active_slots_of_a_server_are_its_requests_over_the_time_in_which_any_decodes() -> None:
    times = ((10, 40), (20, 30), (60, 70))
    served = Served(tuple(ServedRequest(0, chunks, (1, 5)) for chunks in times))
    made = replace(blocks_of(plan_of())[-1], served=served)
    assert list(decoding_in(made)) == [(1, 10), (2, 10), (1, 10), (1, 10)]
    assert list(decoding_in(replace(made, served=None))) == []


def test_wrong_tokens_withhold_no_speed_where_acceptance_was_forced() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=corrupt)
    _, (withheld,) = measure(plan, blocks, [], NearTies())
    cells, (forced,) = measure(plan, blocks, [], NearTies(), forced=True)
    assert withheld.speedup.value is None and forced.speedup.value is not None
    assert forced.tokens.compared_tokens == 0 and forced.tokens.divergences == ()
    assert cells[1].values["decode_tok_s"].value is not None
