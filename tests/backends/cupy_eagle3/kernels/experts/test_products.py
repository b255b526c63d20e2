"""The kernels of a mixture of experts against float64, and a row's bits in any company."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.kernels.experts.expert_config import ExpertConfig
from specgate.eagle3.geometry import ExpertGeometry
from tests.backends.cupy_eagle3.kernels.device import relative_error, rows_of
from tests.backends.cupy_eagle3.kernels.experts.mixtures import Mixture, picked

pytestmark = pytest.mark.gpu

# (experts, of a token, hidden, intermediate): gpt-oss' widths with few experts, and sizes that divide by little.
SIZES = [(16, 4, 2880, 2880), (128, 4, 512, 64), (8, 2, 512, 64), (6, 2, 64, 96), (33, 3, 96, 160), (5, 1, 64, 32)]
COUNTS = (1, 4, 8, 9, 17, 64)


@cache
def mixture(experts: int, per_token: int, hidden: int, intermediate: int) -> Mixture:
    return Mixture(ExpertGeometry(experts, per_token, mxfp4=True), hidden, intermediate)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_mixture_agrees_with_float64(sizes: tuple[int, int, int, int]) -> None:
    made = mixture(*sizes)
    for count in COUNTS:
        stream = made.rows(count)
        left = made.run(stream, rows_of(range(count), 1))
        logits, act, want = made.oracle(stream, left.logits)
        assert relative_error(left.logits, logits) < 1e-5
        assert relative_error(left.act, act) < 2e-3
        assert relative_error(left.stream - stream, want - stream) < 2e-3
        assert torch.equal(left.normed, (left.stream * made.norm_weight.float()).bfloat16())
        squares = left.stream.double().square().view(count, -1, 8).sum(-1)
        assert relative_error(left.squares, squares) < 1e-6
        assert not left.finished.any()
        chosen, _ = oracles.chosen_experts(left.logits, made.experts.per_token)
        assert left.touched.flatten().tolist() == [-1] * 5 + [len({*chosen.flatten().tolist()})]


@pytest.mark.parametrize("sizes", SIZES)
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(sizes: tuple[int, int, int, int]) -> None:
    made = mixture(*sizes)
    stream = made.rows(64)
    whole = made.run(stream, rows_of(range(64), 1))
    for rows in ([5], [63], [0, 1, 2, 3], [7, 40], list(range(8)), list(range(20, 37)), list(range(63, -1, -1))):
        got = made.run(stream[rows].contiguous(), rows_of(range(len(rows)), 1))
        assert all(torch.equal(a, b) for a, b in zip(got.results, picked(whole, rows), strict=True)), rows


def test_an_expert_of_many_rows_gives_each_what_it_gives_it_alone() -> None:
    made = mixture(16, 4, 2880, 2880)
    stream = made.rows(64)
    same = torch.zeros(64, 16, device="cuda")
    same[:, [3, 15, 0, 8]] = torch.tensor([4.0, 3.0, 2.0, 1.0], device="cuda")
    whole = made.run(stream, rows_of(range(64), 1), logits=same)
    _, act, want = made.oracle(stream, same)
    assert relative_error(whole.act, act) < 2e-3
    assert relative_error(whole.stream - stream, want - stream) < 2e-3
    for row in (0, 8, 63):
        alone = made.run(stream[row : row + 1], rows_of([0], 1), logits=same[:1])
        assert torch.equal(alone.stream[0], whole.stream[row])


def test_the_lowest_of_equal_logits_wins_and_places_are_in_the_order_of_logits() -> None:
    made = mixture(8, 2, 512, 64)
    stream = made.rows(4)
    logits = torch.tensor([[0.0] * 8, [-1, 5, 5, 5, 0, 0, 0, 0], [-0.0, 0.0] + [-3.0] * 6, [0.0] * 7 + [9.0]]).cuda()
    left = made.run(stream, rows_of(range(4), 1), logits=logits)
    _, act, want = made.oracle(stream, logits)
    assert relative_error(left.act, act) < 2e-3 and relative_error(left.stream - stream, want - stream) < 2e-3


def test_rows_of_slots_that_are_done_are_neither_computed_nor_written() -> None:
    made = mixture(8, 2, 512, 64)
    stream = made.rows(32)
    full = made.run(stream, rows_of(range(32), 1))
    for active in (0, 1, 3):
        left = made.run(stream, rows_of(range(active), 4, slots=8))
        for got, want in zip(left.results, full.results, strict=True):
            assert torch.equal(got[: 4 * active], want[: 4 * active])
        logits, x16, act, after, normed, squares = left.results
        assert all(got[4 * active :].isnan().all() for got in (logits, x16, act, normed, squares))
        assert torch.equal(after[4 * active :], stream[4 * active :])


def test_a_row_that_is_not_finite_stays_so_and_alone() -> None:
    made = mixture(8, 2, 512, 64)
    stream = made.rows(8)
    clean = made.run(stream, rows_of(range(8), 1))
    stream[3, 17] = float("nan")
    left = made.run(stream, rows_of(range(8), 1))
    others = [0, 1, 2, 4, 5, 6, 7]
    assert left.stream[3].isnan().all()
    assert all(torch.equal(a, b) for a, b in zip(picked(left, others), picked(clean, others), strict=True))


def test_how_work_is_moved_changes_no_bit() -> None:
    made = mixture(33, 3, 96, 160)
    stream = made.rows(8)
    usual = made.run(stream, rows_of(range(8), 1))
    gate_up, down = ExpertConfig.usual(96, 20, 2), ExpertConfig.usual(160, 6, 1)
    for tiles, stages, blocks in ((1, 2, 1), (2, 3, 3), (1, 8, 2)):
        moved = replace(gate_up, tiles=tiles, stages=stages, blocks_per_sm=blocks)
        other = replace(down, stages=stages, blocks_per_sm=blocks)
        got = made.run(stream, rows_of(range(8), 1), gate_up=moved, down=other)
        assert all(torch.equal(a, b) for a, b in zip(got.results, usual.results, strict=True))


def test_layers_that_feed_each_other_do_not_overtake_each_other() -> None:
    """A kernel may start while the one before it ends; one that read too early would break the repetition's bits."""
    made = mixture(16, 4, 2880, 2880)
    first, rows = made.rows(4), rows_of(range(4), 1)

    def chain(wait: bool) -> torch.Tensor:
        stream = first
        for _ in range(40):
            stream = made.run(stream / stream.norm(dim=1, keepdim=True) * 100, rows).stream
            if wait:
                torch.cuda.synchronize()
        return stream

    slow = chain(wait=True)
    assert slow.isfinite().all()
    assert all(torch.equal(chain(wait=False), slow) for _ in range(5))
