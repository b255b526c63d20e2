"""The tokens that a second engine is asked about, and what its answers amount to."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.tokens.rescoring import Draw, check_scores, draws, in_doubt
from specgate.contract import Block, Cell, Divergence, RescoredText, Rescoring, Score, SecondLook, TokenChecks
from specgate.errors import InvalidResult
from tests.support.factories import blocks_of, plan_of, scenario

CHECKS = TokenChecks(positions=6, max_gap=0.5, max_near_ties=0.2, second_look="float32")


def measured() -> list[Block]:
    return [b for b in blocks_of(plan_of(scenario(prompt_sets=3, rounds=2))) if not b.warmup]


def scored(samples: list[Draw], gap: float = 0.0, wrong: int = 0) -> Rescoring:
    """An answer in which the first `wrong` tokens of every text are not the engine's choice."""
    texts = []
    for draw in samples:
        scores = [
            Score(token + 1, 1.0, 1.0 - gap) if i < wrong else Score(token, 1.0, 1.0)
            for i, token in enumerate(draw.tokens)
        ]
        b = draw.block
        place = (b.cell.key, b.prompt_set, b.round, draw.slot)
        texts.append(RescoredText(*place, draw.positions, draw.tokens, tuple(scores)))
    point = samples[0].block.point.key
    return Rescoring(point, "reference", "cpu", "float32", tuple(texts), None, (0, 1))


def of_cell(samples: list[Draw], cell: Cell) -> list[Draw]:
    return [d for d in samples if d.block.cell == cell]


@given(st.text(max_size=8), st.integers(1, 40))
def test_every_cell_has_so_many_tokens_drawn_and_the_draw_repeats(run_id: str, count: int) -> None:
    blocks = measured()
    samples = draws(run_id, blocks, {}, count)
    assert samples == draws(run_id, list(blocks), {}, count)
    for cell in {b.cell for b in blocks}:
        mine = of_cell(samples, cell)
        there = sum(len(t) for b in blocks if b.cell == cell and b.round == 1 for t in b.tokens)
        assert sum(len(set(d.positions)) for d in mine) == min(count, there)
        for draw in mine:
            assert list(draw.positions) == sorted(draw.positions)
            assert draw.positions[-1] < len(draw.block.tokens[draw.slot])
        # No more prompts than it takes.
        assert all(len(d.positions) == len(d.block.tokens[d.slot]) for d in mine[:-1])


def test_cells_share_the_first_prompt_so_that_one_pass_scores_them_all() -> None:
    samples = draws("run", measured(), {}, 5)
    assert len({(d.block.prompt_set, d.slot) for d in samples}) == 1 < len(samples)


def test_the_draw_depends_on_the_run_and_on_the_tokens() -> None:
    blocks = measured()
    by_run = Counter(str([(d.slot, d.positions) for d in draws(f"run {i}", blocks, {}, 6)]) for i in range(50))
    assert len(by_run) > 25
    other = [replace(blocks[0], tokens=tuple((t[0] + 1, *t[1:]) for t in blocks[0].tokens)), *blocks[1:]]
    changed = [draws(f"run {i}", blocks, {}, 6) != draws(f"run {i}", other, {}, 6) for i in range(20)]
    assert sum(changed) > 15


def test_the_text_behind_a_near_tie_is_drawn_too_from_the_tie_on() -> None:
    blocks = measured()
    spec = next(b for b in blocks if b.role.speculative)
    tie = Divergence(spec.prompt_set, spec.round, 0, 4, 1, 2, 1e-4, True)
    samples = of_cell(draws("run", blocks, {spec.cell: [tie]}, 3), spec.cell)
    behind = samples[-1]
    assert (behind.block, behind.slot, behind.positions[0]) == (spec, 0, 4) and len(behind.positions) in (3, 4)


def test_a_text_of_greedy_tokens_is_scored_without_objection() -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell = samples[0].block.cell
    check = check_scores(cell, of_cell(samples, cell), scored(samples), CHECKS)
    assert (check.scored, check.near_ties, check.wrong, check.worst) == (6, 0, 0, None)
    assert check.engine == "reference, float32, cpu"


@pytest.mark.parametrize(
    ("gap", "near_ties", "wrong"), [(0.4, 2, 0), (0.5, 2, 0), (0.6, 0, 2), (-0.1, 0, 2), (math.nan, 0, 2)]
)
def test_other_choices_are_near_ties_up_to_the_policys_gap_and_wrong_beyond(
    gap: float, near_ties: int, wrong: int
) -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell = samples[0].block.cell
    check = check_scores(cell, of_cell(samples, cell), scored(samples, gap, wrong=2), CHECKS)
    assert (check.near_ties, check.wrong, check.near_ties_allowed) == (near_ties, wrong, 1)
    assert check.worst is not None


@pytest.mark.parametrize("change", ["positions", "tokens", "slot", "fewer"])
def test_scores_of_other_tokens_than_were_drawn_are_invalid(change: str) -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell, answer = samples[0].block.cell, scored(samples)
    text = next(t for t in answer.texts if t.cell == cell.key)
    spoilt = {
        "positions": lambda: replace(text, positions=tuple(p + 1 for p in text.positions)),
        "tokens": lambda: replace(text, tokens=tuple(t + 1 for t in text.tokens)),
        "slot": lambda: replace(text, round=text.round + 1),
        "fewer": lambda: replace(text, scores=text.scores[1:]),
    }[change]()
    changed = replace(answer, texts=tuple(spoilt if t is text else t for t in answer.texts))
    with pytest.raises(InvalidResult, match=r"rescored\.jsonl scores other tokens"):
        check_scores(cell, of_cell(samples, cell), changed, CHECKS)


def test_why_nothing_was_scored_is_kept() -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    answer = replace(scored(samples), texts=(), unscored="no memory")
    assert check_scores(samples[0].block.cell, samples[:1], answer, CHECKS).unscored == "no memory"


def looked_again(samples: list[Draw], first: Rescoring, gap: float, wrong: int = 99) -> Rescoring:
    """`first` with what is in doubt scored once more, the first `wrong` of every text so far from the choice."""
    doubted = in_doubt(samples, first.texts, CHECKS)
    texts = scored(doubted, gap, wrong).texts if doubted else ()
    return replace(first, dtype="bfloat16", again=SecondLook(texts, None, (0, 1)))


@pytest.mark.parametrize(
    ("gap", "near_ties", "wrong"), [(0.0, 1, 0), (0.35, 1, 0), (0.36, 0, 1), (-0.1, 0, 1), (math.nan, 0, 1)]
)
def test_a_token_in_doubt_is_judged_by_its_gap_in_float32(gap: float, near_ties: int, wrong: int) -> None:
    """Up to 0.5 / √2, since one of two roundings is gone."""
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell = samples[0].block.cell
    scores = looked_again(samples, scored(samples, 0.6, wrong=1), gap)
    check = check_scores(cell, of_cell(samples, cell), scores, CHECKS)
    assert (check.near_ties, check.wrong, check.again, check.settled) == (near_ties, wrong, 1, near_ties)
    assert check.gap_max == pytest.approx(0.6), "the largest gap is that of the second engine's own dtype"


def test_the_token_to_look_at_first_is_one_that_float32_has_not_settled() -> None:
    checks = replace(CHECKS, max_near_ties=0.5)
    samples = draws("run", measured(), {}, CHECKS.positions)
    first = scored(samples, 0.6, wrong=2)
    text = next(t for t in first.texts if len(t.scores) > 1)
    one, two, *rest = text.scores
    first = replace(first, texts=(replace(text, scores=(replace(one, best_logit=one.logit + 0.9), two, *rest)),))
    mine = [d for d in samples if d.block.cell.key == text.cell][:1]
    (doubted,) = in_doubt(mine, first.texts, checks)
    assert doubted.positions == text.positions[:2]
    again = replace(text, positions=text.positions[:2], tokens=text.tokens[:2])
    again = replace(again, scores=(Score(text.tokens[0], 1.0, 1.0), two))
    score = replace(first, dtype="bfloat16", again=SecondLook((again,), None, (0, 1)))
    check = check_scores(mine[0].block.cell, mine, score, checks)
    assert (check.wrong, check.again, check.settled, check.near_ties) == (1, 2, 1, 1)
    assert check.gap_max == pytest.approx(0.6) and check.worst is not None and check.worst[-1] == text.positions[1]


@given(st.integers(0, 6), st.floats(0.0, 1.0))
def test_a_second_look_is_only_worth_while_where_it_could_make_a_cell_right(wrong: int, gap: float) -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    first = scored(samples, gap, wrong)
    doubted = in_doubt(samples, first.texts, CHECKS)
    for cell in {d.block.cell for d in samples}:
        mine = sum(len(d.positions) for d in of_cell(doubted, cell))
        worth = gap > CHECKS.max_gap and wrong <= 1  # of 6 tokens 1 may be a near tie
        assert mine == (wrong if worth else 0)
        settled = check_scores(cell, of_cell(samples, cell), looked_again(samples, first, 0.0), CHECKS)
        plain = check_scores(cell, of_cell(samples, cell), first, CHECKS)
        assert settled.near_ties + settled.wrong == plain.near_ties + plain.wrong
        assert (settled.wrong, settled.settled) == ((0, wrong) if worth else (plain.wrong, 0))


def test_scores_that_contradict_themselves_get_no_second_look() -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    for gap in (-0.6, math.nan):
        assert not in_doubt(samples, scored(samples, gap, wrong=1).texts, CHECKS)


@pytest.mark.parametrize("change", ["position", "token", "fewer"])
def test_a_second_look_at_tokens_that_had_no_first_is_invalid(change: str) -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell, answer = samples[0].block.cell, looked_again(samples, scored(samples, 0.6, wrong=1), 0.0)
    assert answer.again is not None
    text = next(t for t in answer.again.texts if t.cell == cell.key)
    spoilt = {
        "position": lambda: replace(text, positions=(99,)),
        "token": lambda: replace(text, tokens=tuple(t + 1 for t in text.tokens)),
        "fewer": lambda: replace(text, scores=()),
    }[change]()
    changed = replace(answer, again=replace(answer.again, texts=(spoilt,)))
    with pytest.raises(InvalidResult, match=r"rescored\.jsonl has .*second look"):
        check_scores(cell, of_cell(samples, cell), changed, CHECKS)


def test_why_a_second_look_failed_is_kept_where_it_was_worth_while() -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell = samples[0].block.cell
    for gap, wrong, why in ((0.6, 1, "no memory"), (0.4, 1, None), (0.6, 3, None)):
        answer = replace(scored(samples, gap, wrong), again=SecondLook((), "no memory", (0, 1)))
        assert check_scores(cell, of_cell(samples, cell), answer, CHECKS).unsettled == why


def test_a_policy_that_asks_for_no_second_look_is_not_moved_by_one() -> None:
    samples = draws("run", measured(), {}, CHECKS.positions)
    cell, scores = samples[0].block.cell, looked_again(samples, scored(samples, 0.6, wrong=1), 0.0)
    check = check_scores(cell, of_cell(samples, cell), scores, replace(CHECKS, second_look="none"))
    assert (check.wrong, check.again, check.settled) == (1, 0, 0)
