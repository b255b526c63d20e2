"""Launches `prefill_parties.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import PARTY, Parties, most_parties
from specgate.checkpoints.geometry import ExpertGeometry

THREADS: Final = 256


class PrefillParties(Kernel):
    """The pairs of rows and their experts, sorted by their expert and then by their row, as parties; and `place` int32
    [R, k]: where each pair lies among the sorted ones.
    """

    def __init__(self, experts: ExpertGeometry) -> None:
        super().__init__(
            "prefill_parties", experts=experts.count, per_token=experts.per_token, party=PARTY, threads=THREADS
        )
        self.experts = experts

    def __call__(self, parties: Parties, place: Tensor, chosen: Tensor) -> None:
        """`chosen` int32 [R, k]: the experts of each row."""
        rows, pairs = len(chosen), chosen.numel()
        most = most_parties(pairs, self.experts.count)
        self.launch((self.experts.count,), parties, place=place, chosen=chosen, pairs=pairs, R=rows, PARTIES=most)
