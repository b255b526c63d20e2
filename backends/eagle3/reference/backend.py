"""Registers the reference engine as a back end."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

from specgate.contract.protocols import Availability, Engine, MemoryReads, OpenRequest


class ReferenceBackend:
    """Plain torch: on the GPU where `device=cuda` is asked for or a GPU is present, else on the CPU."""

    name = "reference"
    description = "EAGLE-3 in plain torch (CPU or GPU): the oracle, and the default where there is no GPU"

    bit_exact: Literal[True] = True
    samples: Literal[True] = True
    logit_options: tuple[str, ...] = ("kv",)
    draft_options: tuple[str, ...] = ("capture", "draft_kv")
    other_drafts: tuple[str, ...] = ("drafter", "specpv", "tape", "tree")

    def available(self) -> Availability:
        if find_spec("torch") is None:
            return Availability(False, "torch is not installed (in specgate's checkout: pip install '.[torch]')")
        return Availability(True, "plain torch", rank=10)

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError for options that there are not. Without any, torch is not imported."""
        if options:
            from specgate.backends.eagle3.reference.open import OPTIONS, refuse_unknown

            refuse_unknown(options, OPTIONS, "the reference engine")

    def open(self, request: OpenRequest) -> Engine:
        from specgate.backends.eagle3.reference.open import open_engine

        return open_engine(request)

    def read_memory(self, repeats: int) -> MemoryReads:
        from specgate.backends.eagle3.reference.memory_reads import read_memory

        return read_memory(repeats)


BACKEND = ReferenceBackend()
