"""The tokens that a second engine is asked about, and what its answers amount to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.tokens.rescoring import LEAST_OF_TEXT, Draw, check_scores, draws, in_doubt
from specgate.contract import Block, Cell, RescoredText, Rescoring, Score, SecondLook, TokenChecks
from specgate.contract.samples.block import RefusedRequest, Served, ServedRequest
from specgate.errors import InvalidResult
from tests.support.factories import blocks_of, plan_of, scenario

SEED = "seed"
CHECKS = TokenChecks(positions=6, max_gap=0.5, max_near_ties=0.06, second_look="float32")


def measured() -> list[Block]:
    return [b for b in blocks_of(plan_of(scenario(prompt_sets=3, rounds=2))) if not b.warmup]


def scored(samples: list[Draw], gap: float = 0.0, wrong: int = 0) -> Rescoring:
    """An answer in which the first `wrong` tokens of every cell's first text are not the engine's choice."""
    texts, seen = [], set[Cell]()
    for draw in samples:
        spoilt = 0 if draw.block.cell in seen else wrong
        seen.add(draw.block.cell)
        scores = [
            Score(token + 1, 1.0, 1.0 - gap) if i < spoilt else Score(token, 1.0, 1.0)
            for i, token in enumerate(draw.tokens)
        ]
        b = draw.block
        place = (b.cell.key, b.prompt_set, b.round, draw.slot)
        texts.append(RescoredText(*place, draw.positions, draw.tokens, tuple(scores)))
    point = samples[0].block.point.key
    answer = Rescoring(point, "reference", "cpu", "bfloat16", tuple(texts), None, (0, 1))
    return replace(answer, seed=SEED, count=CHECKS.positions, undrafted="no cycles")


def of_cell(samples: list[Draw], cell: Cell) -> list[Draw]:
    return [d for d in samples if d.block.cell == cell]


@given(st.text(max_size=8), st.integers(1, 400))
def test_every_text_has_tokens_drawn_as_many_as_the_cell_is_due_and_the_draw_repeats(seed: str, count: int) -> None:
    blocks = measured()
    samples = draws(seed, blocks, count)
    assert samples == draws(seed, list(reversed(blocks)), count)
    for cell in {b.cell for b in blocks}:
        mine = of_cell(samples, cell)
        texts = {(b.prompt_set, slot, t) for b in blocks if b.cell == cell for slot, t in enumerate(b.tokens)}
        assert {(*d.place, d.block.tokens[d.slot]) for d in mine} == texts and len(mine) == len(texts)
        each = max(LEAST_OF_TEXT, math.ceil(count / len(texts)))
        for draw in mine:
            text = draw.block.tokens[draw.slot]
            assert list(draw.positions) == sorted(set(draw.positions)) and draw.positions[-1] < len(text)
            assert len(draw.positions) >= min(each, len(text))


def test_junk_that_is_a_share_of_the_tokens_is_drawn_as_often_as_is_claimed() -> None:
    """(1 − p)^n bounds the chance to miss it, whether it is one whole text, a part of each, or half of some."""
    count, runs = 24, 300
    blocks = [b for b in measured() if b.round == 1 and not b.role.speculative]
    blocks = [replace(b, tokens=tuple(tuple(range(80)) for _ in b.tokens)) for b in blocks]
    texts = [(b.prompt_set, slot) for b in blocks for slot in range(len(b.tokens))]

    def missed(junk: Callable[[tuple[int, int], int], bool]) -> float:
        samples = (draws(f"{i}", blocks, count) for i in range(runs))
        return sum(not any(junk(d.place, p) for d in of for p in d.positions) for of in samples) / runs

    scored = sum(len(d.positions) for d in draws("", blocks, count))
    for junk, share in (
        (lambda place, p: place == texts[2], 1 / len(texts)),
        (lambda place, p: p >= 70, 1 / 8),
        (lambda place, p: place == texts[0] and p % 2 == 0, 1 / 2 / len(texts)),
        (lambda place, p: p == 79, 1 / 80),
    ):
        assert missed(junk) <= (1 - share) ** scored + 3 * (0.25 / runs) ** 0.5


def test_the_draw_depends_on_the_seed_alone() -> None:
    blocks = measured()
    by_seed = Counter(str([(d.slot, d.positions) for d in draws(f"{i}", blocks, 6)]) for i in range(50))
    assert len(by_seed) > 25


def test_a_text_that_leaves_the_baselines_is_drawn_behind_that_place_too() -> None:
    blocks = measured()
    spec = next(b for b in blocks if b.role.speculative)
    for at in (0, 4, 7):
        tokens = tuple(t + 1 if i >= at else t for i, t in enumerate(spec.tokens[0]))
        other = replace(spec, tokens=(tokens, *spec.tokens[1:]))
        samples = draws("seed", [other if b is spec else b for b in blocks], 3)
        (draw,) = (d for d in samples if d.block is other and d.slot == 0)
        assert at in draw.positions
        assert sum(p >= at for p in draw.positions) >= min(LEAST_OF_TEXT, len(tokens) - at)


def test_requests_that_a_server_refused_leave_the_others_texts_in_the_draw() -> None:
    blocks = measured()
    served = Served((ServedRequest(0, (1, 2), (1, 1)),), refused=(RefusedRequest(0, 429, 1),), prompts=(1,))
    refusing = [replace(b, tokens=b.tokens[:1], served=served, accepted=(), drafted=()) for b in blocks]
    assert {d.place for d in draws("seed", refusing, 6)} == {(b.prompt_set, 1) for b in blocks}


def test_a_text_of_greedy_tokens_is_scored_without_objection() -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    cell = samples[0].block.cell
    check = check_scores(cell, measured(), scored(samples), CHECKS)
    assert (check.scored, check.near_ties, check.wrong, check.worst) == (24, 0, 0, None)
    assert check.engine == "reference, bfloat16, cpu"


@pytest.mark.parametrize(
    ("gap", "near_ties", "wrong"), [(0.4, 2, 0), (0.5, 2, 0), (0.6, 0, 2), (-0.1, 0, 2), (math.nan, 0, 2)]
)
def test_other_choices_are_near_ties_up_to_the_policys_gap_and_wrong_beyond(
    gap: float, near_ties: int, wrong: int
) -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    cell = samples[0].block.cell
    check = check_scores(cell, measured(), scored(samples, gap, wrong=2), CHECKS)
    assert (check.near_ties, check.wrong, check.near_ties_allowed) == (near_ties, wrong, 1)
    assert check.worst is not None


@pytest.mark.parametrize(("gap", "near_ties"), [(0.0, 1), (0.06, 1), (0.07, 0), (0.45, 0)])
def test_engines_that_both_compute_in_float32_are_not_so_far_apart(gap: float, near_ties: int) -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    answer = replace(scored(samples, gap, wrong=1), dtype="float32")
    check = check_scores(samples[0].block.cell, measured(), answer, CHECKS)
    assert (check.near_ties, check.wrong) == (near_ties, 1 - near_ties)


@pytest.mark.parametrize("change", ["positions", "tokens", "slot", "fewer"])
def test_scores_of_other_tokens_than_were_drawn_are_invalid(change: str) -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    cell, answer = samples[0].block.cell, scored(samples)
    text = next(t for t in answer.texts if t.cell == cell.key)
    spoilt = {
        "positions": lambda: replace(text, positions=tuple(p + 1 for p in text.positions)),
        "tokens": lambda: replace(text, tokens=tuple(t + 1 for t in text.tokens)),
        "slot": lambda: replace(text, round=text.round + 1),
        "fewer": lambda: replace(text, scores=text.scores[1:]),
    }[change]()
    changed = replace(answer, texts=tuple(spoilt if t is text else t for t in answer.texts))
    with pytest.raises(InvalidResult, match=r"rescored\.jsonl (scores other tokens|has not one score)"):
        check_scores(cell, measured(), changed, CHECKS)


def test_why_nothing_was_scored_is_kept() -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    answer = replace(scored(samples), texts=(), unscored="no memory")
    assert check_scores(samples[0].block.cell, measured(), answer, CHECKS).unscored == "no memory"


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
    samples = draws(SEED, measured(), CHECKS.positions)
    cell = samples[0].block.cell
    scores = looked_again(samples, scored(samples, 0.6, wrong=1), gap)
    check = check_scores(cell, measured(), scores, CHECKS)
    assert (check.near_ties, check.wrong, check.again, check.settled) == (near_ties, wrong, 1, near_ties)
    assert check.gap_max == pytest.approx(0.6), "the largest gap is that of the second engine's own dtype"


def test_the_token_to_look_at_first_is_one_that_float32_has_not_settled() -> None:
    checks = replace(CHECKS, max_near_ties=0.5)
    samples = draws(SEED, measured(), CHECKS.positions)
    first = scored(samples, 0.6, wrong=2)
    text = next(t for t in first.texts if len(t.scores) > 1)
    one, two, *rest = text.scores
    first = replace(first, texts=(replace(text, scores=(replace(one, best_logit=one.logit + 0.9), two, *rest)),))
    mine = [d for d in samples if d.block.cell.key == text.cell][:1]
    (doubted,) = in_doubt(mine, first.texts, checks)
    assert doubted.positions == text.positions[:2]
    again = replace(text, positions=text.positions[:2], tokens=text.tokens[:2])
    again = replace(again, scores=(Score(text.tokens[0], 1.0, 1.0), two))
    score = replace(first, dtype="bfloat16", again=SecondLook((again,), None, (0, 1)), seed=None)
    check = check_scores(mine[0].block.cell, measured(), score, checks)
    assert (check.wrong, check.again, check.settled, check.near_ties) == (1, 2, 1, 1)
    assert check.gap_max == pytest.approx(0.6) and check.worst is not None and check.worst[-1] == text.positions[1]


@given(st.integers(0, 6), st.floats(0.0, 1.0))
def test_a_second_look_is_only_worth_while_where_it_could_make_a_cell_right(wrong: int, gap: float) -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    first = scored(samples, gap, wrong)
    doubted = in_doubt(samples, first.texts, CHECKS)
    for cell in {d.block.cell for d in samples}:
        mine = sum(len(d.positions) for d in of_cell(doubted, cell))
        worth = gap > CHECKS.max_gap and wrong <= 1  # of 24 tokens 1 may be a near tie
        assert mine == (wrong if worth else 0)
        settled = check_scores(cell, measured(), looked_again(samples, first, 0.0), CHECKS)
        plain = check_scores(cell, measured(), first, CHECKS)
        assert settled.near_ties + settled.wrong == plain.near_ties + plain.wrong
        assert (settled.wrong, settled.settled) == ((0, wrong) if worth else (plain.wrong, 0))


def test_scores_that_contradict_themselves_get_no_second_look() -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    for gap in (-0.6, math.nan):
        assert not in_doubt(samples, scored(samples, gap, wrong=1).texts, CHECKS)


@pytest.mark.parametrize("change", ["position", "token", "fewer"])
def test_a_second_look_at_tokens_that_had_no_first_is_invalid(change: str) -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
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
        check_scores(cell, measured(), changed, CHECKS)


def test_why_a_second_look_failed_is_kept_where_it_was_worth_while() -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    cell = samples[0].block.cell
    for gap, wrong, why in ((0.6, 1, "no memory"), (0.4, 1, None), (0.6, 3, None)):
        answer = replace(scored(samples, gap, wrong), again=SecondLook((), "no memory", (0, 1)))
        assert check_scores(cell, measured(), answer, CHECKS).unsettled == why


def test_a_policy_that_asks_for_no_second_look_is_not_moved_by_one() -> None:
    samples = draws(SEED, measured(), CHECKS.positions)
    cell, scores = samples[0].block.cell, looked_again(samples, scored(samples, 0.6, wrong=1), 0.0)
    check = check_scores(cell, measured(), scores, replace(CHECKS, second_look="none"))
    assert (check.wrong, check.again, check.settled) == (1, 0, 0)
