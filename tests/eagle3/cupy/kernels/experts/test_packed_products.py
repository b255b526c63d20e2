"""Products of experts for few rows of prompts, of weights as they are packed: row groups beside a sort, products beside
float64, and a row's bits in any company. On a GPU, and their own sources on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import LEAST_SHARED, multiprocessors
from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import unable
from specgate.backends.eagle3.cupy.kernels.prefill.packed import launchers
from specgate.backends.eagle3.cupy.kernels.prefill.packed.launchers import (
    ROW_GROUP,
    WARPS,
    PackedProduct,
    PrefillDown,
    PrefillGateUp,
    PrefillRowGroups,
    RowGroups,
    for_wgmma,
    most_row_groups,
)
from specgate.backends.eagle3.lib.weights import decoded
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import normal, poisoned, relative_error
from tests.eagle3.cupy.kernels.experts.mixtures import Mixture

H200_SHARED = 226 * 1024
# (experts, of a token, hidden, intermediate): one slab; sizes that divide by little; more slabs than stages, and more
# tiles than a block has; gpt-oss' widths, whole and of one of two GPUs.
SIZES = {
    "cpu": [(5, 2, 32, 32), (6, 2, 96, 160), (3, 2, 608, 64)],
    "cuda": [(5, 2, 32, 32), (33, 3, 96, 160), (16, 4, 2880, 2880), (16, 4, 2880, 1440)],
}
ROWS = {"cpu": (1, 23), "cuda": (1, 30, 500)}
everywhere = pytest.mark.parametrize(
    ("sizes", "device", "wgmma"),
    [
        pytest.param(sizes, device, wgmma, marks=pytest.mark.gpu if device == "cuda" else ())
        for device, several in SIZES.items()
        for sizes in several
        for wgmma in (False, True)
    ],
    indirect=["device", "wgmma"],
)


@pytest.fixture
def wgmma(request: pytest.FixtureRequest) -> bool:
    """Whether warpgroups multiply. Skips where the GPU has no such products."""
    if request.param and (reason := unable(multiprocessors())):
        pytest.skip(reason)
    return bool(request.param)


@dataclass(frozen=True, slots=True)
class Products:
    """Results of the kernels for a mixture's rows: activations and sums of sorted pairs, and their places."""

    act: Tensor
    out: Tensor
    place: Tensor

    @property
    def by_row(self) -> tuple[Tensor, Tensor]:
        """Of each row and place: activations [R, k, F] and results [R, k, H]."""
        return self.act[self.place.long()], self.out[self.place.long()]


def sorted_pairs(chosen: Tensor, experts: ExpertGeometry) -> tuple[Tensor, RowGroups]:
    """The place of each pair, and the row groups."""
    place = torch.full_like(chosen, -1)
    row_groups = RowGroups.room(chosen.numel(), experts.count, chosen.device)
    row_groups.row_groups.fill_(-1)
    kernel = PrefillRowGroups(experts.count, experts.per_token)
    kernel(row_groups, place=place, chosen=chosen, pairs=chosen.numel())
    return place, row_groups


def multiplied(made: Mixture, x: Tensor, chosen: Tensor, wgmma: bool) -> Products:
    place, row_groups = sorted_pairs(chosen, made.experts)
    act = poisoned(chosen.numel(), made.intermediate, dtype=torch.float16, device=made.device)
    x = for_wgmma(x).reshape(x.shape) if wgmma else x
    PrefillGateUp(made.intermediate, made.hidden, made.experts, wgmma)(row_groups, made.gate_up, act=act, x=x)
    out = poisoned(chosen.numel(), made.hidden, device=made.device)
    PrefillDown(made.hidden, made.intermediate, made.experts, wgmma)(row_groups, made.down, out=out, x=act)
    if wgmma:
        numbers = torch.arange(made.intermediate, device=made.device)
        act = act[:, for_wgmma(numbers[None]).flatten().argsort()]
    return Products(act, out, place)


@cache
def mixture(experts: int, per_token: int, hidden: int, intermediate: int, device: str) -> Mixture:
    return Mixture(ExpertGeometry(experts, per_token, mxfp4=True), hidden, intermediate, device=device)


def rows_and_experts(made: Mixture, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random rows float16 [R, H], and their experts int32 [R, k]: the first ones have more rows than one row group."""
    generator = torch.Generator().manual_seed(seed + rows)
    scores = torch.randn(rows, made.experts.count, generator=generator)
    scores[:, : made.experts.per_token] += 1.5
    chosen = scores.topk(made.experts.per_token).indices.int().to(made.device)
    return normal(rows, made.hidden, seed=seed, device=made.device).half(), chosen


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where blocks run one after the other."""
    monkeypatch.setattr(expert_config, "PROCESSORS", 3)


@pytest.mark.parametrize(("count", "per_token"), [(1, 1), (5, 2), (128, 4), (256, 8)])
@pytest.mark.parametrize("rows", [1, 7, 200, 1031])
@pytest.mark.parametrize("favoured", [0.0, 9.0], ids=["even", "concentrated"])
def test_pairs_are_sorted_and_cut_into_nearly_equal_row_groups(
    device: str, count: int, per_token: int, rows: int, favoured: float
) -> None:
    experts = ExpertGeometry(count, per_token, mxfp4=True)
    scores = torch.randn(rows, count, generator=torch.Generator().manual_seed(rows))
    scores[:, count // 2 : count // 2 + per_token] += favoured
    chosen = scores.topk(per_token).indices.int().to(device)
    place, row_groups = sorted_pairs(chosen, experts)
    in_order, pairs = chosen.flatten().sort(stable=True)
    assert torch.equal(place.flatten()[pairs].cpu(), torch.arange(len(pairs), dtype=torch.int32))
    made, at = int(row_groups.row_group_count), 0
    assert made <= len(row_groups.row_groups) == most_row_groups(len(pairs), count)
    assert (row_groups.row_groups[made:] == -1).all()
    each = in_order.bincount(minlength=count).tolist()
    for expert, size in enumerate(each):
        row_counts = list[int]()
        while at < made and int(row_groups.row_groups[at, 0]) == expert:
            _, start, own, _ = row_groups.row_groups[at, :4].tolist()
            assert start == sum(each[:expert]) + sum(row_counts) and 0 < own <= ROW_GROUP
            assert torch.equal(row_groups.row_groups[at, 4 : 4 + own].long(), pairs[start : start + own] // per_token)
            row_counts.append(own)
            at += 1
        assert sum(row_counts) == size and len(row_counts) == -(-size // ROW_GROUP)
        eights = [-(-own // 8) for own in row_counts]
        assert not row_counts or (max(eights) - min(eights) <= 1 and all(own % 8 == 0 for own in row_counts[:-1]))
    assert at == made


@everywhere
def test_products_agree_with_float64(sizes: tuple[int, int, int, int], device: str, wgmma: bool) -> None:
    made = mixture(*sizes, device)
    for rows in ROWS[device]:
        x, chosen = rows_and_experts(made, rows)
        act, out = multiplied(made, x, chosen, wgmma).by_row
        limits = made.experts.alpha, made.experts.limit
        want = oracles.expert_gate_up(x, made.gate_up_numbers, made.gate_up.bias, chosen, *limits)
        assert relative_error(act.flatten(0, 1), want) < 2e-3
        of_act = torch.stack(
            [
                made.down_numbers[e].double() @ a.double()
                for e, a in zip(chosen.flatten(), act.flatten(0, 1), strict=True)
            ]
        )
        assert relative_error(out.flatten(0, 1), of_act) < 3e-3  # rounded to bfloat16


@everywhere
def test_scales_of_any_distance_leave_sums_near_float64(
    sizes: tuple[int, int, int, int], device: str, wgmma: bool
) -> None:
    """Far below the largest scale of its expert, a scale counts for little, or for nothing."""
    made = mixture(*sizes, device)
    blocks, scales, bias = made.down_stored
    generator = torch.Generator(device=device).manual_seed(3)
    below = torch.randint(0, 60, scales.shape, generator=generator, device=device)
    scales = (scales.int() - below).to(torch.uint8)
    _, chosen = rows_and_experts(made, max(ROWS[device]))
    place, row_groups = sorted_pairs(chosen, made.experts)
    act = normal(chosen.numel(), made.intermediate, seed=4, device=device).half()
    out = poisoned(chosen.numel(), made.hidden, device=device)
    kernel = PrefillDown(made.hidden, made.intermediate, made.experts, wgmma)
    ordered = for_wgmma(act).reshape(act.shape) if wgmma else act
    kernel(row_groups, PackedExperts.of(blocks, scales, bias, Order.PLAIN), out=out, x=ordered)
    numbers = decoded(blocks, scales, torch.bfloat16).double()
    in_order = chosen.flatten()[place.flatten().argsort()]
    want = torch.stack([numbers[e] @ a for e, a in zip(in_order, act.double(), strict=True)])
    assert relative_error(out, want) < 3e-3


@everywhere
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
    sizes: tuple[int, int, int, int], device: str, wgmma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, among half of them, and by blocks, stages and warps that divide the work otherwise."""
    made, rows = mixture(*sizes, device), max(ROWS[device])
    x, chosen = rows_and_experts(made, rows)
    whole = multiplied(made, x, chosen, wgmma).by_row
    for some in (range(rows - 1, rows), range(0, rows, 2), range(rows // 3, rows)):
        some_rows = torch.tensor(some, device=device)
        part = multiplied(made, x[some_rows], chosen[some_rows], wgmma).by_row
        assert all(torch.equal(part_result, of_all[some_rows]) for part_result, of_all in zip(part, whole, strict=True))
    monkeypatch.setattr(launchers, "STAGES", 2)
    monkeypatch.setattr(launchers, "WEIGHT_TILES", (2, 1))
    monkeypatch.setattr(launchers, "AT_ONCE", (1,))
    monkeypatch.setattr(expert_config, "PROCESSORS", 2)
    otherwise = multiplied(made, x, chosen, wgmma).by_row
    assert all(torch.equal(a, b) for a, b in zip(otherwise, whole, strict=True))


def test_operands_of_another_shape_are_refused_by_name() -> None:
    made = mixture(5, 2, 32, 32, "cpu")
    row_groups = RowGroups.room(6, 5, torch.device("cpu"))
    x, act, out = (torch.zeros(n, 32, dtype=torch.float16) for n in (3, 6, 6))
    gate_up, down = PrefillGateUp(32, 32, made.experts), PrefillDown(32, 32, made.experts)
    with pytest.raises(
        ValueError, match="prefill_gate_up: launched with PAIRED_ROWS = 0, which is not what it is made"
    ):
        gate_up(row_groups, made.down, act=act, x=x)
    with pytest.raises(ValueError, match="prefill_down: launched with PAIRED_ROWS = 1, which is not what it is made"):
        down(row_groups, made.gate_up, out=out, x=act)
    with pytest.raises(ValueError, match=r"x: .*is needed"):
        gate_up(row_groups, made.gate_up, act=act, x=x.bfloat16())
    with pytest.raises(ValueError, match=r"out: .*is needed"):
        down(row_groups, made.down, out=out, x=act)
    with pytest.raises(ValueError, match=r"row_groups: .*is needed"):
        PrefillRowGroups(5, 2)(row_groups, place=torch.zeros(40, 2).int(), chosen=torch.zeros(40, 2).int(), pairs=80)
    assert made.gate_up.order is Order.PAIRED


@pytest.mark.parametrize(
    ("limit", "tiles", "columns", "expected"),
    [
        (H200_SHARED, 360, 2880, (3, 3, 2)),  # gate and up of gpt-oss
        (H200_SHARED, 180, 2880, (3, 3, 2)),  # down
        (H200_SHARED, 180, 1440, (3, 3, 2)),  # down of one of two GPUs
        (LEAST_SHARED, 360, 2880, (2, 1, 5)),
        (H200_SHARED, 4, 96, (2, 3, 2)),
        (H200_SHARED, 5, 32, (1, 3, 2)),
    ],
)
def test_work_is_divided_by_the_shape_and_by_what_shared_memory_holds(
    monkeypatch: pytest.MonkeyPatch, limit: int, tiles: int, columns: int, expected: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(launchers, "shared_memory_limit", lambda: limit)
    product = PackedProduct(tiles, columns)
    assert (*product.stage, product.stages) == expected
    assert product.shared_bytes <= limit
    kernel = PrefillDown(16 * tiles, columns, ExpertGeometry(8, 2, mxfp4=True))
    for row_groups, blocks in ((1000, 3), (1, min(3, -(-tiles // (WARPS * expected[0]))))):
        sizes = {**kernel.sizes, "ROW_GROUPS": row_groups}
        assert kernel.operands_of("prefill_down").blocks(sizes) == ((blocks,), 32 * WARPS)
