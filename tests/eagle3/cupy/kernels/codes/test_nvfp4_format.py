"""NVFP4 in the kernels' header beside the format's definition: codes, scales, places, and codes as float16."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import MAGNITUDE, SIGN
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec, with_headers
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.cupy.memory import coded_pages
from specgate.backends.eagle3.lib.kv import nvfp4
from specgate.checkpoints.mxfp4 import VALUES

TEXT = """
struct EncodeArguments {
    unsigned char* codes;
    unsigned char* scales;
    float* outer;
    float* values;
    const float* numbers;
    const float* first;
};

extern "C" __global__ void encode(const EncodeArguments args) {
    await_previous();
    const int n = blockIdx.x * 32 + threadIdx.x;
    const float outer = outer_scale(size_bits(args.first[n]));
    unsigned largest = 0;
    for (int i = 0; i < 16; ++i) largest = max(largest, size_bits(args.numbers[16 * n + i]));
    const BlockScale scale(largest, outer);
    for (int i = 0; i < 16; ++i) {
        const unsigned code = scale.code_of(args.numbers[16 * n + i]);
        args.codes[16 * n + i] = (unsigned char)code, args.values[16 * n + i] = scale.number(code);
    }
    args.scales[n] = (unsigned char)scale.code, args.outer[n] = outer;
}

struct PlacesArguments {
    int* keys;
    int* values;
    int* key_scales;
    int* value_scales;
};

extern "C" __global__ void places(const PlacesArguments args) {
    await_previous();
    const int n = blockIdx.x * 32 + threadIdx.x, place = n / HEAD_DIM, element = n % HEAD_DIM;
    const CodePlace key = key_code(place, element), value = value_code(place, element);
    args.keys[n] = key.word * 8 + key.index, args.values[n] = value.word * 8 + value.index;
    args.key_scales[n] = key_scale(place, element / 16 * 16);
    args.value_scales[n] = value_scale(place, element / 16 * 16);
}

struct DecodeArguments {
    int* products;
};

extern "C" __global__ void decode(const DecodeArguments args) {
    await_previous();
    const unsigned scale = blockIdx.x, lane = threadIdx.x;
    unsigned word = 0;
    for (int i = 0; i < 8; ++i) word |= placed((lane + i) % 16, i);
    const Eight eight = expanded(word);
    for (int i = 0; i < 4; ++i)
        args.products[(scale * 32 + lane) * 4 + i] =
            (int)product_fp16(eight.pair[i], scales_fp16(scale << 8 | scale << 24));
}
"""


@dataclass(frozen=True, slots=True)
class Written(Spec):
    """A kernel of this test: `TEXT` behind the header."""

    @property
    def source(self) -> str:
        return f"{with_headers('nvfp4.cuh')}{with_headers('dependent.cuh')}{TEXT}"


class Format(Kernel):
    def __init__(self, head_dim: int) -> None:
        super().__init__("nvfp4_format")
        constants = Spec.of("", {"block": BLOCK, "kv_heads": 1, "head_dim": head_dim, "kv_nvfp4": 1}).constants
        self.spec = Written("nvfp4_format", constants)

    def encode(self, numbers: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(codes, block scales, outer scales, values) of float32 numbers [n, 16] and position 0's largest ones [n]."""
        codes, scales = torch.zeros_like(numbers, dtype=torch.uint8), torch.zeros_like(first, dtype=torch.uint8)
        outer, values = torch.zeros_like(first), torch.zeros_like(numbers)
        arguments: dict[str, ARGUMENT] = {
            "codes": codes,
            "scales": scales,
            "outer": outer,
            "values": values,
            "numbers": numbers,
            "first": first,
        }
        self.launch((len(numbers) // 32,), function="encode", threads=32, **arguments)
        return codes, scales, outer, values

    def places(self, elements: int, device: str) -> list[Tensor]:
        names = ("keys", "values", "key_scales", "value_scales")
        placed = {name: torch.zeros(BLOCK * elements, dtype=torch.int32, device=device) for name in names}
        self.launch((BLOCK * elements // 32,), function="places", threads=32, **placed)
        return [t.view(BLOCK, elements).long().cpu() for t in placed.values()]

    def products(self, device: str) -> Tensor:
        out = torch.zeros(128 * 32 * 4, dtype=torch.int32, device=device)
        self.launch((128,), function="decode", threads=32, products=out)
        return out.view(torch.float16).view(128, 32, 8).float().cpu()


def blocks_of_every_kind(seed: int) -> tuple[Tensor, Tensor]:
    """Blocks of 16 numbers, and the largest number of position 0: of like and of unlike sizes, and from the smallest
    number to the largest; ties, and the next floats beside them.
    """
    source = torch.Generator().manual_seed(seed)
    numbers = torch.randn(4096, 16, generator=source)
    powers = torch.exp2(torch.randint(-140, 125, (4096,), generator=source).float())
    near = torch.exp2(torch.randint(-14, 12, (4096,), generator=source).float())
    first = torch.randn(4096, generator=source).abs() * powers
    numbers *= (powers * near)[:, None]
    middles = torch.tensor(nvfp4.MIDDLES)
    beside = torch.stack([middles, *(middles.nextafter(torch.tensor(to)) for to in (0.0, 9.0))])
    numbers[:96, :7] = beside.repeat(32, 1) * powers[:96, None]
    numbers[:96, 7:] = 6 * powers[:96, None]
    first[:96] = 10 * powers[:96]
    numbers[96:128], first[128:160] = 0.0, 0.0
    return numbers, first


@pytest.mark.parametrize("seed", [0, 1])
def test_codes_and_scales_are_those_of_the_format_bit_for_bit(device: str, seed: int) -> None:
    numbers, first = blocks_of_every_kind(seed)
    keep = numbers.isfinite().all(dim=1) & first.isfinite()
    numbers, first = torch.where(keep[:, None], numbers, 1.0), torch.where(keep, first, 1.0)
    codes, scales, outer, values = (t.cpu() for t in Format(64).encode(numbers.to(device), first.to(device)))
    assert torch.equal(outer, nvfp4.outer_scales(first))
    two, wanted = nvfp4.encoded(numbers, outer[:, None])
    assert torch.equal(scales, wanted[:, 0])
    assert torch.equal(codes, torch.stack((two & 15, two >> 4), dim=-1).flatten(-2))
    assert torch.equal(values, nvfp4.decoded(two, wanted, outer[:, None]))
    assert {*codes.flatten().tolist()} == {*range(16)} and len({*scales.tolist()}) > 120


def test_what_is_not_finite_makes_its_blocks_scale_no_number(device: str) -> None:
    numbers = torch.ones(32, 16, device=device)
    numbers[3, 5], numbers[4, 0], numbers[5, 15] = float("inf"), float("nan"), -float("inf")
    _, scales, outer, values = Format(64).encode(numbers, torch.ones(32, device=device))
    assert (scales == 0x7F).nonzero().flatten().tolist() == [3, 4, 5] and values[3:6].isnan().all()
    first = torch.tensor([float("inf"), float("nan")] * 16, device=device)
    _, _, outer, _ = Format(64).encode(numbers, first)
    assert bool((outer == 1).all())


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_kernels_and_torch_agree_on_the_place_of_every_code_and_every_scale(device: str, head_dim: int) -> None:
    keys, values, key_scales, value_scales = Format(head_dim).places(head_dim, device)
    blocks = torch.randint(1, 127, (2, BLOCK, head_dim // 16)).to(torch.uint8)
    page = coded_pages.scale_page(blocks[0], blocks[1], torch.ones(2))
    for at, of in ((key_scales, blocks[0]), (value_scales, blocks[1])):
        assert torch.equal(page[at], of.repeat_interleave(16, dim=1))
    for bit in range(4):  # one bit of one code in many: its word, and which of that word's eight it is
        codes = torch.randint(0, 2, (BLOCK, head_dim)).to(torch.uint8) << bit
        for at, made in ((keys, coded_pages.key_page), (values, coded_pages.value_page)):
            words = made(codes).flatten().view(torch.int32).long()
            pair, half = at % 8 // 2, at % 2
            place = torch.tensor(SIGN)[pair] if bit == 3 else torch.tensor(MAGNITUDE)[pair] + bit
            assert torch.equal(words[at // 8] >> (place + 16 * half) & 1, codes.long() >> bit)


def test_every_code_times_every_scale_is_exact_in_float16(device: str) -> None:
    """E2M1 / 2^14 times E4M3 · 2^7: the smallest of them subnormal, the largest below 57,344 · 6 / 2^14."""
    products = Format(64).products(device)
    scales = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    codes = (torch.arange(32)[:, None] + torch.arange(8)) % 16
    wanted = torch.tensor(VALUES)[codes] * scales[:127, None, None] * 2.0**-7
    assert torch.equal(products[:127], wanted)
    assert float(wanted[1:][wanted[1:] != 0].abs().min()) == 2.0**-17 and float(wanted.abs().max()) == 21.0
