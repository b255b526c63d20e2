"""The tokens that a second engine is asked about, and what its answers amount to."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.tokens.rescoring import FLOAT32_SIGMA, LEAST_OF_TEXT, Draw, check_scores, draws
from specgate.contract import Block, Cell, Margin, RescoredText, Rescoring, Score, SecondLook
from specgate.contract.samples.block import RefusedRequest, Served, ServedRequest
from specgate.errors import InvalidResult
from tests.support.factories import blocks_of, plan_of, scenario

SEED = "seed"
POSITIONS, ERROR, SIGMA = 6, 0.0005, 0.05


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
    return replace(answer, seed=SEED, count=POSITIONS, undrafted="no cycles")


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
    samples = draws(SEED, measured(), POSITIONS)
    cell = samples[0].block.cell
    check = check_scores(cell, measured(), scored(samples), ERROR)
    assert (check.scored, check.near_ties, check.wrong, check.worst) == (24, 0, 0, None)
    assert check.engine == "reference, bfloat16, cpu"


@pytest.mark.parametrize(("sigmas", "wrong"), [(0.0, 0), (1.0, 0), (4.0, 0), (5.5, 1), (30.0, 1)])
def test_engines_that_both_compute_in_float32_are_a_few_roundings_of_that_apart(sigmas: float, wrong: int) -> None:
    """√2 for two tokens; 3.6 standard deviations are allowed of one in 0.0005 / 2, on both sides."""
    samples = draws(SEED, measured(), POSITIONS)
    answer = replace(scored(samples, sigmas * FLOAT32_SIGMA, wrong=1), dtype="float32")
    check = check_scores(samples[0].block.cell, measured(), answer, ERROR)
    assert (check.wrong, check.near_ties, check.settled) == (wrong, int(0 < sigmas < 5), int(not sigmas))


@pytest.mark.parametrize("gap", [-0.1, math.nan])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_that_contradict_themselves_are_wrong(gap: float, dtype: str) -> None:
    samples = draws(SEED, measured(), POSITIONS)
    check = check_scores(samples[0].block.cell, measured(), replace(scored(samples, gap, wrong=2), dtype=dtype), ERROR)
    assert (check.wrong, check.near_ties) == (2, 0)


@pytest.mark.parametrize("change", ["positions", "tokens", "slot", "fewer"])
def test_scores_of_other_tokens_than_were_drawn_are_invalid(change: str) -> None:
    samples = draws(SEED, measured(), POSITIONS)
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
        check_scores(cell, measured(), changed, ERROR)


def test_why_nothing_was_scored_is_kept() -> None:
    samples = draws(SEED, measured(), POSITIONS)
    answer = replace(scored(samples), texts=(), unscored="no memory")
    assert check_scores(samples[0].block.cell, measured(), answer, ERROR).unscored == "no memory"


def looked_at(samples: list[Draw], wrong: int, gap: float, named: bool = True) -> Rescoring:
    """Scores with a look at the first `wrong` tokens of every cell's first text: `gap` below the choice in float32. Its
    own rounding is `SIGMA`. `named`: the emitted token is among the most likely ones.
    """
    first, source = scored(samples, 0.6, wrong), random.Random(1)
    places = []
    for text in first.texts:
        for position, token, score in zip(text.positions, text.tokens, text.scores, strict=True):
            if score.best == token:
                continue
            tokens = (score.best, token if named else 9998, *range(9000, 9018))
            float32 = (20.0, 20.0 - gap, *(19.0 - gap - i / 4 for i in range(18)))
            second = tuple(value + source.gauss(0, SIGMA) for value in float32)
            place = (text.cell, text.prompt_set, text.round, text.slot, position)
            places.append(Margin(*place, second[0], second[1], top_tokens=tokens, float32=float32, second=second))
    return replace(first, again=SecondLook(tuple(places), None, (0, 1)))


@pytest.mark.parametrize(("gap", "near_ties", "wrong"), [(0.0, 0, 0), (0.05, 1, 0), (0.25, 1, 0), (1.0, 0, 1)])
def test_a_token_that_is_not_chosen_is_judged_by_its_gap_in_float32(gap: float, near_ties: int, wrong: int) -> None:
    """In roundings of the second engine, whatever its gap was in the scenario's dtype."""
    samples = draws(SEED, measured(), POSITIONS)
    check = check_scores(samples[0].block.cell, measured(), looked_at(samples, 1, gap), ERROR)
    assert (check.near_ties, check.wrong, check.settled) == (near_ties, wrong, int(not gap))
    if gap:
        assert check.law is not None and check.law.sigma == pytest.approx(SIGMA, rel=0.35)
        assert check.gap_max == pytest.approx(gap) and check.worst is not None


def test_a_token_that_is_not_among_the_most_likely_ones_is_wrong() -> None:
    samples = draws(SEED, measured(), POSITIONS)
    check = check_scores(samples[0].block.cell, measured(), looked_at(samples, 1, 0.01, named=False), ERROR)
    assert (check.wrong, check.near_ties, check.gap_max) == (1, 0, None)


def test_tokens_that_are_each_a_near_tie_may_lie_too_far_off_all_together() -> None:
    samples = draws(SEED, measured(), POSITIONS)
    check = check_scores(samples[0].block.cell, measured(), looked_at(samples, 6, 0.25), ERROR)
    assert check.wrong == 0 and check.law is not None and check.law.too_wide and check.law.places == 6


@pytest.mark.parametrize("change", ["position", "chosen", "fewer", "shown"])
def test_a_look_at_tokens_that_were_chosen_or_of_another_form_is_invalid(change: str) -> None:
    samples = draws(SEED, measured(), POSITIONS)
    cell, answer = samples[0].block.cell, looked_at(samples, 1, 0.1)
    assert answer.again is not None
    look = next(m for m in answer.again.places if m.cell == cell.key)
    chosen = next(t for t in answer.texts if t.cell == cell.key).positions[1]
    spoilt = {
        "position": lambda: replace(look, position=99),
        "chosen": lambda: replace(look, position=chosen),
        "fewer": lambda: replace(look, float32=look.float32[1:]),
        "shown": lambda: replace(look, top=look.float32),
    }[change]()
    changed = replace(answer, again=replace(answer.again, places=(spoilt,)))
    with pytest.raises(InvalidResult, match=r"rescored\.jsonl (looks at tokens again|has not one logit)"):
        check_scores(cell, measured(), changed, ERROR)


def test_a_token_is_not_settled_where_nothing_tells_how_the_second_engine_rounds() -> None:
    samples = draws(SEED, measured(), POSITIONS)
    answer = looked_at(samples, 1, 0.1)
    assert answer.again is not None
    blind = tuple(replace(m, float32=()) for m in answer.again.places)
    for again, why in ((SecondLook(blind, "no memory", (0, 1)), "no memory"), (None, None)):
        check = check_scores(samples[0].block.cell, measured(), replace(answer, again=again), ERROR)
        assert check.law is not None and (check.law.unknown, check.near_ties, check.wrong) == (1, 0, 0)
        assert check.unsettled == why
