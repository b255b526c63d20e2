"""Counting loops, against counting them slowly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.tokens.repetition import repeated_ngram_share


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 5))
def test_the_repeated_share_counts_ngrams_seen_before(tokens: list[int], n: int) -> None:
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    before = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repeated_ngram_share(tokens, n) == pytest.approx(before / len(grams) if grams else 0.0)


def test_a_loop_is_almost_all_repeats_and_fresh_text_has_none() -> None:
    assert repeated_ngram_share([1, 2, 3] * 100) == pytest.approx(1 - 3 / 293)
    assert repeated_ngram_share(list(range(100))) == 0.0
