"""Tokens drawn by the kernels are those that `specgate.sampling` draws, and have the target's distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.sampling.launchers import EACH, CutRows, Division, DrawRows, Seed, threads_of
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers
from specgate.backends.eagle3.cupy.step.token_draw import TokenDraw
from specgate.contract import Sampling
from specgate.sampling.distributions import over_target
from specgate.sampling.rejection import draft_sample
from specgate.sampling.target import softmax, target_distribution
from tests.eagle3.cupy.kernels.sampling.drawing import Rows, greedy

VOCAB = 3000
"""Two blocks of a row, the second of which is partly empty."""
BIASED = Sampling(logit_bias=((3, 8.0), (77, -100.0), (VOCAB - 1, 6.5)))
ASKED = {
    "as it is": Sampling(),
    "cool": Sampling(temperature=0.37, seed=2**64 - 3),
    "hot": Sampling(temperature=5.0, seed=17),
    "nearly greedy": Sampling(temperature=1e-5),
    "top-k": Sampling(top_k=40),
    "top-k of one": Sampling(top_k=1, temperature=2.0),
    "top-k of more than there are": Sampling(top_k=VOCAB + 1),
    "top-p": Sampling(top_p=0.8, temperature=1.3),
    "top-p of next to nothing": Sampling(top_p=1e-9),
    "top-p of nearly all": Sampling(top_p=0.9999, temperature=3.0),
    "min-p": Sampling(min_p=0.02, temperature=1.5),
    "min-p of all": Sampling(min_p=1.0),
    "all filters": Sampling(temperature=0.8, top_k=60, top_p=0.9, min_p=0.01, seed=5),
    "far beyond the largest": Sampling(temperature=0.01, top_k=300),
    "bias": BIASED,
    "bias and filters": replace(BIASED, temperature=0.7, top_k=90, top_p=0.95, min_p=0.001),
}


def normal(rows: int, vocab: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def several(sampling: Sampling, logits: Tensor) -> Rows:
    """Four slots, of which three decode, at far apart positions."""
    requests = [2**64 - 1, 12, 2**63 + 5, 2**32]
    return Rows(sampling, logits, requests, [1, 40_000, 3, 2**30 - 4], active=[0, 2, 3])


@pytest.mark.parametrize("name", ASKED)
def test_every_row_draws_the_token_that_the_reference_draws(device: str, name: str) -> None:
    rows = several(ASKED[name], normal(12, VOCAB, seed=len(name)))
    assert rows.drawn(device) == rows.expected()


@pytest.mark.parametrize("vocab", [1, 33, 2049])
def test_so_it_does_for_rows_of_any_length(device: str, vocab: int) -> None:
    for sampling in (Sampling(), Sampling(top_p=0.7, top_k=20)):
        rows = several(sampling, normal(6, vocab))
        assert rows.drawn(device) == rows.expected()


def test_a_rows_draw_does_not_depend_on_the_rows_beside_it(device: str) -> None:
    sampling, logits = ASKED["all filters"], normal(8, VOCAB)
    requests, positions = list(range(100, 108)), list(range(5, 13))
    together = Rows(sampling, logits, requests, positions).drawn(device)
    alone = [Rows(sampling, logits[i : i + 1], requests[i : i + 1], positions[i : i + 1]) for i in range(8)]
    assert [row.drawn(device) for row in alone] == [[token] for token in together]
    backwards = Rows(sampling, logits.flip(0), requests[::-1], positions[::-1])
    assert backwards.drawn(device) == together[::-1]


@pytest.mark.parametrize("name", ["top-k", "top-p", "all filters", "min-p"])
def test_of_equal_logits_filters_keep_those_that_the_reference_keeps(device: str, name: str) -> None:
    """Few different logits, of which each is shared by many columns: no filter ends between two of them."""
    logits = normal(12, VOCAB, scale=1.0).mul(2).round().div(2)
    rows = several(ASKED[name], logits)
    assert rows.drawn(device) == rows.expected()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=0.999, temperature=3.0),
        Sampling(top_p=0.3),
        Sampling(top_k=500, top_p=0.5, temperature=2.0),
        Sampling(top_k=77),
        Sampling(min_p=0.05, temperature=2.0),
    ],
    ids=str,
)
def test_filters_leave_what_the_reference_leaves_to_the_last_column(device: str, sampling: Sampling) -> None:
    rows = several(sampling, normal(24, VOCAB, seed=9))
    laws = np.stack([target_distribution(row, sampling) for row in rows.logits.numpy()])
    assert (rows.kept(device) == (laws > 0)).all()


ROWS = {
    "spread": lambda shape: 3 * noise(shape),
    "nearly flat": lambda shape: 0.01 * noise(shape) - 7,
    "flat": lambda shape: torch.full(shape, -2.5),
    "of few values": lambda shape: noise(shape).mul(2).round().div(2),
    "far apart": lambda shape: 200 * noise(shape),
    "with a long tail": lambda shape: -45 * noise(shape).abs().sqrt(),
}


def noise(shape: tuple[int, int]) -> Tensor:
    return normal(*shape, scale=1.0, seed=12)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_p=0.9002),
        Sampling(top_k=50),
        Sampling(temperature=0.6, top_k=20, top_p=0.9502),
        Sampling(temperature=0.05, top_k=2000, top_p=0.6, min_p=0.01),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ROWS)
def test_filters_leave_it_whatever_the_row_is_like_and_whether_or_not_it_fits_into_a_list(
    device: str, name: str, sampling: Sampling
) -> None:
    """A list of the columns that matter has room for some. What does not fit is read from the row. No share of a flat
    row is a whole number of columns: there, sums of floats would decide about the last one.
    """
    rows = several(sampling, ROWS[name]((3, VOCAB)))
    laws = np.stack([target_distribution(row, sampling) for row in rows.logits.numpy()])
    for room in (None, 5):
        assert (rows.kept(device, room) == (laws > 0)).all(), room


@pytest.mark.parametrize("name", ["nearly flat", "flat"])
@pytest.mark.gpu
def test_so_they_do_where_a_whole_vocabulary_does_not_fit(name: str) -> None:
    sampling, logits = Sampling(top_p=0.9002), ROWS[name]((3, 128_256))
    with torch.inference_mode():
        rows = several(sampling, logits)
        assert rows.drawn("cuda") == rows.expected()


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.5, top_k=5000, top_p=0.9)], ids=["plain", "top"]
)
@pytest.mark.parametrize("vocab", [128_256, 201_088])
@pytest.mark.gpu
def test_whole_vocabularies_draw_what_the_reference_draws(vocab: int, sampling: Sampling) -> None:
    with torch.inference_mode():
        rows = several(sampling, normal(12, vocab))
        assert rows.drawn("cuda") == rows.expected()


def test_where_all_logits_are_equal_the_lower_columns_are_kept(device: str) -> None:
    rows = several(Sampling(top_p=0.0101), torch.full((24, VOCAB), -2.5))
    assert rows.drawn(device) == rows.expected()
    assert 20 < max(rows.expected()) <= 30  # 31 of 3,000 columns have more than 0.0101 of the mass


def test_minus_zero_and_zero_are_equal_logits(device: str) -> None:
    logits = torch.full((6, 40), -1.0)
    logits[:, 3], logits[:, 7] = -0.0, 0.0
    rows = several(Sampling(top_k=1), logits)
    assert rows.drawn(device) == rows.expected() and set(rows.expected()) == {3, 7}


def test_a_bias_is_as_if_the_head_had_left_it(device: str) -> None:
    """At temperature 0 too: the largest sum wins."""
    sampling, logits = replace(BIASED, temperature=0.0), normal(6, VOCAB)
    rows = several(sampling, logits)
    assert rows.drawn(device) == rows.expected() != rows.logits.argmax(dim=1).tolist()


def test_a_row_that_is_not_finite_keeps_the_choice_that_says_so(device: str) -> None:
    logits = normal(12, VOCAB)
    logits[5, 9] = float("nan")
    rows = several(ASKED["all filters"], logits)
    drawn = rows.drawn(device)
    del drawn[5]
    assert drawn == rows.expected([row for row in range(12) if row != 5])


def test_a_draft_draws_with_the_numbers_of_the_tokens_that_its_columns_stand_for(device: str) -> None:
    columns, offset = 700, 2
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:columns].int()
    changed = replace(ASKED["all filters"], seed=11)
    rows = several(changed, normal(3, columns))
    drawn = rows.drawn(device, target_ids=ids, offset=offset)
    shares = np.stack([softmax(row / changed.temperature) for row in rows.logits.double().numpy()])
    spread = over_target(shares, ids.numpy().astype(np.int64), VOCAB)
    assert [int(ids[c]) for c in drawn] == draft_sample(spread, rows.keys().after(offset), coupled=True).tolist()


def test_a_draft_of_the_targets_own_logits_is_always_accepted(device: str) -> None:
    logits = normal(3, VOCAB)
    rows, ids = several(Sampling(temperature=1.4), logits), torch.arange(VOCAB, dtype=torch.int32)
    assert rows.drawn(device, target_ids=ids) == rows.drawn(device)


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.7), Sampling(top_k=9, top_p=0.9), Sampling(min_p=0.1)])
def test_draws_fit_the_distribution_and_no_other(device: str, sampling: Sampling) -> None:
    draws, vocab = 4_000 if device == "cpu" else 200_000, 24
    row = normal(1, vocab, scale=1.5, seed=4)
    drawn = list[int]()
    for first in range(0, draws, 2_000):
        requests = range(first, first + 2_000)
        drawn += Rows(sampling, row.expand(2_000, -1).contiguous(), requests, [9] * 2_000).drawn(device)
    histogram = np.bincount(drawn, minlength=vocab)
    law = target_distribution(row[0].numpy(), sampling)
    assert not histogram[law == 0].any()
    kept = law > 0
    assert stats.chisquare(histogram[kept], draws * law[kept]).pvalue > 1e-4
    other = target_distribution(row[0].numpy(), replace(sampling, temperature=sampling.temperature * 1.3))
    both = kept & (other > 0)
    expected = histogram[both].sum() * other[both] / other[both].sum()
    assert stats.chisquare(histogram[both], expected).pvalue < 1e-6


def test_columns_are_divided_among_whole_warps_and_all_have_a_thread() -> None:
    for columns in (1, 31, 256, 257, 2048, 2049, 128_256, 201_088):
        division = Division(columns)
        assert division.threads % 32 == 0 and division.threads <= 256
        assert 0 <= division.blocks * division.threads * EACH - columns < division.threads * EACH
    assert [threads_of(work, 1024) for work in (1, 32, 33, 5000)] == [32, 32, 64, 1024]


def test_a_seed_is_two_words_of_c() -> None:
    seed = 0xFFFF_FFFF_7FFF_FFFF
    assert Seed.of(seed) == Seed(0x7FFFFFFF, -1)


def test_a_request_for_sampling_launches_what_it_asks_for_and_no_more() -> None:
    names = {name: list(TokenDraw(sampling, VOCAB, 4).kernels()) for name, sampling in ASKED.items()}
    assert names["cool"] == ["draw"]
    assert names["top-k"] == names["top-p"] == names["all filters"] == ["weigh", "cut", "draw"]
    assert names["min-p"] == ["cut", "draw"]
    assert names["bias"] == ["bias", "draw"]
    assert list(TokenDraw(replace(BIASED, temperature=0.0), VOCAB, 4).kernels()) == ["bias"]
    assert list(TokenDraw(ASKED["bias and filters"], VOCAB, 4, draft=True).kernels()) == ["draw"]
    assert not TokenDraw(Sampling(temperature=0.0, top_k=5), VOCAB, 4).kernels()


def test_memory_is_taken_for_what_is_asked_for_and_no_more() -> None:
    rows = {name: SamplingBuffers.allocate(sampling, VOCAB, 2, 8, "meta") for name, sampling in ASKED.items()}
    filters = ("cuts", "edges", "bucket_sums", "listed", "list_sizes")
    assert {len(getattr(rows["cool"], name)) for name in (*filters, "bias")} == {0}
    assert [len(getattr(rows["min-p"], name)) for name in filters] == [8, 0, 0, 0, 0]
    assert [len(getattr(rows["top-p"], name)) for name in filters] == [8, 8, 8, 8, 8]
    assert len(rows["bias"].bias) == VOCAB


def test_operands_that_a_launcher_was_not_made_for_are_refused() -> None:
    rows = several(Sampling(), normal(3, 40))
    b, slots = rows.buffers("cpu")
    groups = slots.rows(1, 3), slots, b, Seed.of(0)
    operands = {"choices": greedy(rows.logits), "logits": rows.logits, "offset": 0}
    with pytest.raises(ValueError, match="draw_rows: cuts is given: the kernel is not compiled for FILTERED"):
        DrawRows(40, 1.0)(*groups, **operands, cuts=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"logits: .* \[3, 41\] is needed"):
        DrawRows(41, 1.0)(*groups, **operands)
    with pytest.raises(ValueError, match="cut_rows: edges is missing: the kernel is compiled for TOP_K"):
        CutRows(40, 1.0, 3, 1.0, 0.0)(slots.rows(1, 3), cuts=b.best, logits=rows.logits, choices=b.best)
