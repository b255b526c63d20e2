"""NVTX ranges around launches. Inside a CUDA graph they mark the capture; on replay its steps share one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def mark(name: str) -> Iterator[None]:
    from cupy.cuda import nvtx

    nvtx.RangePush(name)
    try:
        yield
    finally:
        nvtx.RangePop()
