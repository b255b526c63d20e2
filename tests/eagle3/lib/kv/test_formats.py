"""E4M3 and NVFP4 against tables that are written out from the formats' definitions, and searched number by number."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.backends.eagle3.lib.kv import fp8, nvfp4


def e4m3(code: int) -> float:
    """The number of a code, by the definition of OCP 8-bit floating point: bias 7, one NaN per sign, no infinities."""
    sign, exponent, mantissa = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def e2m1(code: int) -> float:
    """The number of a four-bit code: a sign, two bits of exponent with bias 1, one of mantissa."""
    sign, exponent, mantissa = -1.0 if code >> 3 else 1.0, code >> 1 & 3, code & 1
    return sign * (mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def nearest(number: float, table: dict[int, float]) -> int:
    """The code whose number is nearest; of two that are as near, the even one."""
    return min(table, key=lambda code: (abs(table[code] - number), code & 1))


E4M3 = {code: e4m3(code) for code in range(127)}
E2M1 = {code: e2m1(code) for code in range(8)}
NUMBERS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def test_every_code_of_e4m3_is_read_as_the_number_that_its_bits_say() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = fp8.decoded(codes, torch.ones(256)).tolist()
    expected = [e4m3(code) for code in range(256)]
    assert [math.isnan(x) for x in numbers] == [math.isnan(x) for x in expected]
    assert [x for x in numbers if x == x] == [x for x in expected if x == x]


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.integers(-10, 10))
@settings(max_examples=200, deadline=None)
def test_e4m3_takes_the_nearest_number_with_ties_to_even_and_saturates(numbers: list[float], power: int) -> None:
    scale = torch.tensor(2.0**power)
    codes = fp8.encoded(torch.tensor(numbers), scale).tolist()
    for number, code in zip(numbers, codes, strict=True):
        assert code & 127 == nearest(abs(number) / 2.0**power, E4M3)
        assert code >> 7 == (math.copysign(1, number) < 0)


def test_e4m3_breaks_every_tie_towards_the_even_code() -> None:
    middles = [(E4M3[c] + E4M3[c + 1]) / 2 for c in range(126)]
    codes = fp8.encoded(torch.tensor(middles), torch.tensor(1.0)).tolist()
    assert codes == [c + (c & 1) for c in range(126)]


@given(st.integers(-100, 100))
@settings(deadline=None)
def test_a_first_position_that_fills_its_share_exactly_keeps_its_scale(power: int) -> None:
    exact, above = torch.tensor([7 * 2.0**power]), torch.tensor([7.001 * 2.0**power])
    assert float(fp8.scales_of(exact)) == 2.0**power
    assert float(fp8.scales_of(above)) == 2.0 ** (power + 1)


@pytest.mark.parametrize("largest", [1e-30, 0.013, 0.999, 1.0, 7.0, 7.0001, 448.0, 1e9])
def test_a_scale_is_a_power_of_two_that_leaves_the_first_position_its_headroom(largest: float) -> None:
    scale = float(fp8.scales_of(torch.tensor([largest])))
    assert math.log2(scale).is_integer()
    assert 448 / 64 / 2 < largest / scale <= 448 / 64 * (1 + 1e-6)


def test_a_block_that_begins_with_zeros_has_the_scale_one() -> None:
    assert fp8.scales_of(torch.tensor([0.0])).tolist() == [1.0]
    assert nvfp4.outer_scales(torch.tensor([0.0])).tolist() == [1.0]


@given(st.lists(NUMBERS, min_size=16, max_size=16), st.integers(-10, 7))
@settings(max_examples=200, deadline=None)
def test_nvfp4_is_the_nearest_e2m1_under_the_nearest_e4m3_scale(numbers: list[float], power: int) -> None:
    x, outer = torch.tensor(numbers), torch.tensor(2.0**power)
    codes, blocks = nvfp4.encoded(x, outer)
    wanted = float((x.abs().max() * (1 / 6) / outer).clamp(2.0**-9, 448))
    assert blocks.tolist() == [nearest(wanted, E4M3)]
    step = torch.tensor(E4M3[blocks.tolist()[0]]) * outer
    unpacked = [code for byte in codes.tolist() for code in (byte & 15, byte >> 4)]
    for number, code in zip((x.abs().double() / step).tolist(), unpacked, strict=True):
        assert code & 7 == nearest(number, E2M1)
    assert [code >> 3 for code in unpacked] == [int(math.copysign(1, number) < 0) for number in numbers]
    expected = torch.tensor([e2m1(code) for code in unpacked]) * step
    assert torch.equal(nvfp4.decoded(codes, blocks, outer), expected)


@given(st.integers(1, 126), st.integers(-40, 40))
@settings(deadline=None)
def test_a_largest_number_of_six_scales_or_of_six_middles_of_two_makes_the_scale_that_the_quotient_does(
    code: int, power: int
) -> None:
    for wanted, scale in ((E4M3[code], code), ((E4M3[code] + E4M3[min(code + 1, 126)]) / 2, code + code % 2)):
        x, outer = torch.full((16,), 6 * wanted * 2.0**power), torch.tensor(2.0**power)
        assert nvfp4.encoded(x, outer)[1].tolist() == [min(scale, 126)]


def test_no_scale_of_a_block_is_zero_or_no_number() -> None:
    numbers = torch.stack((torch.zeros(16), torch.full((16,), 1e-30), torch.full((16,), 1e30)))
    _, blocks = nvfp4.encoded(numbers, torch.tensor(1.0))
    scales = [E4M3[b] for (b,) in blocks.tolist()]
    assert scales == [2.0**-9, 2.0**-9, 448.0]
    assert torch.equal(
        nvfp4.decoded(*nvfp4.encoded(torch.zeros(16), torch.tensor(1.0)), torch.tensor(1.0)), torch.zeros(16)
    )


@pytest.mark.parametrize("largest", [2.0**-90, 0.013, 1.0, 3.7, 10.5, 10.50001, 1e9])
def test_a_heads_scale_is_a_power_of_two_that_leaves_position_0_room_on_both_sides(largest: float) -> None:
    row = torch.linspace(-largest, largest, 16)
    scale = nvfp4.outer_scales(row.abs().max())
    assert math.log2(float(scale)).is_integer()
    _, blocks = nvfp4.encoded(row, scale)
    assert all(448 / 256 / 2 <= E4M3[b] <= 448 / 256 for b in blocks.tolist())


def test_no_middle_is_a_number_that_a_gpu_may_take_for_zero() -> None:
    smallest = nvfp4.outer_scales(torch.tensor([2.0**-126, 2.0**-115]))
    assert smallest.tolist() == [2.0**nvfp4.LEAST_EXPONENT] * 2 and 2.0**-112 * 2.0**-9 * nvfp4.MIDDLES[0] > 2.0**-126
    assert nvfp4.outer_scales(torch.tensor([2.0**-127])).tolist() == [1.0]


@pytest.mark.gpu
def test_a_gpu_makes_the_codes_and_scales_of_a_cpu() -> None:
    numbers = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, 4096)[:, None]
    largest = numbers.abs().amax(dim=-1)
    scales = fp8.scales_of(largest)
    assert torch.equal(fp8.scales_of(largest.cuda()).cpu(), scales)
    codes = fp8.encoded(numbers, scales[:, None])
    assert torch.equal(fp8.encoded(numbers.cuda(), scales[:, None].cuda()).cpu(), codes)
    assert torch.equal(fp8.decoded(codes.cuda(), scales[:, None].cuda()).cpu(), fp8.decoded(codes, scales[:, None]))
    outer = nvfp4.outer_scales(largest)[:, None]
    on_cpu, on_gpu = nvfp4.encoded(numbers, outer), nvfp4.encoded(numbers.cuda(), outer.cuda())
    assert all(torch.equal(a, b.cpu()) for a, b in zip(on_cpu, on_gpu, strict=True))
    assert torch.equal(nvfp4.decoded(*on_gpu, outer.cuda()).cpu(), nvfp4.decoded(*on_cpu, outer))
