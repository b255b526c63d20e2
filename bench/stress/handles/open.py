"""An engine of the back end that is asked for, with the way into its cache."""

from __future__ import annotations

from collections.abc import Mapping

from bench.stress.episodes import Sizes
from bench.stress.handles.handle import Handle
from specgate import plugins
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

DTYPES: Mapping[str, str] = {"cupy": "bfloat16", "reference": "float32"}
"""Back end → what it computes with."""


def open_handle(backend: str, pair: PairRef, sizes: Sizes, options: Mapping[str, str]) -> Handle:
    """Raises UsageError for another back end, and whatever opening the engine raises."""
    if backend not in DTYPES:
        raise UsageError(
            f"--backend {backend}: its cache cannot be reached from here", hint=f"known: {', '.join(DTYPES)}"
        )
    request = OpenRequest(
        pair=pair,
        dtype=DTYPES[backend],
        max_batch=sizes.slots,
        max_positions=sizes.positions,
        max_k=max(sizes.spec),
        perf_mode=False,
        options=options,
    )
    engine = plugins.backend(backend).open(request)
    if backend == "cupy":
        from bench.stress.handles.cupy_eagle3 import CupyHandle
        from specgate.backends.eagle3.cupy.engine.open import CupyEngine

        assert isinstance(engine, CupyEngine)
        return CupyHandle(engine)
    from bench.stress.handles.reference import ReferenceHandle
    from specgate.backends.eagle3.reference.engine import ReferenceEngine

    assert isinstance(engine, ReferenceEngine)
    return ReferenceHandle(engine)
