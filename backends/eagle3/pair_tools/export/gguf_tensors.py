"""Convert tensors to llama.cpp's conventions and stream them into a GGUF file.

Sources: the GGUF specification; llama.cpp b11434 for row order, rope factors and `d2t`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.rope import inverse_frequencies
from specgate.backends.eagle3.pair_tools.shards import LazyTensor
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry

if TYPE_CHECKING:
    from gguf import GGUFWriter


def as_stored(tensors: Mapping[str, LazyTensor], g: TargetGeometry | DraftGeometry) -> Iterator[tuple[str, LazyTensor]]:
    """The tensors in llama.cpp's conventions.

    Rows of query and key projections are interleaved, vectors are float32, and `d2t` holds absolute target ids.
    """
    if g.rope.kind == "llama3":
        yield "rope_freqs.weight", rope_factors(g.rope)
    for name, tensor in tensors.items():
        if name.endswith("attn_q.weight"):
            yield name, interleaved(tensor, g.heads)
        elif name.endswith("attn_k.weight"):
            yield name, interleaved(tensor, g.kv_heads)
        elif name == "d2t":
            yield name, absolute(tensor)
        else:
            yield name, tensor.to(torch.float32) if len(tensor.shape) == 1 else tensor


def rope_factors(rope: RopeSpec) -> LazyTensor:
    """float32 [head_dim / 2]: the divisor of each unscaled frequency."""
    plain, _ = inverse_frequencies(RopeSpec("default", rope.base, rope.dim))
    scaled, _ = inverse_frequencies(rope)
    return LazyTensor((rope.dim // 2,), torch.float32, lambda: plain / scaled)


def absolute(offsets: LazyTensor) -> LazyTensor:
    """`d2t` as absolute target ids instead of offsets."""
    return LazyTensor(offsets.shape, offsets.dtype, lambda: offsets.read() + torch.arange(offsets.shape[0]))


def interleaved(weight: LazyTensor, heads: int) -> LazyTensor:
    """Rows of a `[heads * head_dim, width]` projection in llama.cpp's order: the inverse of `half_split_rows`."""

    def read() -> Tensor:
        rows, width = weight.shape
        return weight.read().reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)

    return LazyTensor(weight.shape, weight.dtype, read)


def stream(writer: GGUFWriter, tensors: Iterator[tuple[str, LazyTensor]]) -> None:
    """Write the header, keys and tensor table, then the tensors, one in memory at a time."""
    import gguf
    import numpy as np

    kinds = {
        torch.float32: gguf.GGMLQuantizationType.F32,
        torch.float16: gguf.GGMLQuantizationType.F16,
        torch.bfloat16: gguf.GGMLQuantizationType.BF16,
        torch.int64: gguf.GGMLQuantizationType.I64,
    }
    table = dict(tensors)
    for name, t in table.items():
        # `raw_dtype` decides the type in the file. The NumPy type only says that the data is not quantised.
        writer.add_tensor_info(name, t.shape, np.dtype(np.float32), t.nbytes, raw_dtype=kinds[t.dtype])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for t in table.values():
            writer.write_tensor_data(t.read().contiguous().view(torch.uint8).numpy())
    finally:
        writer.close()
