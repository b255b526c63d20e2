"""An engine of the back end that is asked for, with the way into its cache."""

from __future__ import annotations

from collections.abc import Mapping

from specgate import plugins
from specgate.api import OpenRequest
from specgate.core import PairRef
from specgate.errors import UsageError
from tests.bench.stress.episodes import Sizes
from tests.bench.stress.handles.handle import Handle

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
        from specgate.backends.cupy_eagle3.engine.engine import CupyEngine
        from tests.bench.stress.handles.cupy_eagle3 import CupyHandle

        assert isinstance(engine, CupyEngine)
        return CupyHandle(engine)
    from specgate.backends.reference.engine import ReferenceEngine
    from tests.bench.stress.handles.reference import ReferenceHandle

    assert isinstance(engine, ReferenceEngine)
    return ReferenceHandle(engine)
