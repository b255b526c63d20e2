from __future__ import annotations

import numpy as np
import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.read_memory import THREADS, WARP_WORDS, ReadMemory
from tests.eagle3.cupy.kernels.device import integers


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [1, 3, 1000])
def test_every_word_is_read(blocks: int) -> None:
    words = integers(2**31 - 1, blocks * THREADS // 32 * WARP_WORDS, seed=1)
    out = torch.full((words.numel() // WARP_WORDS,), -1, dtype=torch.int32, device="cuda")
    ReadMemory()(out=out, words=words)
    tiles = words.cpu().numpy().reshape(-1, WARP_WORDS)
    assert np.array_equal(out.cpu().numpy(), np.bitwise_xor.reduce(tiles, axis=1))


def test_words_that_do_not_fill_a_block_are_refused() -> None:
    words, out = (torch.empty(n, dtype=torch.int32, device="meta") for n in (THREADS * WARP_WORDS // 32 + 4, 9))
    with pytest.raises(ValueError, match=f"read_memory: launched with WORDS = {len(words)}, THREADS = {THREADS}"):
        ReadMemory()(out=out, words=words)
