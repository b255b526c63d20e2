"""All kernels of an engine's steps compiled side by side before they are needed, since a new machine has none."""

from __future__ import annotations

import time
from collections.abc import Sequence

from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.prefill import kernels
from specgate.backends.eagle3.cupy.kernels.compiling import compiler


def compile_all(engine: CupyEngine, slots: int, draft_lengths: Sequence[int]) -> float:
    """Seconds that it took. Raises AssertionError with the compiler's first complaint."""
    began, rank = time.monotonic(), engine.first
    cycles = [rank.cycle(k, slots) for k in draft_lengths]
    specs = [kernel.spec for cycle in cycles for kernel in cycle.kernels().values()]
    draft = rank.draft.geometry if rank.draft else None
    specs += [kernel.spec for kernel in kernels(rank.target.geometry, draft, ranks=len(engine.ranks))]
    with compiler() as compiling:
        complaints = compiling.compile(specs)
    wrong = {spec: why for spec, why in complaints.items() if why}
    assert not wrong, wrong
    return time.monotonic() - began
