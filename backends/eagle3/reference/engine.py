"""The reference engine: the loop over a target in plain torch, whose passes are exact on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.lib.chains import ChainLengths
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.logit_watch import LogitWatch
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.playback import Playback
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.weights import TargetWeights, pack_target
from specgate.backends.eagle3.reference.cache import KVCache
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.drafters import StandIn
from specgate.backends.eagle3.reference.facts import engine_facts, with_partial
from specgate.backends.eagle3.reference.gpt_oss import GptOssTarget, pack_gpt_oss
from specgate.backends.eagle3.reference.loop import SpeculativeLoop
from specgate.backends.eagle3.reference.sampling import LogProbabilities, Sampler, draw_texts, show_distribution
from specgate.backends.eagle3.reference.stages import show_stages
from specgate.backends.eagle3.reference.target import GPU_PREFILL_ROWS, PREFILL_ROWS, LlamaTarget, rope_table
from specgate.backends.eagle3.reference.tree import TreePlan
from specgate.contract import Budget, EngineFacts, Role
from specgate.contract.draws import TokenLaw
from specgate.errors import BackendError


class ReferenceEngine(SpeculativeLoop):
    """EAGLE-3 in plain torch. The arguments are those of the loop, with the target as loaded."""

    def __init__(
        self,
        target: TargetCheckpoint,
        drafts: DraftCheckpoint | StandIn | None,
        *,
        max_batch: int,
        max_positions: int,
        device: str,
        playback: Playback | None = None,
        tree: TreePlan | None = None,
        lengths: ChainLengths | None = None,
        sampler: Sampler | None = None,
        kv: KvModes = AS_COMPUTED,
        partial: PartialPlan | None = None,
        spare_rows: int = 0,
        warnings: Sequence[str] = (),
    ) -> None:
        self.target, self.kv, self.warnings, t = target, kv, warnings, target.geometry
        weights = pack_target(target) if t.experts is None else pack_gpt_oss(target)
        self.dtype = weights.embed.dtype
        self.table = rope_table(t.rope, max_positions + spare_rows, self.dtype, device)
        rows = max_positions + spare_rows + (tree.rows if tree else 0)
        sizes = t.layers, max_batch, t.kv_heads, rows, t.head_dim
        kept = 2 * tree.rows if tree else 0  # its rows lie behind as many positions as it has levels
        self.cache = KVCache.allocate(*sizes, self.dtype, device, kv.target, kept)
        on_gpu = weights.embed.is_cuda
        model = (
            LlamaTarget(weights, t, self.table, self.cache, device, GPU_PREFILL_ROWS if on_gpu else PREFILL_ROWS)
            if isinstance(weights, TargetWeights)
            else GptOssTarget(weights, t, self.table, self.cache, device)
        )
        super().__init__(
            *(model, drafts),
            max_batch=max_batch,
            max_positions=max_positions,
            playback=playback,
            tree=tree,
            lengths=lengths,
            sampler=sampler,
            draft_kv=kv.draft,
            partial=partial,
            spare_rows=spare_rows,
        )

    @property
    def tw(self) -> TargetWeights:
        """The packed weights of a dense target."""
        assert isinstance(self.model, LlamaTarget)
        return self.model.weights

    @torch.inference_mode()
    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...]:
        """As `protocols.ShowsLogits.logits`."""
        watch = LogitWatch(positions, len(self.prompts))
        self._decode(role, Budget(new_tokens=positions[-1] + 1), (), watch)
        return watch.shown()

    def _greedy(self, stream: Tensor) -> Tensor:
        """As the loop's. Where logits are not finite, the prompts are forgotten, and the caches with them: NaN that
        stays behind the next prompts would reach their tokens.
        """
        try:
            return super()._greedy(stream)
        except BackendError:
            self.prompts = []
            self.cache.clear()
            if isinstance(self.drafter, EagleDrafter):
                self.drafter.cache.clear()
            raise

    @torch.inference_mode()
    def log_probabilities(self, role: Role, budget: Budget) -> tuple[tuple[tuple[int, float], ...], ...]:
        """Rewind every slot to the end of its prompt and decode under `role`. Returns, per slot, every token after the
        prefill token with ln of the model's own probability of it, before temperature, filters and penalties.
        """
        watch = LogProbabilities(len(self.prompts))
        decoded = self._decode(role, budget, (), watch)
        emitted = (len(tokens) - 1 for tokens in decoded.tokens)
        return tuple(tuple(of_slot[:count]) for of_slot, count in zip(watch.by_slot, emitted, strict=True))

    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...]:
        """As `protocols.DrawsTexts.draw`."""
        return draw_texts(self, role, prompt, tokens, first, count)

    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
        """As `protocols.ShowsDistribution.distribution`."""
        return show_distribution(self, prompt, continuation, least)

    @torch.inference_mode()
    def stages(self, prompt: Sequence[int], rows: int) -> Mapping[str, NDArray[np.float32] | NDArray[np.int64]]:
        """As `protocols.ShowsStages.stages`."""
        return show_stages(self, self.target.geometry.layers, prompt, rows)

    def facts(self) -> EngineFacts:
        tape = self.playback.tape if self.playback else None
        facts = engine_facts(
            self.target, self.drafts, self.dtype, self.device, tape, self.tree, self.lengths, self.kv, self.warnings
        )
        return facts if self.partial is None else with_partial(facts, self.partial, self.max_positions)
