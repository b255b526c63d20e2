"""One CUDA stream for torch and CuPy alike, and NVTX ranges around launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stream:
    """A stream of its own: graphs cannot be captured on the default one. What was enqueued there comes first."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device`: None for the current one."""
        import cupy

        new: Any = torch.cuda.Stream
        self.torch: torch.cuda.Stream = new(device)
        self._device: Any = cupy.cuda.Device(self.torch.device.index)
        with self._device:
            # torch's streams do not wait for the default one, which may still be packing weights and zeroing buffers.
            self.torch.wait_stream(torch.cuda.current_stream(self.torch.device))
            self.cupy: Any = cupy.cuda.Stream.from_external(self.torch)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Everything that torch and CuPy launch inside goes to this stream, whose GPU is the current one."""
        with torch.cuda.stream(self.torch), self._device, self.cupy:
            yield

    def wait(self) -> None:
        self.torch.synchronize()


@contextmanager
def mark(name: str) -> Iterator[None]:
    from cupy.cuda import nvtx

    nvtx.RangePush(name)
    try:
        yield
    finally:
        nvtx.RangePop()
