"""The engine that decodes a planted pair's own text while it is made or checked."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from specgate.backends.eagle3.reference.backend import BACKEND as REFERENCE
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.gpt_oss import GptOssTarget
from specgate.contract import PairRef
from specgate.contract.protocols import Backend, Engine, OpenRequest


@dataclass(frozen=True, slots=True)
class Decoder:
    """`backend` opens pairs in the arithmetic `dtype`. `device` is where the reference engine computes; other engines
    have their own.
    """

    dtype: str
    device: str
    backend: Backend = REFERENCE

    @contextmanager
    def opened(self, pair: PairRef, *, batch: int, positions: int, k: int) -> Iterator[Engine]:
        """An engine for `batch` texts of up to `positions` tokens, and drafts of up to `k`. Raises as its back end's
        `open` does.
        """
        release(self.device)
        engine = self.backend.open(
            OpenRequest(
                pair=pair,
                dtype=self.dtype,
                max_batch=batch,
                max_positions=positions,
                max_k=k,
                perf_mode=False,
                options={"device": self.device} if self.backend.name == REFERENCE.name else {},
            )
        )
        if isinstance(engine, ReferenceEngine) and isinstance(engine.model, GptOssTarget):
            engine.model.decode_ahead()
        try:
            yield engine
        finally:
            engine.close()


def release(device: str) -> None:
    """Give back the memory of engines that are no longer used: the next one may be of another library."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
