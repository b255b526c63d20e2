"""Chains that end early: their arrays on the GPU, as `end_chains.cu` and the kernels behind it know them.

S slots, chains of up to K draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.state.slots import Rows


@dataclass(frozen=True, slots=True)
class Chains:
    """int32, but for `sure`, `partial` and `stream`, which are float32.

    Of each slot, [S]: `sure`, the product of the probabilities of its draft tokens of the current step so far; and
    `length`, how many draft tokens its chain has. `length_log` [steps, S] has these of every step.

    Of each draft step but the first, whose rows are those of all active slots: `live` [K - 1, S] lists the slots whose
    chains have gone on to it, ascending, `live_count` [K - 1, 1] of them. `onward` [S]: of each row of a draft step,
    its row in the next one, -1 where its chain has ended.

    `partial` [S · parts]: sums of parts of rows. `finished` [1]: zero between launches. `stream` [S, Hd]: the draft's
    residual stream of every other draft step.
    """

    sure: Tensor
    length: Tensor
    length_log: Tensor
    live: Tensor
    live_count: Tensor
    onward: Tensor
    partial: Tensor
    finished: Tensor
    stream: Tensor

    @classmethod
    def allocate(
        cls, slots: int, drafts: int, steps: int, parts: int, hidden: int, device: torch.device | str
    ) -> Chains:
        """For chains of up to `drafts` tokens, at least 2, and decode runs of up to `steps` steps."""

        def of(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            sure=of(slots, dtype=torch.float32),
            length=of(slots),
            length_log=of(steps, slots),
            live=of(drafts - 1, slots),
            live_count=of(drafts - 1, 1),
            onward=of(slots),
            partial=of(slots * parts, dtype=torch.float32),
            finished=of(1),
            stream=of(slots, hidden, dtype=torch.float32),
        )

    def rows(self, index: int, rows: Rows) -> Rows:
        """The rows of the draft step that makes draft token `index`, from 1 on; `rows`: those of the first."""
        return replace(rows, active=self.live[index - 1], active_count=self.live_count[index - 1])
