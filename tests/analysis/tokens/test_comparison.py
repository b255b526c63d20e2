"""Spec texts beside the baseline's: against a comparison token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.tokens.checking import check_tokens
from specgate.analysis.tokens.comparison import check_logits, departure
from specgate.contract import (
    BASELINE,
    BaselineText,
    Block,
    Cell,
    Divergence,
    Finish,
    LogitSample,
    Margin,
    NearTies,
    Role,
)
from tests.support.factories import blocks_of, plan_of, scenario

ends = st.sampled_from([Finish.STEPS, Finish.EOS, Finish.LENGTH])
texts = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)


@given(texts, ends, texts, ends)
def test_two_texts_part_where_reading_them_side_by_side_says_so(
    one: tuple[int, ...], why_one: Finish, other: tuple[int, ...], why_other: Finish
) -> None:
    def read() -> int | None:
        for at in range(max(len(one), len(other))):
            if at >= len(one):
                return at if why_one is not Finish.STEPS else None
            if at >= len(other):
                return at if why_other is not Finish.STEPS else None
            if one[at] != other[at]:
                return at
        return None

    assert departure((one, why_one), (other, why_other)) == read()


def measured() -> tuple[Cell, list[Block]]:
    plan = plan_of(scenario(prompt_sets=2, rounds=2))
    blocks = [b for b in blocks_of(plan) if not b.warmup]
    return next(b.cell for b in blocks if b.role.speculative), blocks


def text_of(blocks: list[Block], prompt_set: int, length: int | None = None) -> BaselineText:
    spec = next(b for b in blocks if b.role.speculative and b.prompt_set == prompt_set)
    tokens = tuple(t[:length] for t in spec.tokens)
    return BaselineText(spec.point, prompt_set, 0, tokens, (Finish.STEPS,) * len(tokens), (0, 1))


def test_without_a_longer_baseline_only_the_common_part_is_compared_and_no_set_is_whole() -> None:
    cell, blocks = measured()
    check = check_tokens(cell, blocks, (), NearTies())
    baseline = sum(len(t) for b in blocks if not b.role.speculative for t in b.tokens)
    assert check.compared_tokens == baseline < (check.emitted_tokens or 0)
    assert check.whole_sets == () and check.identical


def test_a_longer_baseline_text_covers_its_own_prompt_set() -> None:
    cell, blocks = measured()
    check = check_tokens(cell, blocks, (), NearTies(), [text_of(blocks, 1)])
    assert check.whole_sets == (1,) and check.identical
    both = check_tokens(cell, blocks, (), NearTies(), [text_of(blocks, 0), text_of(blocks, 1)])
    assert both.whole_sets == (0, 1) and both.compared_tokens == both.emitted_tokens


@given(st.data())
def test_a_wrong_token_is_found_wherever_it_is(data: st.DataObject) -> None:
    cell, blocks = measured()
    beside = [text_of(blocks, 0), text_of(blocks, 1)]
    spoilt = data.draw(st.sampled_from([b for b in blocks if b.role.speculative]))
    slot = data.draw(st.integers(0, len(spoilt.tokens) - 1))
    at = data.draw(st.integers(0, len(spoilt.tokens[slot]) - 1))
    row = (*spoilt.tokens[slot][:at], spoilt.tokens[slot][at] + 1, *spoilt.tokens[slot][at + 1 :])
    wrong = replace(spoilt, tokens=(*spoilt.tokens[:slot], row, *spoilt.tokens[slot + 1 :]))
    check = check_tokens(cell, [wrong if b is spoilt else b for b in blocks], (), NearTies(), beside)
    ((mismatche),) = check.mismatches
    assert (mismatche.prompt_set, mismatche.round, mismatche.slot, mismatche.position) == (
        spoilt.prompt_set,
        spoilt.round,
        slot,
        at,
    )
    # Behind it nothing is compared.
    assert check.compared_tokens == (check.emitted_tokens or 0) - len(row) + at + 1


def test_a_baseline_text_that_begins_otherwise_than_the_timed_one_covers_nothing() -> None:
    cell, blocks = measured()
    other = text_of(blocks, 0)
    other = replace(other, tokens=tuple((t[0] + 1, *t[1:]) for t in other.tokens))
    check = check_tokens(cell, blocks, (), NearTies(), [other, text_of(blocks, 1)])
    assert check.whole_sets == (1,)


@pytest.mark.parametrize(
    ("margin", "near"),
    [(0.0, True), (1e-4, True), (1e-3, False), (-1e-9, False), (-5.0, False), (float("nan"), False), (None, False)],
)
def test_only_a_margin_from_zero_up_to_the_policys_makes_a_near_tie(margin: float | None, near: bool) -> None:
    assert Divergence(0, 0, 0, 3, 7, 8, None, False).judged(margin, NearTies(1e-3)).near_tie is near
    assert not Divergence(0, 0, 0, 3, -1, 8, None, False).judged(margin, NearTies(1e-3)).near_tie


def test_no_margin_makes_a_near_tie_where_none_is_allowed() -> None:
    assert not Divergence(0, 0, 0, 3, 7, 8, None, False).judged(0.0, NearTies()).near_tie


def test_a_recorded_negative_margin_leaves_a_mismatch() -> None:
    cell, blocks = measured()
    spoilt = next(b for b in blocks if b.role.speculative)
    wrong = replace(spoilt, tokens=tuple((t[0], t[1] + 1, *t[2:]) for t in spoilt.tokens))
    margins = [Margin(cell.key, wrong.prompt_set, wrong.round, s, 1, 1.0, 2.0) for s in range(len(wrong.tokens))]
    check = check_tokens(cell, [wrong if b is spoilt else b for b in blocks], margins, NearTies(1e-3))
    assert len(check.mismatches) == len(wrong.tokens)


def sample(cell: Cell, digests: tuple[str, ...], positions: tuple[int, ...] = (1, 4, 9)) -> LogitSample:
    return LogitSample(cell.key, 0, 0, positions, ((5, 6, 7)[: len(positions)],), (digests,), (0, 1))


def test_logits_are_compared_where_both_roles_have_a_sample() -> None:
    cell, _ = measured()
    baseline = Cell(cell.point, BASELINE)
    same = check_logits(cell, [sample(baseline, ("a", "b", "c")), sample(cell, ("a", "b", "c"))])
    assert same is not None and (same.compared, same.different, same.first) == (3, 0, None)
    unlike = check_logits(cell, [sample(baseline, ("a", "b", "c")), sample(cell, ("a", "x", "y"))])
    assert unlike is not None and (unlike.compared, unlike.different, unlike.first) == (3, 2, (0, 0, 4))
    assert check_logits(cell, [sample(cell, ("a", "b", "c"))]) is None
    assert check_logits(Cell(cell.point, Role(5)), [sample(baseline, ("a", "b", "c"))]) is None
