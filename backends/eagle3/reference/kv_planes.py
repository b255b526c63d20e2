"""Keys, or values, of one layer: quantised where a position is written, dequantised where attention reads.

A plane without a format is a tensor [B, G, S, D] in the dtype of the engine, or in bfloat16. The others hold integers
and scales. All are written position by position, and to rewind is to write again: a scale belongs to positions that are
written in ascending order behind what is valid, so it is never older than they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv import fp8, nvfp4
from specgate.backends.eagle3.lib.kv.modes import FP8_POSITIONS, NVFP4_ELEMENTS, KvMode
from specgate.backends.eagle3.lib.trees.accepting import compact
from specgate.errors import BackendError


class Quantised(Protocol):
    """A plane in a format of its own."""

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers and scales."""

    def slots(self, start: int, stop: int) -> Quantised:
        """A view of the slots from `start` up to, not including, `stop`."""

    def write(self, positions: Tensor, rows: Tensor) -> None:
        """Quantise `rows` [B, T, G, D] and keep them at `positions` [B, T], which ascend within a slot.

        Raises BackendError where a row is not finite, since there is no scale for it.
        """

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Positions `start`, a multiple of 16, up to, not including, `stop`, [B, G, stop − start, D]: float32, rounded
        to `dtype`.

        Raises BackendError for a scale that is zero, infinite or no number.
        """

    def clear(self) -> None:
        """Back to zeros."""


Plane = Tensor | Quantised


def allocate(
    mode: KvMode | None,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: str,
    name: str,
    tree_rows: int = 0,
) -> Plane:
    """A plane of `shape` [B, G, S, D] that holds zeros. `name`: what it holds, for errors. `tree_rows`: how many
    neighbouring rows of a tree it may keep at once.
    """
    batch, heads, positions, size = shape
    if tree_rows and mode in ("fp8", "nvfp4"):
        quantised = allocate(mode, shape, dtype, device, name)
        assert not isinstance(quantised, Tensor)
        return WithTreeRows(quantised, torch.zeros(batch, heads, tree_rows, size, device=device))
    if mode == "fp8":
        codes = torch.zeros(shape, dtype=torch.uint8, device=device)
        return Fp8Plane(name, codes, torch.ones(batch, heads, -(-positions // FP8_POSITIONS), device=device))
    if mode == "nvfp4":
        halves = torch.zeros(batch, heads, positions, size // 2, dtype=torch.uint8, device=device)
        blocks = torch.zeros(batch, heads, positions, size // NVFP4_ELEMENTS, dtype=torch.uint8, device=device)
        plane = Nvfp4Plane(name, halves, blocks, torch.ones(batch, heads, device=device))
        plane.clear()
        return plane
    return torch.zeros(shape, dtype=torch.bfloat16 if mode == "bf16" else dtype, device=device)


def write_rows(plane: Plane, positions: Tensor, rows: Tensor) -> None:
    """Keep `rows` [B, T, G, D] at `positions` [B, T]."""
    if isinstance(plane, Tensor):
        plane[torch.arange(len(positions), device=plane.device)[:, None], :, positions] = rows.to(plane.dtype)
    else:
        plane.write(positions, rows)


def read_rows(plane: Plane, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Positions `start` up to, not including, `stop` in `dtype`, [B, G, stop − start, D]."""
    return plane[:, :, start:stop].to(dtype) if isinstance(plane, Tensor) else plane.read(start, stop, dtype)


def keep_rows(plane: Plane, rows: Tensor, numbers: Tensor) -> None:
    """Keep `numbers` [B, T, G, D] of rows of a tree, in the cache rows `rows` [B, T], until they are moved."""
    if isinstance(plane, WithTreeRows):
        plane.keep(rows, numbers)
    else:
        write_rows(plane, rows, numbers)


def move_rows(plane: Plane, read: Tensor, write: Tensor) -> None:
    """Put what `keep_rows` keeps in cache rows `read` [B, L] at positions `write` [B, L], which ascend."""
    if isinstance(plane, WithTreeRows):
        plane.move(read, write)
    else:
        compact(plain(plane), read, write)


def plain(plane: Plane) -> Tensor:
    """A plane that is a tensor."""
    assert isinstance(plane, Tensor)
    return plane


def slots_of(plane: Plane, start: int, stop: int) -> Plane:
    """A view of the slots from `start` up to, not including, `stop`."""
    return plane[start:stop] if isinstance(plane, Tensor) else plane.slots(start, stop)


def clear(plane: Plane) -> None:
    """Back to zeros."""
    if isinstance(plane, Tensor):
        plane.zero_()
    else:
        plane.clear()


@dataclass(frozen=True, slots=True)
class Fp8Plane:
    """`codes` uint8 [B, G, S, D], the bits of E4M3; `scales` float32 [B, G, S/16]. See `eagle3.kv.fp8`."""

    name: str
    codes: Tensor
    scales: Tensor

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def slots(self, start: int, stop: int) -> Fp8Plane:
        return Fp8Plane(self.name, self.codes[start:stop], self.scales[start:stop])

    def write(self, positions: Tensor, rows: Tensor) -> None:
        numbers = rows.float()
        largest = finite_largest(numbers, positions, self.name, "fp8")
        slot, row = (positions % FP8_POSITIONS == 0).nonzero(as_tuple=True)
        if len(slot):  # most steps of decoding begin no block
            self.scales[slot, :, positions[slot, row] // FP8_POSITIONS] = fp8.scales_of(largest[slot, row])
        all_slots = torch.arange(len(positions), device=positions.device)[:, None]
        scales = self.scales[all_slots, :, positions // FP8_POSITIONS]
        self.codes[all_slots, :, positions] = fp8.encoded(numbers, scales[..., None])

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        scales = self.scales[:, :, start // FP8_POSITIONS : -(-stop // FP8_POSITIONS)]
        if not sound(scales).all():
            check_scales(scales, self.name, "fp8", FP8_POSITIONS, start)
        codes = self.codes[:, :, start:stop]
        out = room(codes.shape, decoded_in(dtype, codes.device), codes.device)
        fp8.unscaled(codes, out)
        whole = (stop - start) // FP8_POSITIONS  # blocks; of the one behind them some positions, or none
        blocks = out[:, :, : whole * FP8_POSITIONS].view(*out.shape[:2], whole, FP8_POSITIONS, out.shape[3])
        blocks.mul_(scales[:, :, :whole, None, None])
        out[:, :, whole * FP8_POSITIONS :].mul_(scales[:, :, whole:, None])
        return out.to(dtype)

    def clear(self) -> None:
        self.codes.zero_()
        self.scales.fill_(1.0)


@dataclass(frozen=True, slots=True)
class Nvfp4Plane:
    """`codes` uint8 [B, G, S, D/2]; `blocks` uint8 [B, G, S, D/16], the bits of E4M3; `scale` float32 [B, G]. See
    `eagle3.kv.nvfp4`.
    """

    name: str
    codes: Tensor
    blocks: Tensor
    scale: Tensor

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.blocks.nbytes + self.scale.nbytes

    def slots(self, start: int, stop: int) -> Nvfp4Plane:
        return Nvfp4Plane(self.name, self.codes[start:stop], self.blocks[start:stop], self.scale[start:stop])

    def write(self, positions: Tensor, rows: Tensor) -> None:
        numbers = rows.float()
        largest = finite_largest(numbers, positions, self.name, "nvfp4")
        slot, row = (positions == 0).nonzero(as_tuple=True)
        if len(slot):
            self.scale[slot] = nvfp4.outer_scales(largest[slot, row])
        codes, blocks = nvfp4.encoded(numbers, self.scale[:, None, :, None])
        all_slots = torch.arange(len(positions), device=positions.device)[:, None]
        self.codes[all_slots, :, positions] = codes
        self.blocks[all_slots, :, positions] = blocks

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        codes, blocks = self.codes[:, :, start:stop], self.blocks[:, :, start:stop]
        scale = self.scale[..., None]
        # Of E4M3 the codes 1 to 126 are positive numbers; 0 less 1 is 255.
        if not (sound(scale).all() & (blocks - 1 < 126).all()):
            check_scales(scale, self.name, "nvfp4", 0, 0)
            check_scales(blocks.view(torch.float8_e4m3fn).float().amin(dim=-1), self.name, "nvfp4", 1, start)
        out = room((*codes.shape[:3], 2 * codes.shape[3]), decoded_in(dtype, codes.device), codes.device)
        nvfp4.decode_into(codes, blocks, scale[..., None], out)
        return out.to(dtype)

    def clear(self) -> None:
        self.codes.zero_()
        self.blocks.view(torch.float8_e4m3fn).copy_(
            torch.full_like(self.blocks, nvfp4.SMALLEST_SCALE, dtype=torch.float)
        )
        self.scale.fill_(1.0)


@dataclass(frozen=True, slots=True)
class WithTreeRows:
    """A plane, and the rows of trees beside it as they were computed: float32 [B, G, N, D], cache row r at r modulo N.

    What a position quantises to depends on the positions before it, so it is known for a path, and not for a row of a
    tree: rows are quantised where a path is put at its positions.
    """

    plane: Quantised
    kept: Tensor

    @property
    def nbytes(self) -> int:
        return self.plane.nbytes

    def slots(self, start: int, stop: int) -> WithTreeRows:
        return WithTreeRows(self.plane.slots(start, stop), self.kept[start:stop])

    def write(self, positions: Tensor, rows: Tensor) -> None:
        self.plane.write(positions, rows)

    def read(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        return self.plane.read(start, stop, dtype)

    def clear(self) -> None:
        self.plane.clear()
        self.kept.zero_()

    def keep(self, rows: Tensor, numbers: Tensor) -> None:
        """As `keep_rows`."""
        self.kept[self._slots(rows), :, rows % self.kept.shape[2]] = numbers.float()

    def move(self, read: Tensor, write: Tensor) -> None:
        """As `move_rows`."""
        self.plane.write(write, self.kept[self._slots(read), :, read % self.kept.shape[2]])

    @staticmethod
    def _slots(rows: Tensor) -> Tensor:
        return torch.arange(len(rows), device=rows.device)[:, None]


def decoded_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype in which numbers are dequantised, if they are needed in `dtype`.

    A GPU multiplies numbers of 16 bits by float32 scales in float32 and rounds once, as `.to(dtype)` would, in one
    pass. A CPU would widen and narrow them in passes of their own.
    """
    return dtype if device.type == "cuda" else torch.float32


def room(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A contiguous tensor of `shape` [B, G, S, D] that holds anything.

    Memory is asked for in powers of two. A prompt that is read chunk by chunk would else ask for another size with
    every chunk, and torch keeps GPU memory of each size that it was ever asked for.
    """
    count = math.prod(shape)
    return torch.empty(1 << (count - 1).bit_length(), dtype=dtype, device=device)[:count].view(*shape)


def finite_largest(numbers: Tensor, positions: Tensor, name: str, mode: KvMode) -> Tensor:
    """The largest absolute value of each row [B, T, G] of `numbers` [B, T, G, D].

    Raises BackendError where one is not finite, with its place.
    """
    largest = numbers.abs().amax(dim=-1)
    if not torch.isfinite(largest).all():
        slot, row, head = (~torch.isfinite(largest)).nonzero()[0].tolist()
        raise BackendError(
            f"kv = {mode}: {name}, slot {slot}, position {int(positions[slot, row])}, head {head}: "
            f"{float(largest[slot, row, head])} has no scale",
            hint="the checkpoint holds NaN or infinity, or overflows in this dtype: try float32",
        )
    return largest


def sound(scales: Tensor) -> Tensor:
    """True for each of `scales` that is positive and finite."""
    return (scales > 0) & (scales < math.inf)


def check_scales(scales: Tensor, name: str, mode: KvMode, positions: int, start: int) -> None:
    """Raise BackendError where a scale of [B, G, blocks] is zero, infinite or no number, with its place.

    `positions` of a block, the first of which is at `start`; 0: the scale is of a whole slot's head.
    """
    broken = ~sound(scales)
    if broken.any():
        slot, head, block = broken.nonzero()[0].tolist()
        first = start + block * positions
        at = f", head {head}" + (f", positions {first} to {first + positions - 1}" if positions else "")
        raise BackendError(
            f"kv = {mode}: {name}, slot {slot}{at}: the scale is {float(scales[slot, head, block])}",
            hint="scales are positive and finite: something else than the engine has written to its cache",
        )
