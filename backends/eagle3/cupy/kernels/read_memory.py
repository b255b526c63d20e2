"""Launches `read_memory.cu`."""

from __future__ import annotations

from typing import Final

from specgate.backends.eagle3.cupy.kernels.loader import Kernel

THREADS: Final = 256
LOADS: Final = 8
"""Loads of 16 bytes that a thread has in flight."""
WARP_WORDS: Final = 32 * LOADS * 4
"""32-bit words that a warp reads."""


class ReadMemory(Kernel):
    """out[i] = XOR of words [i·WARP_WORDS, (i + 1)·WARP_WORDS): int32 [n] → int32 [n / WARP_WORDS], of whole blocks."""

    threads: int = THREADS
    loads: int = LOADS
