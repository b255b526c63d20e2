"""Engines opened on stand-ins of their libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specgate.backends.offline.engine import OfflineEngine
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.plugins import backend

STAND_INS = Path(__file__).with_name("stand_ins")


def request_of(
    pair: tuple[Path, Path], folder: Path, options: Mapping[str, str], *, fault: str = "", max_k: int = 3
) -> OpenRequest:
    given = {"pythonpath": str(STAND_INS), "stop_s": "1", **options}
    if fault:
        given["env.STAND_IN_FAULT"] = fault
    return OpenRequest(
        PairRef("tiny", *pair),
        "float32",
        max_batch=2,
        max_positions=128,
        max_k=max_k,
        perf_mode=False,
        options=given,
        logs=folder,
    )


@contextmanager
def opened(name: str, request: OpenRequest) -> Iterator[OfflineEngine]:
    engine = backend(name).open(request)
    assert isinstance(engine, OfflineEngine)
    try:
        yield engine
    finally:
        engine.close()
