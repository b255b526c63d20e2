"""The engine: the reference's loop over a model of transformers, and what an engine shows that is not bit-exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.playback import Playback
from specgate.backends.eagle3.reference.drafters import StandIn
from specgate.backends.eagle3.reference.loop import SpeculativeLoop
from specgate.backends.eagle3.reference.ops import target_argmax
from specgate.backends.eagle3.reference.stages import show_stages
from specgate.backends.eagle3.transformers.target import FEW_ROWS, TransformersTarget
from specgate.contract import Budget, EngineFacts, Role, TopTokens
from specgate.contract.protocols import LED, Decoded
from specgate.errors import BackendError


class TransformersEngine(SpeculativeLoop):
    """A pass over several rows rounds otherwise than a pass over one, so that texts may part at near ties."""

    def __init__(
        self,
        target: TransformersTarget,
        drafts: DraftCheckpoint | StandIn | None,
        facts: EngineFacts,
        *,
        max_batch: int,
        max_positions: int,
        playback: Playback | None = None,
    ) -> None:
        super().__init__(target, drafts, max_batch=max_batch, max_positions=max_positions, playback=playback)
        self._facts, self._layers = facts, len(target.layers)

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """As the loop's. Raises EnvironmentRefused where a pass does not fit into the GPU's memory."""
        with refusing_overflow("prefill", hint=f"fewer rows in one pass: -o prefill_rows={FEW_ROWS} or less"):
            return super().prefill(prompts, draft=draft)

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """As the loop's. Raises EnvironmentRefused where a pass does not fit into the GPU's memory."""
        with refusing_overflow(f"{role}: a pass over {role.k + 1} rows of {len(self.prompts)} requests"):
            return super().decode(role, budget, stop_token_ids)

    @torch.inference_mode()
    def stages(self, prompt: Sequence[int], rows: int) -> Mapping[str, NDArray[np.float32] | NDArray[np.int64]]:
        """As `protocols.ShowsStages.stages`."""
        return show_stages(self, self._layers, prompt, rows)

    @torch.inference_mode()
    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens:
        """As `protocols.RanksTokens.ranked`: logits."""
        return most_likely(self._after(slot, continuation), count)

    @torch.inference_mode()
    def ranked_again(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """As `protocols.RanksAgain.ranked_again`: the last tokens go through the model one by one."""
        led = min(LED, len(continuation))
        if not led:
            return None
        position = len(self.prompts[slot]) + len(continuation) - led
        self._after(slot, continuation[: len(continuation) - led])
        for ahead, token in enumerate(continuation[len(continuation) - led :]):
            stream = self._one_row(slot, torch.tensor([[token]], device=self.device), position + ahead)
        return most_likely(self.model.logits(stream)[0, 0], count)

    @torch.inference_mode()
    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...]:
        """As `protocols.FollowsText.follow`. Raises BackendError where the tokens do not fit."""
        position = len(self.prompts[slot]) + len(continuation)
        if position + new_tokens > self.max_positions:
            raise BackendError(f"follow: {position + new_tokens} positions asked for, there are {self.max_positions}")
        token, tokens = target_argmax(self._after(slot, continuation)), list[int]()
        for ahead in range(new_tokens):
            tokens.append(int(token))
            if len(tokens) < new_tokens:
                token = self._greedy(self._one_row(slot, token.view(1, 1), position + ahead))[0, 0]
        return tuple(tokens)

    def _one_row(self, slot: int, token: Tensor, position: int) -> Tensor:
        """The hidden state [1, 1, H] of `token` [1, 1] at `position`, which is in the cache then."""
        at = torch.tensor([[position]], device=self.device)
        stream, _ = self.model.forward(slice(slot, slot + 1), token, at, ())
        return stream


def most_likely(logits: Tensor, count: int) -> TopTokens:
    """The `count` largest of `logits` [V]."""
    best = logits.topk(min(count, len(logits)))
    return TopTokens(tuple(best.values.tolist()), tuple(best.indices.tolist()))
