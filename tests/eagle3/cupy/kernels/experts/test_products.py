"""The kernels of a mixture of experts against float64, and a row's bits in any company: on a GPU, and their own sources
on a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import relative_error, rows_of
from tests.eagle3.cupy.kernels.experts.mixtures import Mixture, picked

GPU, CPU = "cuda", "cpu"
# (experts, of a token, hidden, intermediate): gpt-oss' widths with few experts, and sizes that divide by little.
SIZES = [(16, 4, 2880, 2880), (128, 4, 512, 64), (8, 2, 512, 64), (6, 2, 64, 96), (33, 3, 96, 160), (5, 1, 64, 32)]
COUNTS = {GPU: (1, 4, 8, 9, 17, 64), CPU: (4, 17)}
SMALL = (33, 3, 96, 160)


@cache
def mixture(experts: int, per_token: int, hidden: int, intermediate: int, device: str = GPU) -> Mixture:
    return Mixture(ExpertGeometry(experts, per_token, mxfp4=True), hidden, intermediate, device=device)


WHERE = [(SMALL, CPU), *(pytest.param(sizes, GPU, marks=pytest.mark.gpu) for sizes in SIZES)]


@pytest.mark.parametrize(("sizes", "device"), WHERE, indirect=["device"])
def test_a_mixture_agrees_with_float64(sizes: tuple[int, int, int, int], device: str) -> None:
    made = mixture(*sizes, device)
    for count in COUNTS[device]:
        stream = made.rows(count)
        left = made.run(stream, made.listed(range(count)))
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


@pytest.mark.parametrize(("sizes", "device"), WHERE, indirect=["device"])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(sizes: tuple[int, int, int, int], device: str) -> None:
    made, last = mixture(*sizes, device), max(COUNTS[device]) - 1
    stream = made.rows(last + 1)
    whole = made.run(stream, made.listed(range(last + 1)))
    some = [[5], [last], [0, 1, 2, 3], list(range(last, -1, -1))]
    for rows in [*some, [7, 40], list(range(8)), list(range(20, 37))] if device == GPU else some:
        got = made.run(stream[rows].contiguous(), made.listed(range(len(rows))))
        assert all(torch.equal(a, b) for a, b in zip(got.results, picked(whole, rows), strict=True)), rows


@pytest.mark.gpu
def test_an_expert_of_many_rows_gives_each_what_it_gives_it_alone() -> None:
    made = mixture(16, 4, 2880, 2880)
    stream = made.rows(64)
    same = torch.zeros(64, 16, device="cuda")
    same[:, [3, 15, 0, 8]] = torch.tensor([4.0, 3.0, 2.0, 1.0], device="cuda")
    whole = made.run(stream, made.listed(range(64)), logits=same)
    _, act, want = made.oracle(stream, same)
    assert relative_error(whole.act, act) < 2e-3
    assert relative_error(whole.stream - stream, want - stream) < 2e-3
    for row in (0, 8, 63):
        alone = made.run(stream[row : row + 1], made.listed([0]), logits=same[:1])
        assert torch.equal(alone.stream[0], whole.stream[row])


def test_the_lowest_of_equal_logits_wins_and_places_are_in_the_order_of_logits(device: str) -> None:
    made = mixture(8, 2, 512, 64, device)
    stream = made.rows(4)
    rows = [[0.0] * 8, [-1, 5, 5, 5, 0, 0, 0, 0], [-0.0, 0.0] + [-3.0] * 6, [0.0] * 7 + [9.0]]
    logits = torch.tensor(rows, device=device)
    left = made.run(stream, made.listed(range(4)), logits=logits)
    _, act, want = made.oracle(stream, logits)
    assert relative_error(left.act, act) < 2e-3 and relative_error(left.stream - stream, want - stream) < 2e-3


def test_rows_of_slots_that_are_done_are_neither_computed_nor_written(device: str) -> None:
    made = mixture(8, 2, 512, 64, device)
    stream = made.rows(32)
    full = made.run(stream, made.listed(range(32)))
    for active in (0, 1, 3):
        left = made.run(stream, rows_of(range(active), 4, slots=8, device=device))
        for got, want in zip(left.results, full.results, strict=True):
            assert torch.equal(got[: 4 * active], want[: 4 * active])
        logits, x16, act, after, normed, squares = left.results
        assert all(got[4 * active :].isnan().all() for got in (logits, x16, act, normed, squares))
        assert torch.equal(after[4 * active :], stream[4 * active :])


@pytest.mark.gpu
def test_a_row_that_is_not_finite_stays_so_and_alone() -> None:
    made = mixture(8, 2, 512, 64)
    stream = made.rows(8)
    clean = made.run(stream, made.listed(range(8)))
    stream[3, 17] = float("nan")
    left = made.run(stream, made.listed(range(8)))
    others = [0, 1, 2, 4, 5, 6, 7]
    assert left.stream[3].isnan().all()
    assert all(torch.equal(a, b) for a, b in zip(picked(left, others), picked(clean, others), strict=True))


def test_how_work_is_moved_changes_no_bit(device: str) -> None:
    made = mixture(*SMALL, device)
    stream = made.rows(8)
    usual = made.run(stream, made.listed(range(8)))
    gate_up, down = ExpertConfig.usual(96, 20, 1), ExpertConfig.usual(160, 6, 1)
    for tiles, blocks in ((1, 1), (2, 3), (1, 2)):
        moved = replace(gate_up, tiles=tiles, blocks_per_sm=blocks)
        other = replace(down, blocks_per_sm=blocks)
        got = made.run(stream, made.listed(range(8)), gate_up=moved, down=other)
        assert all(torch.equal(a, b) for a, b in zip(got.results, usual.results, strict=True))


def test_neither_the_turns_of_a_warp_nor_the_depth_of_its_ring_change_a_bit(device: str) -> None:
    made = mixture(3, 2, 1280, 64, device)
    stream, rows = made.rows(3), made.listed(range(3))
    usual = ExpertConfig.usual(1280, 8, 1)
    assert (usual.warps, usual.ring) == (5, 4)
    left = [made.run(stream, rows, gate_up=replace(usual, ring=ring)) for ring in (4, 2, 1)]
    _, act, _ = made.oracle(stream, left[0].logits)
    assert relative_error(left[0].act, act) < 2e-3
    for other in left[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other.results, left[0].results, strict=True))


@pytest.mark.gpu
def test_layers_that_feed_each_other_do_not_overtake_each_other() -> None:
    """A kernel may start while the one before it ends; one that read too early would break the repetition's bits."""
    made = mixture(16, 4, 2880, 2880)
    first, rows = made.rows(4), made.listed(range(4))

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
