"""The pair's draft run along a text, against the accept counts of the loop that decoded it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError
from tests.pairs.planted import write_planted_pair

PROMPTS = [[5, 9, 2, 7, 7, 1, 30, 12], [3, 3, 8, 11], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52]]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    return PairRef("planted", *write_planted_pair(tmp_path_factory.mktemp("pair")))


def opened(pair: PairRef, batch: int = 3) -> ReferenceEngine:
    return open_engine(OpenRequest(pair, "float32", batch, 200, 3, False))


def test_the_draft_along_a_text_is_right_as_often_as_the_loop_accepted(planted: PairRef) -> None:
    engine, second = opened(planted), opened(planted, batch=1)
    engine.prefill(PROMPTS, draft=True)
    for k in (1, 2, 3):
        made = engine.decode(Role(k), Budget(steps=20), ())
        for slot, prompt in enumerate(PROMPTS):
            accepted = [row[slot] for row in made.accepted]
            starts = [sum(accepted[:i]) + i for i in range(len(accepted))]
            second.score(prompt, made.tokens[slot], [0])
            assert list(second.drafted(starts, k)) == accepted
        assert 0 < sum(map(sum, made.accepted)) < 60 * k


def test_single_cycles_in_any_order_are_told_as_all_of_them(planted: PairRef) -> None:
    engine, second = opened(planted), opened(planted, batch=1)
    engine.prefill(PROMPTS, draft=False)
    text = engine.decode(BASELINE, Budget(steps=60), ()).tokens[0]
    second.score(PROMPTS[0], text, [3])
    everywhere = second.drafted(range(50), 3)
    for starts in ([7], [30, 4], random.Random(3).sample(range(50), 12)):
        second.score(PROMPTS[0], text, [3])
        assert second.drafted(starts, 3) == tuple(everywhere[i] for i in starts)


def test_a_text_that_begins_like_the_last_one_scores_as_on_a_fresh_engine(planted: PairRef) -> None:
    engine, second = opened(planted), opened(planted, batch=1)
    engine.prefill(PROMPTS, draft=False)
    text = engine.decode(BASELINE, Budget(steps=40), ()).tokens[0]
    other = (*text[:25], *(t + 1 for t in text[25:]))
    second.score(PROMPTS[0], text, range(41))
    second.drafted([2, 20, 33], 3)
    for tokens in (other, text[:12], (*text[:12], 3, 4, 5), text):
        positions = range(len(tokens))
        fresh = opened(planted, batch=1)
        again, first = second.score(PROMPTS[0], tokens, positions), fresh.score(PROMPTS[0], tokens, positions)
        assert [s.best for s in again] == [s.best for s in first]
        assert [s.logit for s in again] == pytest.approx([s.logit for s in first], abs=1e-4)
        starts = range(0, len(tokens) - 4, 3)
        assert second.drafted(starts, 3) == fresh.drafted(starts, 3)


def test_an_engine_without_a_draft_or_a_text_drafts_along_nothing(planted: PairRef) -> None:
    engine = open_engine(OpenRequest(planted, "float32", 1, 200, 0, False))
    with pytest.raises(BackendError, match="no text was scored"):
        engine.drafted([0], 3)
    engine.score(PROMPTS[0], [1, 2, 3], [0])
    with pytest.raises(BackendError, match="no draft of the pair"):
        engine.drafted([0], 3)


def test_logits_of_single_tokens_are_those_that_scores_come_from_and_take_no_second_pass_over_the_prompt(
    planted: PairRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, second, rows = opened(planted), opened(planted, batch=1), list[int]()
    engine.prefill(PROMPTS, draft=False)
    text = engine.decode(BASELINE, Budget(steps=20), ()).tokens[2]
    scores = second.score(PROMPTS[2], text, [0, 7, 20])
    second.drafted([2, 9], 3)
    forward = second.model.forward

    def counted(slots: slice, tokens: torch.Tensor, *others: Any) -> Any:
        rows.append(tokens.shape[1])
        return forward(slots, tokens, *others)

    monkeypatch.setattr(second.model, "forward", counted)
    shown = second.token_logits(PROMPTS[2], text, [(0, ()), (7, (text[7], 3)), (20, ())], 5)
    assert sum(rows) <= len(text) + 1
    for score, top in zip(scores, shown, strict=True):
        assert top.tokens[0] == score.best and top.values[0] == pytest.approx(score.best_logit, abs=1e-4)
    assert [len(top.tokens) for top in shown] == [5, 2, 5] and shown[1].tokens == (text[7], 3)
    assert shown[0].values == tuple(sorted(shown[0].values, reverse=True))
    behind = second.token_logits(PROMPTS[2], (*text[:7], 0), [(7, shown[1].tokens)], 5)
    assert behind[0].values == pytest.approx(shown[1].values, abs=1e-4), "what stands behind a place does not count"
