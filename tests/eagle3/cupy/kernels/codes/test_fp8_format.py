"""E4M3 in the kernels' header beside torch's: each way to convert it, for every code and around every rounding."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec, with_headers
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.lib.kv import fp8

THREADS = 256
TEXT = """
#include "dependent.cuh"

struct ToCodesArguments {
    unsigned char* codes;
    unsigned char* by_bits;
    float* scales;
    const float* numbers;
    int count;
};

extern "C" __global__ void to_codes(const ToCodesArguments args) {
    await_previous();
    const int n = blockIdx.x * 256 + threadIdx.x;
    if (n >= args.count) return;
    args.codes[n] = fp8_code(args.numbers[n]);
    args.by_bits[n] = (unsigned char)code_by_bits(args.numbers[n]);
    args.scales[n] = scale_of(fabsf(args.numbers[n]));
}

struct ToNumbersArguments {
    int* pairs;
    int* by_bits;
    float* values;
};

extern "C" __global__ void to_numbers(const ToNumbersArguments args) {
    await_previous();
    const unsigned n = blockIdx.x * 256 + threadIdx.x, word = n | (65535u - n) << 16;
    const FourNumbers four = dequantised(word), own = four_by_bits(word);
    args.pairs[n] = (int)four.low, args.pairs[65535 - n] = (int)four.high;
    args.by_bits[n] = (int)own.low, args.by_bits[65535 - n] = (int)own.high;
    args.values[n] = value_of(n & 255u);
}
"""


@dataclass(frozen=True, slots=True)
class Written(Spec):
    """A kernel of this test: `TEXT` behind the header."""

    @property
    def source(self) -> str:
        dependent = with_headers("dependent.cuh")
        return with_headers("fp8.cuh") + TEXT.replace('#include "dependent.cuh"', dependent)


class Format(Kernel):
    def __init__(self) -> None:
        super().__init__("fp8_format")
        self.spec = Written("fp8_format", Spec.of("", {"block": BLOCK, "kv_heads": 1}).constants)

    def codes(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(codes, codes by bits, scales) of float32 numbers."""
        made, by_bits = (torch.zeros(len(numbers), dtype=torch.uint8, device=numbers.device) for _ in range(2))
        scales = torch.zeros_like(numbers)
        arguments: dict[str, ARGUMENT] = {
            "codes": made,
            "by_bits": by_bits,
            "scales": scales,
            "numbers": numbers,
            "count": len(numbers),
        }
        self.launch((-(-len(numbers) // THREADS),), function="to_codes", threads=THREADS, **arguments)
        return made, by_bits, scales

    def numbers(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Of all pairs of codes, the lower one first: as two float16, the same by bits; and each lower one's value."""
        pairs, by_bits = (torch.zeros(1 << 16, dtype=torch.int32, device=device) for _ in range(2))
        values = torch.zeros(1 << 16, device=device)
        arguments: dict[str, ARGUMENT] = {"pairs": pairs, "by_bits": by_bits, "values": values}
        self.launch(((1 << 16) // THREADS,), function="to_numbers", threads=THREADS, **arguments)
        return pairs, by_bits, values


def all_codes(device: str) -> Tensor:
    return torch.arange(256, device=device).to(torch.uint8)


def around_every_rounding(device: str) -> Tensor:
    """Every value of a code, the middle of every two neighbours, and the next floats on both sides of each."""
    values = all_codes("cpu").view(torch.float8_e4m3fn).float()
    values = torch.tensor(sorted(set(values[values.isfinite()].tolist())))
    points = torch.cat((values, (values[1:] + values[:-1]) / 2))
    beside = [torch.nextafter(points, torch.full_like(points, to)) for to in (-1e30, 1e30)]
    far = torch.tensor([-0.0, 1e-45, -1e-40, 464.0, 480.0, 1e5, -3e38])
    noise = torch.randn(20000, generator=torch.Generator().manual_seed(0))
    return torch.cat((points, *beside, far, noise, noise * 2.0**-7, noise * 200)).to(device)


def test_every_way_rounds_a_number_to_the_code_that_torch_rounds_it_to(device: str) -> None:
    numbers = around_every_rounding(device)
    made, by_bits, _ = Format().codes(numbers)
    want = fp8.encoded(numbers.cpu(), torch.tensor(1.0))
    assert torch.equal(made.cpu(), want)
    assert torch.equal(by_bits.cpu(), want)


def test_what_is_not_finite_becomes_no_number(device: str) -> None:
    made, _, _ = Format().codes(torch.tensor([float("inf"), -float("inf"), float("nan")], device=device))
    assert made.tolist() == [0x7F] * 3


def test_every_way_makes_of_every_pair_of_codes_the_numbers_that_torch_makes(device: str) -> None:
    pairs, by_bits, values = Format().numbers(device)
    codes = torch.arange(1 << 16, device=device)
    want = torch.stack((codes & 255, codes >> 8), dim=-1).to(torch.uint8).view(torch.float8_e4m3fn).float()
    for table in (pairs, by_bits):
        assert torch.equal(table.view(torch.float16).view(-1, 2).float().nan_to_num(1e9), want.nan_to_num(1e9))
    assert torch.equal(values.nan_to_num(1e9), want[:, 0].nan_to_num(1e9))
    assert torch.equal(values.signbit()[values == 0], want[:, 0].signbit()[values == 0])


@pytest.mark.parametrize("seed", [0, 1])
def test_scales_are_those_of_the_format(device: str, seed: int) -> None:
    """Around powers of two too, by the largest numbers that make them, and from the smallest number to the largest."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.arange(-149, 128).float()
    near = torch.exp2(exponents) * 7
    near = torch.cat([torch.nextafter(near, torch.full_like(near, to)) for to in (0.0, 1e30)] + [near])
    spread = torch.randn(5000, generator=generator) * torch.exp2(torch.randint(-100, 100, (5000,), generator=generator))
    largest = torch.cat((near[near.isfinite()], spread.abs(), torch.tensor([0.0, 1e-45, 3.4e38])))
    _, _, scales = Format().codes(largest.to(device))
    assert torch.equal(scales.cpu(), fp8.scales_of(largest))
