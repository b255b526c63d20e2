"""Experts of more rows than one product takes: their rows are split into row groups of eight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts import launchers
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig, constants_of
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy.kernels.device import relative_error, rows_of
from tests.eagle3.cupy.kernels.experts.mixtures import Mixture, picked

EXPERTS, HIDDEN, INTERMEDIATE = 9, 64, 96


@pytest.fixture
def made(device: str) -> Mixture:
    return Mixture(ExpertGeometry(EXPERTS, 2, mxfp4=True), HIDDEN, INTERMEDIATE, device=device)


def choosing(first: Sequence[int], second: Sequence[int], device: str) -> Tensor:
    """Logits [R, E] of rows that choose these experts, the likelier one first; no row's weights are another's."""
    rows = torch.arange(len(first))
    logits = torch.full((len(first), EXPERTS), -3.0)
    logits[rows, torch.tensor(second)] = 1.0
    logits[rows, torch.tensor(first)] = 1.0 + (1 + rows) / len(first)
    return logits.to(device)


def sizes_of(sizes: Sequence[int]) -> list[int]:
    """The expert of every row, where expert n has `sizes[n]` rows; neighbouring rows have different ones."""
    left, experts = list(sizes), list[int]()
    while any(left):
        for expert in range(len(left)):
            if left[expert]:
                experts.append(expert)
                left[expert] -= 1
    return experts


ROUTED = {
    "9 rows": ([0] * 9, [1, 2, 3] * 3),
    "16 rows": ([4] * 16, [5, 6, 7, 8] * 4),
    "17 rows": ([8] * 17, [0, 1, 2, 3, 4, 5, 6, 7] * 2 + [0]),
    "64 rows, two experts of all": ([3] * 64, [5] * 64),
    "64 rows, one expert of all": ([0] * 64, [1, 2, 3, 4, 5, 6, 7, 8] * 8),
    "uneven": (sizes_of([1, 8, 9, 24, 0, 15]), [8, 6, 7] * 19),
}


@pytest.mark.parametrize("name", ROUTED)
def test_every_row_gets_its_experts_and_what_it_gets_alone(name: str, made: Mixture) -> None:
    first, second = ROUTED[name]
    logits, stream = choosing(first, second, made.device), made.rows(len(first))
    whole = made.run(stream, made.listed(range(len(first))), logits=logits)
    _, act, want = made.oracle(stream, logits)
    assert relative_error(whole.act, act) < 2e-3
    assert relative_error(whole.stream - stream, want - stream) < 2e-3
    assert int(whole.touched[1, 2]) == len({*first, *second})
    assert not whole.finished.any()
    for row in range(len(first)):
        alone = made.run(stream[row : row + 1], made.listed([0]), logits=logits[row : row + 1])
        assert all(torch.equal(a, b) for a, b in zip(alone.results, picked(whole, [row]), strict=True)), row


def test_a_rows_place_among_its_experts_rows_changes_no_bit(made: Mixture) -> None:
    first, second = [2] * 40, [5, 6] * 20
    logits, stream = choosing(first, second, made.device), made.rows(40)
    usual = made.run(stream, made.listed(range(40)), logits=logits)
    for order in (list(range(39, -1, -1)), [*range(13, 40), *range(13)]):
        moved = made.run(stream[order].contiguous(), made.listed(range(40)), logits=logits[order].contiguous())
        assert all(torch.equal(a, b) for a, b in zip(moved.results, picked(usual, order), strict=True))


@pytest.mark.parametrize("blocks", [1, 2, 5, 40])
def test_where_the_range_of_a_block_begins_changes_no_bit(blocks: int, made: Mixture) -> None:
    """Within an expert, between its row groups, or nowhere: of 40 blocks on three SMs some have no item."""
    first, second = ROUTED["uneven"]
    logits, stream = choosing(first, second, made.device), made.rows(len(first))
    usual = made.run(stream, made.listed(range(len(first))), logits=logits)
    gate_up, down = ExpertConfig.usual(HIDDEN, 12, 2), ExpertConfig.usual(INTERMEDIATE, 4, 2)
    for tiles in (1, 2):
        got = made.run(
            *(stream, made.listed(range(len(first)))),
            logits=logits,
            gate_up=replace(gate_up, tiles=tiles, blocks_per_sm=blocks),
            down=replace(down, tiles=tiles, blocks_per_sm=blocks),
        )
        assert all(torch.equal(a, b) for a, b in zip(got.results, usual.results, strict=True))
        assert not got.finished.any()


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("name", ROUTED)
def test_many_rows_have_the_same_bits_as_blocks_of_sm_120_share_them_out(
    name: str, made: Mixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ROUTED[name]
    logits, stream = choosing(first, second, made.device), made.rows(len(first))
    usual = made.run(stream, made.listed(range(len(first))), logits=logits)

    def of_sm_120(experts: ExpertGeometry, config: ExpertConfig, rows: int) -> dict[str, int | float]:
        return {**constants_of(experts, config, rows), "__cuda_arch__": 1200}

    monkeypatch.setattr(launchers, "constants_of", of_sm_120)
    got = made.run(stream, made.listed(range(len(first))), logits=logits)
    assert all(torch.equal(a, b) for a, b in zip(got.results, usual.results, strict=True))
    assert not got.finished.any()


@pytest.mark.parametrize("active", [0, 8, 9, 33])
def test_a_launcher_of_many_rows_takes_any_number_of_them(active: int, made: Mixture) -> None:
    """And leaves the others alone: also where what is there would need no second row group, or nothing is."""
    logits, stream = choosing([1] * 64, [2] * 64, made.device), made.rows(64)
    left = made.run(stream, rows_of(range(active), 1, slots=64, device=made.device), logits=logits)
    whole = made.run(stream, made.listed(range(64)), logits=logits)
    for got, want in zip(left.results[2:], whole.results[2:], strict=True):
        assert torch.equal(got[:active], want[:active])
    assert torch.equal(left.stream[active:], stream[active:])
    assert not left.finished.any()
    assert int(left.touched[1, 2]) == (2 if active else -1)
