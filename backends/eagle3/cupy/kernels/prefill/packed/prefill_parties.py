"""Launches `prefill_parties.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import ARGUMENT, Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import PARTY, RECORD, Parties, most_parties
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

    @announced
    def __call__(self, parties: Parties, place: Tensor, chosen: Tensor) -> None:
        """`chosen` int32 [R, k]: the experts of each row."""
        rows, k = len(chosen), self.experts.per_token
        most = most_parties(rows * k, self.experts.count)
        expect("parties", parties.table, (most, RECORD), torch.int32)
        expect("party count", parties.count, (1,), torch.int32)
        expect("place", place, (rows, k), torch.int32)
        expect("chosen", chosen, (rows, k), torch.int32)
        arguments: dict[str, ARGUMENT] = {
            "parties": parties.table,
            "party_count": parties.count,
            "place": place,
            "chosen": chosen,
            "pairs": rows * k,
        }
        self.launch("prefill_parties", (self.experts.count,), (THREADS,), arguments)
