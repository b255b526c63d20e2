"""Intervals of acceptance are over prompts: rounds that repeat the same text add none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from specgate.analysis.prompt_acceptance import (
    by_prompt,
    category_values,
    once_each,
    pooled,
    position_values,
    summed,
    total_of,
)
from specgate.contract import Block, Served, ServedRequest
from specgate.contract.acceptance import AcceptanceRecord, DraftCounts, Totals
from tests.support.factories import blocks_of, plan_of, run_of, scenario

PLAN = plan_of(scenario(batch=(2,), prompt_sets=3))


def test_there_is_one_record_per_prompt_and_together_they_are_the_pooled_one() -> None:
    blocks = [b for b in blocks_of(PLAN) if b.role.speculative and not b.warmup]
    records = by_prompt(blocks).values()
    assert len(records) == 3 * 2
    assert sum(r.steps for r in records) == pooled(by_prompt(blocks)).steps == sum(len(b.step_ns) * 2 for b in blocks)
    for record in records:
        record.check()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.data())
def test_the_total_of_blocks_is_the_sum_of_their_prompts_with_and_without_a_servers_records(
    accept: list[int], data: st.DataObject
) -> None:
    blocks = [b for b in blocks_of(PLAN, accept=accept) if b.role.speculative and not b.warmup]
    some = data.draw(st.lists(st.sampled_from(blocks), min_size=1, unique_by=id))
    records = [served(total_of([b]), b) if data.draw(st.booleans()) else b for b in some]
    assert total_of(records) == pooled(by_prompt(records))
    assert total_of(records).accepted == sum(a for b in some for row in b.accepted for a in row)


def served(record: AcceptanceRecord, block: Block) -> Block:
    """The block as one of a server that counted `record`."""
    requests = tuple(ServedRequest(0, (1, 2), (1, len(tokens) - 1)) for tokens in block.tokens)
    return replace(block, served=Served(requests, record))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=9))
def test_the_interval_of_a_share_is_cochrans_over_prompts(accept: list[int]) -> None:
    blocks = [b for b in blocks_of(PLAN, accept=accept) if b.role.speculative and not b.warmup]
    values = {v.metric: v for v in position_values(by_prompt(blocks).values(), pooled(by_prompt(blocks)))}
    for i in (1, 2, 3):
        counts: dict[tuple[int, int], list[int]] = {}
        for b in blocks:
            for row in b.accepted:
                for slot, a in enumerate(row):
                    counts.setdefault((b.prompt_set, slot), []).append(a)
        hits = np.array([sum(a >= i for a in number) for number in counts.values()], float)
        steps = np.array([len(number) for number in counts.values()], float)
        share = hits.sum() / steps.sum()
        n = len(hits)
        error = np.sqrt(n / (n - 1) * np.sum((hits - share * steps) ** 2)) / steps.sum()
        half = t.ppf(0.975, n - 1) * error
        found_value = values[f"acceptance_at_pos[{i}]"]
        assert found_value.value == pytest.approx(share)
        assert found_value.ci_low == pytest.approx(max(0.0, share - half), abs=1e-12)
        assert found_value.ci_high == pytest.approx(min(1.0, share + half), abs=1e-12)


def test_more_rounds_of_the_same_prompts_do_not_narrow_the_interval() -> None:
    few, many = (
        run_of(plan, blocks_of(plan)).cells[1].values["acceptance_at_pos[2]"]
        for plan in (plan_of(scenario(prompt_sets=4, rounds=2)), plan_of(scenario(prompt_sets=4, rounds=8)))
    )
    assert (few.ci_low, few.ci_high) == pytest.approx((many.ci_low, many.ci_high))


def test_too_few_prompts_give_no_interval() -> None:
    plan = plan_of(scenario(prompt_sets=2))
    value = run_of(plan, blocks_of(plan)).cells[1].values["acceptance_at_pos[1]"]
    assert value.value is not None and value.ci_low is None and value.ci_high is None


def test_prompts_that_never_drafted_so_far_add_nothing_to_the_interval_of_a_position() -> None:
    short = AcceptanceRecord(3, (5, 5, 0, 0), (10, 0, 0), 15, 0)
    long = AcceptanceRecord(3, (5, 3, 1, 1), (10, 4, 2), 18, 0)
    longer = AcceptanceRecord(3, (2, 1, 1, 6), (10, 9, 8), 31, 0)

    def third(prompts: list[AcceptanceRecord]) -> tuple[float | None, ...]:
        values = {v.metric: v for v in position_values(prompts, summed(prompts))}
        share = values["acceptance_at_pos[3]"]
        return share.value, share.ci_low, share.ci_high

    assert third([*[short] * 7, long]) == (0.5, None, None), "one prompt tells nothing of others"
    assert third([*[short] * 7, long, longer, long]) == third([long, longer, long])


def test_a_prompt_that_a_load_sends_again_counts_once() -> None:
    """Two prompts in three sets of two: six requests, which tell of two prompts."""
    blocks = [b for b in blocks_of(PLAN) if b.role.speculative and not b.warmup]
    lines = {(prompt_set, slot): slot for prompt_set in range(3) for slot in range(2)}
    records, once = by_prompt(blocks), once_each(by_prompt(blocks), lines, 2)
    assert (len(records), set(once)) == (6, {(0, 0), (0, 1)}) and pooled(once) == pooled(records)
    together = by_prompt([served(total_of([block]), block) for block in blocks])
    assert len(together) == 3 and once_each(together, lines, 2).keys() == {(0, 0)}, "sets that share prompts are one"


def test_records_without_drafts_are_left_out() -> None:
    empty = AcceptanceRecord(3, (0, 0, 0, 0), (0, 0, 0), 0, 0)
    assert next(position_values([], empty)).value is None


def test_categories_that_share_a_batch_have_their_own_figures_where_answers_count_their_drafts() -> None:
    blocks = [b for b in blocks_of(PLAN) if b.role.speculative and not b.warmup]
    totals = Totals(4, 12, 4), Totals(4, 12, 8)
    counted = [counting(block, *totals) for block in blocks]
    mixed = {(prompt_set, slot): ("math", "prose")[slot] for prompt_set in range(3) for slot in range(2)}
    values = {v.metric: v for v in category_values(by_prompt(counted), mixed, 2)}
    assert (values["acceptance_length[math]"].value, values["acceptance_length[math]"].n) == (2.0, 3)
    assert (values["acceptance_length[prose]"].value, values["acceptance_length[prose]"].n) == (3.0, 3)
    together = [served(total_of([block]), block) for block in blocks]
    assert list(category_values(by_prompt(together), mixed, 2)) == [], "nothing tells whose drafts these were"


def test_a_category_counts_the_steps_that_its_method_did_not_draft_in() -> None:
    """Ten steps with a draft that accepted one, and twenty of another prompt without any."""
    drafted = AcceptanceRecord(3, (0, 10, 0, 0), (10, 10, 10), 20, 0, skipped=0)
    silent = AcceptanceRecord(3, (0, 0, 0, 0), (0, 0, 0), 0, 0, skipped=20)
    prompts = {(0, 0): drafted, (1, 0): silent, (2, 0): silent}
    values = {v.metric: v for v in category_values(prompts, {(0, 0): "code", (1, 0): "code", (2, 0): "prose"}, 1)}
    length = values["acceptance_length[code]"]
    assert length.value == pytest.approx(1 + 10 / 30) and length.n == 2
    assert "acceptance_length[prose]" not in values


def counting(block: Block, *totals: Totals) -> Block:
    """The block as one of a server whose answers count their drafts."""
    requests = tuple(
        ServedRequest(0, (1, 2), (1, len(tokens) - 1), drafts=DraftCounts(of))
        for tokens, of in zip(block.tokens, totals, strict=True)
    )
    whole = Totals(*(sum(getattr(of, name) for of in totals) for name in ("steps", "drafted", "accepted")))
    record = AcceptanceRecord(3, (), (), block.emitted, 0, whole)
    return replace(block, served=Served(requests, record))
