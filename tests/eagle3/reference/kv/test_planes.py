"""Planes are read as their formats say, bit for bit: codes widened and multiplied one step after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.lib.kv import fp8, nvfp4
from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.reference import kv_planes
from specgate.backends.eagle3.reference.kv_planes import (
    Fp8Plane,
    Nvfp4Plane,
    Quantised,
    allocate,
    read_rows,
    write_rows,
)
from specgate.checkpoints.mxfp4 import VALUES
from specgate.errors import BackendError

P = TypeVar("P", Fp8Plane, Nvfp4Plane)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BITS = {4: torch.int32, 2: torch.int16}
POSITIONS = 96
POWERS = st.integers(-126, 126)
SPANS = st.tuples(st.integers(0, 5), st.integers(0, POSITIONS)).map(lambda s: (16 * s[0], max(16 * s[0] + 1, s[1])))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if shapes, dtypes and bits agree, −0 and 0 told apart; one NaN is as good as another."""
    both = a.isnan() & b.isnan()
    bits = BITS[a.itemsize]
    return a.dtype == b.dtype and bool(((a.view(bits) == b.view(bits)) | both).all()) and a.shape == b.shape


def fp8_by_steps(plane: Fp8Plane, start: int, stop: int) -> Tensor:
    numbers = plane.codes.view(torch.float8_e4m3fn).float() * plane.scales.repeat_interleave(16, dim=2)[..., None]
    return numbers[:, :, start:stop]


def nvfp4_by_steps(plane: Nvfp4Plane, start: int, stop: int) -> Tensor:
    halves = torch.stack((plane.codes & 15, plane.codes >> 4), dim=-1).flatten(-2).long()
    scales = plane.blocks.view(torch.float8_e4m3fn).float() * plane.scale[..., None, None]
    return (torch.tensor(VALUES)[halves] * scales.repeat_interleave(16, dim=-1))[:, :, start:stop]


def nvfp4_encoded_by_steps(numbers: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    blocks = numbers.reshape(*numbers.shape[:-1], -1, 16)
    stored = (blocks.abs().amax(dim=-1) * torch.tensor(1 / 6) / scale).clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn)
    size = blocks.double() / (stored.double() * scale)[..., None]
    codes = torch.zeros_like(size, dtype=torch.uint8)
    for index, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        codes += (size.abs() >= middle) if index % 2 else (size.abs() > middle)
    codes += 8 * torch.signbit(size).to(torch.uint8)
    flat = codes.flatten(-2)
    return flat[..., 0::2] | flat[..., 1::2] << 4, stored.view(torch.uint8)


def some_fp8(seed: int, low: int, high: int, size: int) -> Fp8Plane:
    """Three slots of any codes, NaN among them, and any scales between the powers `low` and `high` + 1 of two."""
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (3, 2, POSITIONS, size), generator=source).to(torch.uint8)
    powers = torch.randint(low, high + 1, (3, 2, POSITIONS // 16), generator=source)
    return Fp8Plane("keys", codes, torch.exp2(powers.float()) * (1 + torch.rand(powers.shape, generator=source)))


def some_nvfp4(seed: int, scale: float, size: int) -> Nvfp4Plane:
    """Three slots of any codes and any block scales that are positive numbers."""
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (3, 2, POSITIONS, size // 2), generator=source).to(torch.uint8)
    blocks = torch.randint(1, 127, (3, 2, POSITIONS, size // 16), generator=source).to(torch.uint8)
    return Nvfp4Plane("keys", codes, blocks, torch.tensor([[scale, 2.0], [1.0, 0.5], [scale / 3 + 2.0**-126, 1.0]]))


@pytest.mark.parametrize("narrow_at_once", [False, True])
@given(seed=st.integers(0, 2**32), powers=st.tuples(POWERS, POWERS), span=SPANS, size=st.integers(1, 24))
@settings(max_examples=25, deadline=None)
def test_fp8_is_read_as_its_steps_say(
    narrow_at_once: bool, seed: int, powers: tuple[int, int], span: tuple[int, int], size: int
) -> None:
    held(some_fp8(seed, min(powers), max(powers), size), fp8_by_steps, span, narrow_at_once)


@pytest.mark.parametrize("narrow_at_once", [False, True])
@given(
    seed=st.integers(0, 2**32),
    scale=st.floats(2.0**-126, 2.0**100, width=32),
    span=SPANS,
    size=st.sampled_from([16, 32, 48]),
)
@settings(max_examples=25, deadline=None)
def test_nvfp4_is_read_as_its_steps_say(
    narrow_at_once: bool, seed: int, scale: float, span: tuple[int, int], size: int
) -> None:
    held(some_nvfp4(seed, scale, size), nvfp4_by_steps, span, narrow_at_once)


def held(plane: P, by_steps: Callable[[P, int, int], Tensor], span: tuple[int, int], narrow_at_once: bool) -> None:
    """Every dtype of every slot, alone and beside others. `narrow_at_once`: as on a GPU, without a pass in float32."""
    with pytest.MonkeyPatch.context() as patch:
        if narrow_at_once:
            patch.setattr(kv_planes, "decoded_in", lambda dtype, device: dtype)
        for dtype in DTYPES:
            for slots in (plane, plane.slots(1, 3), plane.slots(2, 3)):
                rows, expected = read_rows(slots, *span, dtype), by_steps(slots, *span)
                assert rows.is_contiguous()
                assert same_bits(rows, expected.to(dtype))


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=64, max_size=64),
    st.integers(nvfp4.LEAST_EXPONENT, 100),
)
@settings(max_examples=60, deadline=None)
def test_nvfp4_is_written_as_its_steps_say(numbers: list[float], power: int) -> None:
    rows, outer = torch.tensor(numbers).view(2, 32), torch.tensor(2.0**power)
    for given_rows in (rows, rows.t().contiguous().t()):
        encoded, expected = nvfp4.encoded(given_rows, outer), nvfp4_encoded_by_steps(given_rows, outer)
        assert all(torch.equal(a, b) for a, b in zip(encoded, expected, strict=True))


def test_nvfp4_tells_numbers_beside_every_middle_apart() -> None:
    middles = torch.tensor(nvfp4.MIDDLES)
    beside = [middles, middles.nextafter(torch.tensor(0.0)), middles.nextafter(torch.tensor(9.0))]
    numbers = torch.cat((*beside, *(-x for x in beside), torch.tensor([6.0, 0.0, -0.0, 6.0, -6.0, 6.0]))).view(3, 16)
    result, expected = (f(numbers, torch.tensor(1.0)) for f in (nvfp4.encoded, nvfp4_encoded_by_steps))
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("mode", ["fp8", "nvfp4"])
def test_reading_makes_no_second_copy_of_a_cache(mode: KvMode) -> None:
    plane = allocate(mode, (1, 2, 512, 32), torch.float32, "cpu", "keys")
    rows = read_rows(plane, 0, 512, torch.float32)
    assert rows.untyped_storage().nbytes() < 2 * rows.nbytes
    first = rows.clone()
    write_rows(plane, torch.arange(512)[None], torch.ones(1, 512, 2, 32))
    assert torch.equal(rows, first)  # what was read is not written over by what is read next
    assert read_rows(plane, 0, 512, torch.float32).allclose(torch.ones(()), rtol=0.1)


@pytest.mark.parametrize("code", [0, 127, 128, 200, 255])
def test_every_block_scale_that_is_no_positive_number_is_seen(code: int) -> None:
    plane = some_nvfp4(1, 1.0, 32)
    plane.blocks[1, 1, 7, 1] = code
    with pytest.raises(BackendError, match="keys, slot 1, head 1, positions 7 to 7"):
        plane.read(0, 16, torch.float32)


@pytest.mark.gpu
def test_a_gpu_reads_what_a_cpu_reads() -> None:
    for made in (some_fp8(1, -20, 20, 64), some_nvfp4(1, 0.013, 64)):
        on_gpu = moved(made)
        for dtype in DTYPES:
            for start, stop in ((0, POSITIONS), (16, 90), (32, 33)):
                rows = on_gpu.read(start, stop, dtype).cpu()
                assert same_bits(rows, made.read(start, stop, dtype))


def moved(plane: Fp8Plane | Nvfp4Plane) -> Quantised:
    if isinstance(plane, Fp8Plane):
        return Fp8Plane(plane.name, plane.codes.cuda(), plane.scales.cuda())
    return Nvfp4Plane(plane.name, plane.codes.cuda(), plane.blocks.cuda(), plane.scale.cuda())


def test_the_tables_of_e4m3_are_what_torch_makes_of_every_byte() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    two = torch.cartesian_prod(codes, codes)
    for dtype in DTYPES:
        out = torch.empty(two.shape, dtype=dtype)
        fp8.unscaled(two, out)
        assert same_bits(out, two.view(torch.float8_e4m3fn).float().to(dtype))
