from __future__ import annotations

import hashlib

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.lib.planted.rows import draws, hash32, key_of, shuffled, uniform_rows

WORDS = st.integers(0, 2**32 - 1)


def numpy_hash(words: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """The same bijection on unsigned words, as its formula reads."""
    x = words.astype(np.uint32)
    with np.errstate(over="ignore"):
        for step, word in (("xor", key[0]), ("add", key[1])):
            x = x ^ np.uint32(word) if step == "xor" else x + np.uint32(word)
            x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
            x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
            x = x ^ (x >> np.uint32(16))
    return x


@given(st.lists(WORDS, min_size=1, max_size=64), WORDS, WORDS)
def test_the_hash_is_the_unsigned_formula(words: list[int], k0: int, k1: int) -> None:
    counters = np.array(words, dtype=np.uint32)
    result = hash32(torch.from_numpy(counters.view(np.int32).copy()), (k0, k1)).numpy().view(np.uint32)
    assert (result == numpy_hash(counters, (k0, k1))).all()


def test_an_entry_is_a_function_of_key_row_and_column_alone() -> None:
    key = key_of(3, "w")
    whole = uniform_rows(key, torch.arange(40), 96, 0.5)
    part = uniform_rows(key, torch.tensor([7, 31, 7]), 96, 0.5)
    assert torch.equal(part, whole[[7, 31, 7]])


def test_entries_are_the_upper_bits_of_the_hash_centred_and_scaled() -> None:
    key = key_of(1, "w")
    words = numpy_hash(np.arange(5 * 33), key) >> np.uint32(8)
    exact = (2 * words.astype(np.float64) + 1 - 2**24) / 2**24 * np.sqrt(3) * 0.25
    numbers = uniform_rows(key, torch.arange(5), 33, 0.25).double().numpy().ravel()
    assert np.abs(numbers - exact).max() <= 2**-23 * np.abs(exact).max()


def test_entries_have_the_mean_and_deviation_that_were_asked_for() -> None:
    entries = uniform_rows(key_of(1, "w"), torch.arange(512), 512, 2.0).double()
    assert abs(float(entries.mean())) < 5 * 2.0 / 512
    assert abs(float(entries.std()) / 2.0 - 1) < 0.01
    assert float(entries.abs().max()) <= 2.0 * 3**0.5


def test_tensors_of_other_names_and_seeds_are_uncorrelated() -> None:
    rows = torch.arange(256)
    tensors = [uniform_rows(key_of(s, n), rows, 256, 1.0).ravel() for s in (1, 2) for n in ("a", "b")]
    correlations = torch.corrcoef(torch.stack(tensors)) - torch.eye(4)
    assert float(correlations.abs().max()) < 5 / 256


def test_a_shuffle_is_a_permutation_and_draws_are_spread_evenly() -> None:
    assert sorted(shuffled(key_of(1, "p"), 5000).tolist()) == list(range(5000))
    counts = torch.bincount(draws(key_of(1, "d"), 100_000, 10), minlength=10)
    assert counts.min() > 9_500 and len(counts) == 10


def test_the_generator_makes_the_bits_that_it_has_always_made() -> None:
    entries = uniform_rows(key_of(1, "golden"), torch.arange(64), 64, 1.0)
    digest = hashlib.sha256(entries.numpy().tobytes()).hexdigest()
    assert digest == "2fb7e5aef6561b3628793c67b070c875e4984c7e5f3d46e3f0cdf1aafcde69b4"
