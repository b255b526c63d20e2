"""Log-probabilities that a server lists → the distribution that tokens are drawn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopPLogitsWarper

from specgate.backends.servers.sampling import token_law
from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw
from specgate.errors import BackendError

VOCAB = 400
LOGS: NDArray[np.float64] = np.log(np.random.default_rng(3).dirichlet(np.full(VOCAB, 0.1)) + 1e-12)
PLAIN = Sampling(method="rejection")


def shown(
    sampling: Sampling, count: int = VOCAB, given: tuple[int, ...] = (), forbidden: tuple[int, ...] = ()
) -> TokenLaw:
    """From the `count` most likely tokens, as a server lists them."""
    order = np.argsort(-LOGS)[:count]
    return token_law(LOGS[order].tolist(), order.tolist(), VOCAB, sampling, (1, 2), given, 1e-9, forbidden)


def probabilities(law: TokenLaw) -> NDArray[np.float64]:
    counts = np.zeros(VOCAB)
    counts[list(law.tokens)] = law.probabilities
    return counts


def test_all_tokens_give_what_the_library_for_models_makes_of_the_logits() -> None:
    processors = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.95), MinPLogitsWarper(0.01)])
    expected = processors(None, torch.tensor(LOGS)[None].double()).softmax(-1)[0].numpy()
    shares = probabilities(shown(replace(PLAIN, temperature=0.7, top_p=0.95, min_p=0.01)))
    np.testing.assert_allclose(shares, expected, atol=1e-9)


def test_at_temperature_one_a_few_tokens_are_known_exactly_and_the_others_share_what_is_left() -> None:
    law, order = shown(PLAIN, count=20), np.argsort(-LOGS)[:20]
    np.testing.assert_allclose(probabilities(law)[order], np.exp(LOGS[order]), rtol=1e-6)
    assert len(law.tokens) == 20 and sum(law.probabilities) == pytest.approx(np.exp(LOGS[order]).sum())


def test_ids_that_only_pad_a_vocabulary_have_no_share_of_what_rounding_leaves() -> None:
    rounded = (LOGS - 1e-6).tolist()
    law = token_law(rounded, range(VOCAB), VOCAB + 128, replace(PLAIN, temperature=2.0), (), (), 0.0)
    np.testing.assert_allclose(law.probabilities, shown(replace(PLAIN, temperature=2.0)).probabilities, rtol=1e-6)


def test_filters_that_keep_only_listed_tokens_are_known_exactly_at_any_temperature() -> None:
    sampling = replace(PLAIN, temperature=1.7, top_k=5)
    np.testing.assert_allclose(probabilities(shown(sampling, count=20)), probabilities(shown(sampling)), rtol=1e-9)


def test_a_temperature_over_tokens_of_which_too_few_are_listed_is_not_shown() -> None:
    with pytest.raises(BackendError, match="20 of 400 tokens are listed, which leave open a distance of"):
        shown(replace(PLAIN, temperature=1.7), count=20)
    enough = probabilities(shown(replace(PLAIN, temperature=0.5), count=150))
    listed = np.argsort(-LOGS)[:150]
    np.testing.assert_allclose(enough[listed], probabilities(shown(replace(PLAIN, temperature=0.5)))[listed], atol=2e-3)


def test_tokens_that_may_not_be_drawn_leave_their_share_to_the_others() -> None:
    likely = int(np.argmax(LOGS))
    shares = probabilities(shown(PLAIN, forbidden=(likely,)))
    expected = np.exp(LOGS) / (1 - np.exp(LOGS[likely]))
    expected[likely] = 0
    np.testing.assert_allclose(shares, expected, rtol=1e-6, atol=1e-9)


def test_penalties_count_the_output_and_need_the_tokens_that_they_touch() -> None:
    likely, rare = int(np.argmax(LOGS)), int(np.argmin(LOGS))
    sampling = replace(PLAIN, frequency_penalty=0.5)
    penalised = LOGS.copy()
    penalised[likely] -= 1.0
    expected = np.exp(penalised) / np.exp(penalised).sum()
    shares = probabilities(shown(sampling, given=(likely, likely)))
    np.testing.assert_allclose(shares[shares > 0], expected[shares > 0], rtol=1e-6)
    with pytest.raises(BackendError, match=f"token {rare}, whose chance is changed, is not"):
        shown(sampling, count=20, given=(rare,))


def test_what_is_not_the_models_own_is_not_taken_for_it() -> None:
    with pytest.raises(BackendError, match=r"sum to 0\.5: not the model's"):
        token_law((LOGS + np.log(0.5)).tolist(), range(VOCAB), VOCAB, PLAIN, (), (), 0.0)
    with pytest.raises(BackendError, match="400 log-probabilities of 0 tokens"):
        token_law(LOGS.tolist(), (), VOCAB, PLAIN, (), (), 0.0)
    with pytest.raises(BackendError, match="a repetition penalty needs logits"):
        shown(replace(PLAIN, repetition_penalty=1.1))
