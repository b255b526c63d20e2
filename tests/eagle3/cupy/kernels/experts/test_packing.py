from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.kernels.experts.packing import (
    LARGEST_SCALE,
    NUMBERS,
    SCALES,
    Order,
    PackedExperts,
    packed,
    tile_bytes,
    unpacked,
)
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import split_no_large_blocks, weight_bytes
from specgate.backends.eagle3.lib.weights import decoded
from specgate.backends.eagle3.pair_tools.plant.geometries import published
from specgate.checkpoints.mxfp4 import VALUES

SIZES = [(16, 32), (32, 64), (48, 96), (5760, 2880)]


def random_matrix(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + rows + columns)
    blocks = torch.randint(256, (rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(LARGEST_SCALE + 1, (rows, columns // 32), dtype=torch.uint8, generator=generator)
    return blocks, scales


def half_as_float(word: int) -> float:
    return float(torch.tensor([word - (word >> 15 << 16)], dtype=torch.int16).view(torch.float16))


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_what_is_packed_is_the_checkpoints_matrix_again(rows: int, columns: int, order: Order) -> None:
    blocks, scales = random_matrix(rows, columns)
    scales.clamp_(min=3)  # a smaller one makes numbers that bfloat16 rounds, one way here and another way there
    tiles = packed(blocks, scales, order)
    assert tiles.shape == (rows // 16, tile_bytes(columns))
    assert torch.equal(unpacked(tiles, columns, order), decoded(blocks, scales, torch.bfloat16))


@pytest.mark.parametrize("order", Order)
def test_a_lane_finds_its_numbers_and_scales_where_the_kernel_looks_for_them(order: Order) -> None:
    """By hand, bit by bit, as `expert_ring.cuh` and `fp16.cuh` describe it."""
    rows, columns = 32, 128
    blocks, scales = random_matrix(rows, columns)
    tiles = packed(blocks, scales, order)
    paired = order is Order.PAIRED
    for tile, slab, lane, load in [(0, 0, 0, 0), (0, 1, 5, 1), (1, 0, 31, 2), (1, 1, 18, 3), (1, 1, 12, 0)]:
        g, c, second, block = lane // 4, lane % 4, load % 2, 2 * slab + load // 2
        row = 16 * tile + (2 * g + second if paired else g + 8 * second)
        word = int.from_bytes(bytes(tiles[tile, slab * NUMBERS + 16 * lane + 4 * load :][:4].tolist()), "little")
        shifted = [word, word << 3, (word << 6 & 0x0E000E00) | (word << 1 & 0x80008000)]
        shifted.append((word << 9 & 0x0E000E00) | (word << 2 & 0x80008000))
        floats = [half_as_float((pair >> at) & 0x8E00) * 2**14 for pair in shifted for at in (0, 16)]
        stored = [b >> at & 15 for b in blocks[row, block, 4 * c : 4 * c + 4].tolist() for at in (0, 4)]
        assert floats == [VALUES[number] for number in stored]
        assert int(tiles[tile, 2 * NUMBERS + slab * SCALES + 4 * g + load]) == int(scales[row, block]) + 14


def test_a_tile_is_whole_lines_and_no_more_than_its_slabs_need() -> None:
    assert [tile_bytes(columns) for columns in (32, 64, 96, 2880)] == [640, 640, 1152, 24576]


def test_a_missing_half_of_the_last_slab_is_zero() -> None:
    blocks, scales = random_matrix(16, 96)
    lanes = packed(blocks | 0x11, scales, Order.PLAIN)[0, NUMBERS : 2 * NUMBERS].view(32, 2, 8)
    assert lanes[:, 0].any(-1).all() and not lanes[:, 1].any()


def test_every_expert_of_a_layer_is_packed_and_comes_back() -> None:
    blocks, scales = (torch.stack([random_matrix(32, 96, seed)[part] for seed in range(3)]) for part in (0, 1))
    made = PackedExperts.of(blocks, scales.clamp(min=3), torch.zeros(3, 32, dtype=torch.bfloat16), Order.PAIRED)
    for expert in range(3):
        want = decoded(blocks[expert], scales[expert].clamp(min=3), torch.bfloat16)
        assert torch.equal(made.matrix(expert), want)


def test_a_scale_that_no_float32_exponent_holds_is_refused() -> None:
    blocks, scales = random_matrix(16, 32)
    scales[3] = LARGEST_SCALE + 1
    with pytest.raises(ValueError, match=r"a scale of 2\^114: at most 2\^113 is supported"):
        PackedExperts.of(blocks[None], scales[None], torch.zeros(1, 16, dtype=torch.bfloat16), Order.PLAIN)


def test_on_the_meta_device_only_shapes_are_made() -> None:
    blocks, scales = (torch.empty(shape, dtype=torch.uint8, device="meta") for shape in ((4, 32, 3, 16), (4, 32, 3)))
    made = PackedExperts.of(blocks, scales, torch.empty(4, 32, device="meta"), Order.PLAIN)
    assert made.weight.shape == (4, 2, tile_bytes(96)) and made.columns == 96


@pytest.mark.gpu
def test_a_packed_target_holds_little_more_memory_than_its_weights() -> None:
    """torch keeps the memory of what was freed, and a packed matrix fits into no block of an unpacked one."""
    geometry = published(6, 32)
    split_no_large_blocks()  # as an engine does when it opens
    torch.cuda.empty_cache()
    before, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    target, _ = random_pair(Geometry(geometry, None, ()), 4096, "cuda")
    torch.cuda.empty_cache()  # what is wholly free goes back to the driver in an engine, too, once memory is short
    growth = torch.cuda.memory_reserved() - before
    weights = weight_bytes(target_tensors(geometry), torch.bfloat16)
    assert len(target.weights.layers) == 6 and weights < torch.cuda.memory_allocated() - allocated
    assert growth < 1.1 * weights  # less than all, if memory of other tests has gaps
