"""Launches `read_memory.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel

THREADS: Final = 256
LOADS: Final = 8
"""Loads of 16 bytes that a thread has in flight."""
WARP_WORDS: Final = 32 * LOADS * 4
"""32-bit words that a warp reads."""
BLOCK_WORDS: Final = THREADS // 32 * WARP_WORDS


class ReadMemory(Kernel):
    """out[i] = XOR of words [i·WARP_WORDS, (i + 1)·WARP_WORDS): int32 [n], n a multiple of BLOCK_WORDS → int32
    [n / WARP_WORDS].
    """

    def __init__(self) -> None:
        super().__init__("read_memory", threads=THREADS, loads=LOADS)

    def __call__(self, out: Tensor, words: Tensor) -> None:
        count = words.numel()
        if count % BLOCK_WORDS:
            raise ValueError(f"words: {count} of them, but a multiple of {BLOCK_WORDS} is needed")
        self.launch((count // BLOCK_WORDS,), out=out, words=words, WORDS=count, WARP_WORDS=WARP_WORDS)
