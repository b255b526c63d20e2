"""Libraries that do the work of a kernel: cuBLAS for products, and torch's attention.

They get random operands of the same sizes, which take turns like the kernel's own. A library that fails is reported
with its reason, and the benchmark goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.accounts import VisibleCache, visible_cache
from specgate.backends.eagle3.cupy.bench.timing import inputs_to_rotate, time_launches
from specgate.backends.eagle3.cupy.device import l2_bytes
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.step.recording import Call
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.nouns.kernel_bench import PeerTiming

FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, ImportError, OSError)
"""What a library may raise that does not like the machine, its own version, or the sizes."""

Make = Callable[[int], Callable[[int], object]]
"""Number of inputs → launch on the i-th of them."""


@dataclass(frozen=True, slots=True)
class Peer:
    """`size`: bytes of one input."""

    name: str
    size: int
    make: Make


def peers_of(call: Call, weights: Sequence[Tensor], context: int) -> Iterator[Peer]:
    """The libraries for a product over `weights`, which take turns, or for attention of a chain without sinks. Other
    kernels have none.
    """
    match call.kernel:
        case MatmulRows():
            yield cublas(call, weights)
        case Attention(tree=None, sinks=False):
            kernel, slots = call.kernel, call.named["rows"].slots
            visible = visible_cache(kernel, call.operands, context)
            yield torch_attention(kernel.heads, slots, visible)


def timed(peer: Peer) -> PeerTiming:
    stream = Stream()  # of its own: a capture that fails leaves its stream unusable
    try:
        inputs = inputs_to_rotate(peer.size, l2_bytes())
        with stream.current(), torch.inference_mode():
            launch = peer.make(inputs)
            stream.wait()
            return PeerTiming(peer.name, time_launches(launch, inputs, stream).latency_us)
    except FAILURES as error:
        with contextlib.suppress(RuntimeError):
            stream.cupy.end_capture()
        return PeerTiming(peer.name, None, f"{type(error).__name__}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def cublas(call: Call, weights: Sequence[Tensor]) -> Peer:
    """x · weightᵀ in bfloat16, without what our epilogues add to it."""
    rows, (n, k) = call.named["rows"].most, weights[0].shape

    def make(inputs: int) -> Callable[[int], object]:
        own = [weights[i] if i < len(weights) else torch.randn_like(weights[0]) for i in range(inputs)]
        x, out = random(rows, k), random(rows, n)
        return lambda i: torch.mm(x, own[i].t(), out=out)

    return Peer("cuBLAS", weights[0].nbytes, make)


def torch_attention(h: Heads, slots: int, visible: VisibleCache) -> Peer:
    """`scaled_dot_product_attention` over contiguous keys and values; every row sees all of them."""
    shape = (slots, h.kv_heads, visible.seen, h.head_dim)

    def make(inputs: int) -> Callable[[int], object]:
        q = random(slots, h.heads, visible.rows, h.head_dim)
        keys, values = (random(inputs, *shape) for _ in range(2))
        return lambda i: F.scaled_dot_product_attention(q, keys[i], values[i], enable_gqa=True)

    return Peer("SDPA", cached_bytes(h, slots, visible), make)


def cached_bytes(h: Heads, slots: int, visible: VisibleCache) -> int:
    return 2 * slots * visible.seen * h.kv_heads * h.head_dim * torch.bfloat16.itemsize


def random(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()
