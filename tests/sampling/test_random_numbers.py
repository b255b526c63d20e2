"""Philox against its published vectors, torch's own source and numpy's sibling of it; keys, and draws by race."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from specgate.sampling.keys import Keys, Purpose, philox, race, requests_of, uniforms, words

WIDTHS = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}


def by_the_paper(counter: list[int], key: list[int], width: int) -> list[int]:
    """Philox4x`width`-10 in Python's integers."""
    (m0, m1), steps = WIDTHS[width]
    low = (1 << width) - 1
    for number in range(10):
        k0, k1 = ((word + number * step) & low for word, step in zip(key, steps, strict=True))
        a, b = m0 * counter[0], m1 * counter[2]
        counter = [(b >> width) ^ counter[1] ^ k0, b & low, (a >> width) ^ counter[3] ^ k1, a & low]
    return counter


def keys(requests: int, seed: int = 7, position: int = 0) -> Keys:
    return Keys(seed, np.arange(requests, dtype=np.uint64), np.full(requests, position))


@pytest.mark.parametrize(
    ("counter", "key", "published"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_vectors_that_random123_publishes(counter: list[int], key: list[int], published: str) -> None:
    result = philox(np.array(counter, np.uint32), (key[0], key[1]))
    assert " ".join(f"{word:08x}" for word in result) == published


def test_many_counters_at_once_are_those_of_the_paper_one_by_one() -> None:
    source = np.random.default_rng(1)
    counters = source.integers(0, 1 << 32, (50, 4), dtype=np.uint32)
    result = philox(counters, (0x12345678, 0xFEDCBA98))
    assert result.tolist() == [by_the_paper(c, [0x12345678, 0xFEDCBA98], 32) for c in counters.tolist()]


def test_the_form_of_the_paper_with_64_bits_is_numpys_generator() -> None:
    counter, key = [11, 22, 33, 44], [55, 66]
    theirs = np.random.Philox(counter=np.array(counter, np.uint64), key=np.array(key, np.uint64))
    counter[0] += 1  # numpy counts before it draws
    assert theirs.random_raw(4).tolist() == by_the_paper(counter, key, 64)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_philox_gives_the_words_of_torchs_engine(tmp_path: Path) -> None:
    (tmp_path / "philox.cpp").write_text(
        "#include <ATen/core/PhiloxRNGEngine.h>\n#include <cstdio>\n"
        "int main() { at::Philox4_32 engine(0xdeadbeef12345678ULL, 0x0123456789abcdefULL, 0x1122334455667788ULL);\n"
        '  for (int i = 0; i < 8; i++) printf("%u\\n", engine()); }\n'
    )
    include, program = Path(torch.__file__).parent / "include", tmp_path / "philox"
    subprocess.run(["g++", "-std=c++20", f"-I{include}", tmp_path / "philox.cpp", "-o", program], check=True)
    theirs = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    counters = np.array([[0x55667788 + i, 0x11223344, 0x89ABCDEF, 0x01234567] for i in range(2)], np.uint32)
    assert philox(counters, (0x12345678, 0xDEADBEEF)).ravel().tolist() == [int(word) for word in theirs]


def test_a_draw_depends_on_its_own_request_and_position_alone() -> None:
    alone = Keys(3, np.array([9], np.uint64), np.array([41]))
    shared = Keys(3, np.array([1, 2**40, 9], np.uint64), np.array([5, 40, 40]))
    for purpose in Purpose:
        assert (uniforms(shared.after(1), purpose, 5)[2] == uniforms(alone, purpose, 5)[0]).all()


def test_seed_request_position_and_purpose_each_change_the_numbers() -> None:
    here = keys(1)
    others = [
        keys(1, seed=8),
        keys(1, seed=7 + 2**32),
        keys(1, position=1),
        Keys(7, np.array([2**32], np.uint64), here.positions),
    ]
    drawn = [words(k, Purpose.TARGET, 3).tobytes() for k in (here, *others)]
    drawn += [words(here, purpose, 3).tobytes() for purpose in Purpose if purpose is not Purpose.TARGET]
    assert len(set(drawn)) == len(drawn)


def test_more_numbers_begin_with_the_same_ones() -> None:
    assert (uniforms(keys(3), Purpose.DRAFT, 9)[:, :4] == uniforms(keys(3), Purpose.DRAFT, 4)).all()


def test_no_requests_take_no_numbers() -> None:
    assert uniforms(keys(0), Purpose.DRAFT, 3).shape == (0, 3)
    assert race(np.ones((0, 3)), keys(0), Purpose.DRAFT).shape == (0,)


@pytest.mark.parametrize("word", [0, 0xFFFFFFFF])
def test_the_extreme_words_give_numbers_strictly_between_0_and_1(monkeypatch: pytest.MonkeyPatch, word: int) -> None:
    monkeypatch.setattr(
        "specgate.sampling.keys.words", lambda keys, purpose, blocks: np.full((2, blocks, 4), word, np.uint32)
    )
    drawn = uniforms(keys(2), Purpose.TARGET, 3)
    assert ((drawn > 0) & (drawn < 1)).all() and (-np.log(drawn) > 0).all()


def test_numbers_are_uniform_and_those_of_neighbours_are_not_alike() -> None:
    drawn = uniforms(keys(400), Purpose.TARGET, 50)
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    following = uniforms(keys(400, position=1), Purpose.TARGET, 50)
    for a, b in ((drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:]), (drawn, following)):
        assert abs(stats.pearsonr(a.ravel(), b.ravel()).statistic) < 0.03


def test_a_race_is_won_in_proportion_to_the_weights_and_never_at_weight_0() -> None:
    weights = np.array([0.5, 0.0, 3.0, 1.5])
    won = np.bincount(race(np.tile(weights, (20_000, 1)), keys(20_000), Purpose.RESIDUAL), minlength=4)
    assert won[1] == 0
    assert stats.chisquare(won[[0, 2, 3]], weights[[0, 2, 3]] / 5 * 20_000).pvalue > 1e-3


def test_requests_are_known_by_their_prompts_wherever_they_stand() -> None:
    a, b, again = requests_of([[1, 2], [3], [1, 2]]).tolist()
    assert requests_of([[3], [1, 2]]).tolist() == [b, a]
    assert a == again != b
