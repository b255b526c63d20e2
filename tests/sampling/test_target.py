"""The target's distribution against the logits processors of transformers; log-probabilities against torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from specgate.contract import Sampling
from specgate.errors import BackendError, UsageError
from specgate.sampling.history import History
from specgate.sampling.keys import Floats
from specgate.sampling.settings import check_settings
from specgate.sampling.target import log_probabilities, target_distribution

VOCABULARY = 97
PROMPT, OUTPUT = [3, 5, 5, 8, 90], [5, 7, 7, 7, 11]
LOGITS = np.random.default_rng(4).normal(0, 3, VOCABULARY)


def by_transformers(sampling: Sampling, prompt: list[int], output: list[int]) -> Floats:
    """The processors of `generate` in its order, with OpenAI's presence and frequency penalties, which it lacks."""
    scores, text = torch.tensor(LOGITS)[None], torch.tensor([prompt + output])
    if sampling.logit_bias:
        scores = hf.SequenceBiasLogitsProcessor({(t,): b for t, b in sampling.logit_bias})(text, scores)
    if sampling.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(text, scores)
    for token in set(output):
        scores[0, token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    scores = hf.TemperatureLogitsWarper(sampling.temperature)(text, scores)
    if sampling.top_k:
        scores = hf.TopKLogitsWarper(sampling.top_k)(text, scores)
    if sampling.top_p < 1:
        scores = hf.TopPLogitsWarper(sampling.top_p)(text, scores)
    if sampling.min_p:
        scores = hf.MinPLogitsWarper(sampling.min_p)(text, scores)
    shares: Floats = scores.softmax(-1)[0].numpy()
    return shares


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=1.7, top_k=20),
        Sampling(top_p=0.9),
        Sampling(top_p=1e-9),
        Sampling(min_p=0.05),
        Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01),
        Sampling(repetition_penalty=1.3),
        Sampling(repetition_penalty=0.7, top_p=0.8),
        Sampling(presence_penalty=0.9, frequency_penalty=-0.4),
        Sampling(logit_bias=((0, 5.0), (8, -100.0), (12, 1.5)), repetition_penalty=1.2, frequency_penalty=0.3, top_k=9),
    ],
)
def test_the_distribution_is_that_of_transformers_processors(sampling: Sampling) -> None:
    result = target_distribution(LOGITS, sampling, History.of(PROMPT, OUTPUT, VOCABULARY))
    expected = by_transformers(sampling, PROMPT, OUTPUT)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-300)
    assert ((result > 0) == (expected > 0)).all()


def test_temperature_0_is_greedy_and_the_lowest_id_wins_a_tie() -> None:
    logits = np.array([1.0, 4.0, 4.0, 2.0], np.float32)
    assert target_distribution(logits, Sampling(temperature=0)).tolist() == [0, 1, 0, 0]
    assert target_distribution(logits, Sampling(temperature=1e-300)).tolist() == [0, 0.5, 0.5, 0]


def test_penalties_count_each_row_of_a_draft_with_the_drafts_before_it_and_forget_rejected_ones() -> None:
    sampling = Sampling(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.25)
    committed = History.of(PROMPT, OUTPUT, VOCABULARY)
    rows = list(committed.rows([7, 20, 20]))
    for i, row in enumerate(rows):
        expected = by_transformers(sampling, PROMPT, OUTPUT + [7, 20, 20][:i])
        np.testing.assert_allclose(target_distribution(LOGITS, sampling, row), expected, rtol=1e-12)
    assert committed.output.tolist() == History.of(PROMPT, OUTPUT, VOCABULARY).output.tolist()
    assert [row.output[20] for row in rows] == [0, 0, 1, 2]


def test_a_draft_that_is_no_token_is_not_counted() -> None:
    assert [int(row.output.sum()) for row in History.of([], [], 4).rows([-1, 2, 9])] == [0, 0, 1, 1]


def test_log_probabilities_are_the_models_own_whatever_is_asked_of_sampling() -> None:
    logits = np.random.default_rng(5).normal(0, 5, (3, VOCABULARY)).astype(np.float32)
    tokens = np.array([4, 0, 96])
    expected = torch.log_softmax(torch.tensor(logits).double(), -1)[torch.arange(3), torch.tensor(tokens)]
    np.testing.assert_allclose(log_probabilities(logits, tokens), expected.numpy(), rtol=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_cannot_be_sampled_from_are_named(bad: float) -> None:
    logits = LOGITS.copy()
    logits[6] = bad
    with pytest.raises(BackendError, match=f"token 6 has {bad}"):
        target_distribution(logits, Sampling())


def test_a_bias_beyond_the_vocabulary_is_named() -> None:
    with pytest.raises(UsageError, match=r"sampling\.logit_bias: token 97"):
        target_distribution(LOGITS, Sampling(logit_bias=((97, 1.0),)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("logit_bias", ((3, 1.0), (3, 2.0))),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, float("nan")),)),
        ("seed", -1),
        ("seed", 1 << 64),
    ],
)
def test_settings_that_make_no_sense_are_named(setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^here\.{setting} = "):
        check_settings(replace(Sampling(), **{setting: value}), "here")


def test_sensible_settings_are_accepted() -> None:
    check_settings(Sampling(0.0, 1.0, 50, 0.1, 1.2, -2.0, 2.0, ((1, -100.0),), "rejection", (1 << 64) - 1))
