"""Decoding over any target: prefill once, then rewind and decode as often as asked, with or without a draft.

A cycle reads as in the paper. *Draft* a chain of K tokens. *Verify* them in one target pass. *Accept* the longest
prefix on which draft and target agree, plus the target's own next token. *Commit* these tokens. The baseline is the
same loop with K = 0. At a temperature, a `Sampler` draws and accepts in the place of the greedy choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.chains import ChainLengths
from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.playback import Playback
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.trees.growing import Growth
from specgate.backends.eagle3.lib.trees.topology import broken_rows
from specgate.backends.eagle3.lib.weights import Vocabulary
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.drafters import Drafter, StandIn, stand_in
from specgate.backends.eagle3.reference.ops import accept, check_finite, target_argmax
from specgate.backends.eagle3.reference.partial import LooksElsewhere, PartialVerifier
from specgate.backends.eagle3.reference.sampling import SampledDrafter, Sampler
from specgate.backends.eagle3.reference.scoring import ScoredText
from specgate.backends.eagle3.reference.state import Recorder, Slots, StopRule, as_accepted, commit
from specgate.backends.eagle3.reference.tree import TreePlan, VerifiesTrees, packed_masks, verify_tree
from specgate.contract import Budget, Role, Score, TopTokens
from specgate.contract.protocols import Decoded, Text, block_marker
from specgate.contract.samples.counters import ENDED_EARLY
from specgate.errors import BackendError

PREFILL_CHUNK: Final = 1024
"""Rows of a prompt that a draft takes in at a time."""
LAST: Final = (-1,)


class Target(Vocabulary, Protocol):
    """A target with a KV cache of its own, as the loop needs it. Its vocabulary is in the dtype of the draft."""

    device: str
    """Where tokens and positions have to be."""
    prefill_rows: int
    """How many rows of a prompt to run in one pass."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Tokens that end a request."""

    def forward(
        self,
        slots: slice,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run `tokens` [B, T] at `positions` [B, T] of the cached `slots`, B of them, and write the cache.

        Returns what `logits` takes, for `rows` of each slot [B, len(rows), …] or all of them, and the auxiliary hidden
        states of all rows [B, T, len(boundaries)·H], or None without boundaries.
        """

    def logits(self, stream: Tensor) -> Tensor:
        """Float32 logits [..., V] of what `forward` returned."""


@runtime_checkable
class RoutesTokens(Protocol):
    """A target with a mixture of experts that says where it sent its tokens."""

    experts: int
    """Experts of each layer."""
    chosen: Tensor
    """The experts [L, B, T, k] that the last pass sent its rows to."""


class Verified(NamedTuple):
    """Tokens that a cycle has verified.

    `accepted` [B]: draft tokens. `tokens` [B, K + 1]: the first `accepted + 1` are to be emitted. `features` [B, K + 1,
    n·H]: the target's auxiliary hidden states that precede each; None without boundaries. `drafted` [B]: draft tokens
    that were proposed; None where these are K.
    """

    accepted: Tensor
    tokens: Tensor
    features: Tensor | None
    drafted: Tensor | None = None


class Watch(Protocol):
    """Observer of the tokens that steps commit, such as `eagle3.logit_watch.LogitWatch`."""

    @property
    def complete(self) -> bool:
        """True once it has seen all it waits for."""

    def see(self, slot: int, first: int, tokens: Sequence[int], logits: Tensor) -> None:
        """A step is about to commit `tokens`, the first of them at index `first`, from `logits` [≥ len(tokens), V]."""


class SpeculativeLoop:
    """EAGLE-3 over `model`, greedily, or drawing tokens with `sampler`.

    `drafts` is the pair's draft, a stand-in for it, or None. `max_positions` must cover the longest prompt, the tokens
    that a block adds, and K + 1 draft rows. `playback` forces accept counts. With `tree` the pair's draft proposes a
    tree in place of a chain, and `model` is one that `VerifiesTrees`, with room for its rows behind `max_positions`.
    `lengths`: where chains end before K tokens. `draft_kv`: the format of the draft's cache. `partial`: how chains are
    verified over a part of the cache, by a `model` that `LooksElsewhere` and has room for `spare_rows` more, as has the
    draft.
    """

    def __init__(
        self,
        model: Target,
        drafts: DraftCheckpoint | StandIn | None,
        *,
        max_batch: int,
        max_positions: int,
        playback: Playback | None = None,
        tree: TreePlan | None = None,
        lengths: ChainLengths | None = None,
        sampler: Sampler | None = None,
        draft_kv: KvMode | None = None,
        partial: PartialPlan | None = None,
        spare_rows: int = 0,
    ) -> None:
        self.model, self.device = model, model.device
        self.drafts, self.playback, self.tree, self.lengths = drafts, playback, tree, lengths
        self.sampler, self.draft_kv, self.partial, self.spare_rows = sampler, draft_kv, partial, spare_rows
        self.max_batch, self.max_positions = max_batch, max_positions
        self.drafter = self._drafter(drafts)
        self.prompts: list[Tensor] = []
        self.drafting = False
        self._last: tuple[Role, Slots, StopRule] | None = None
        self._scored: ScoredText | None = None
        self._logits = torch.empty(0)

    def _drafter(self, drafts: DraftCheckpoint | StandIn | None) -> Drafter | None:
        if drafts is None:
            return None
        if not isinstance(drafts, DraftCheckpoint):
            return stand_in(drafts, len(self.model.embed), self.device, self._step)
        if self.sampler and self.tree is None:
            sizes = {"max_batch": self.max_batch, "max_positions": self.max_positions}
            return SampledDrafter(drafts, self.model, self.sampler, **sizes, device=self.device, kv=self.draft_kv)
        return EagleDrafter(
            drafts,
            self.model,
            max_batch=self.max_batch,
            max_positions=self.max_positions + self.spare_rows,
            device=self.device,
            tree_rows=self.tree.draft_rows if self.tree else 0,
            kv=self.draft_kv,
        )

    # ── prefill ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Fill the caches slot by slot, in chunks; return nanoseconds.

        Raises BackendError where a prompt does not fit, or where a draft is asked for and there is none.
        """
        self._check_fit(prompts, draft)
        if self.playback:
            self.playback.meet(prompts)
        recorder = Recorder(self.device)
        self.drafting, self._last = draft, None
        self.prompts = [torch.tensor(list(p), dtype=torch.long, device=self.device) for p in prompts]
        last = [self._prefill_slot(i, p) for i, p in enumerate(self.prompts)]
        streams, features = zip(*last, strict=True)
        self.first_token = self._greedy(torch.cat(streams))[:, 0]
        self.last_rows = self._logits[:, 0], features
        if self.sampler:
            self.sampler.begin(prompts)
            self.first_token = self.sampler.first(self._logits[:, 0])
        self.length = torch.tensor([len(p) for p in self.prompts], device=self.device)
        if draft and self.drafter:
            self.drafter.prefilled(features, self.first_token, self.length)
        recorder.phase("prefill")
        return recorder.elapsed_ns

    def _check_fit(self, prompts: Sequence[Sequence[int]], draft: bool) -> None:
        if draft and self.drafter is None:
            raise BackendError("prefill with a draft, but the engine was opened without one")
        if not 0 < len(prompts) <= self.max_batch:
            raise BackendError(f"{len(prompts)} prompts for an engine of {self.max_batch} slots")
        longest, shortest = max(map(len, prompts)), min(map(len, prompts))
        if shortest < 1 or longest >= self.max_positions:
            raise BackendError(
                f"prompt lengths {shortest}..{longest} outside 1..{self.max_positions - 1} cached positions"
            )

    def _prefill_slot(self, slot: int, prompt: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run one prompt; return what `logits` takes of its last row [1, 1, …], and that row's features [1, 1, n·H]."""
        drafter = self.drafter if self.drafting else None
        boundaries = drafter.boundaries if drafter else ()
        for start in range(0, len(prompt), self.model.prefill_rows):
            tokens = prompt[None, start : start + self.model.prefill_rows]
            positions = torch.arange(start, start + tokens.shape[1], device=self.device)[None]
            stream, features = self.model.forward(slice(slot, slot + 1), tokens, positions, boundaries, LAST)
            if drafter:
                following = prompt[None, start + 1 : start + 1 + tokens.shape[1]]
                prefill_draft(drafter, slot, following, features, positions)
        return stream, None if features is None else features[:, -1:]

    # ── decode ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Rewind to the prompts and decode greedily until every slot has finished or `budget.steps` have run.

        Raises BackendError where there was no prefill, or none with the draft, or where the positions do not suffice.
        """
        return self._decode(role, budget, stop_token_ids)

    def _decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int], watch: Watch | None = None) -> Decoded:
        self._last = None
        k, capacity = role.k, budget.longest(role.k) + 1
        self._check_room(role, capacity)
        limit = budget.new_tokens or capacity + 1  # a budget of steps ends no slot for its length
        rule = StopRule.make(self.model.eos_token_ids, stop_token_ids, limit, budget.ignore_eos, self.device)
        slots = Slots.begin(self.length, self.first_token, capacity, rule)
        drafter = self.drafter if k else None
        if drafter:
            drafter.rewind()
        forced = None
        if self.playback and k:
            forced = self.playback.accepted(k, budget.longest(0), len(self.prompts), self.device)
        growth = self.tree.growth(k, self.device) if self.tree and drafter else None
        # Experts are counted by rows, each of which is a token that may follow. A tree has more.
        experts = self.model.experts if isinstance(self.model, RoutesTokens) and growth is None else 0
        recorder = Recorder(self.device, k, experts)
        verifier = self._verifier(recorder) if drafter else None
        with block_marker():
            self._steps(slots, rule, budget, drafter, forced, recorder, watch, growth, verifier)
        self._last = (role, slots, rule)
        return recorder.decoded(slots)

    @torch.inference_mode()
    def extend(self, steps: int) -> Text:
        """As `protocols.ExtendsText.extend`. Raises BackendError where no `decode` came before, or none without a
        draft.
        """
        if self._last is None or self._last[0].speculative:
            raise BackendError("extend: a plain decode has to come before")
        role, slots, rule = self._last
        capacity = slots.out.shape[1] + steps
        self._check_room(role, capacity)
        longer = replace(slots, out=F.pad(slots.out, (0, steps)))
        self._steps(longer, replace(rule, limit=capacity + 1), Budget(steps=steps), None, None, Recorder(self.device))
        self._last = None
        return Text(longer.tokens(), longer.finish_reasons())

    def _steps(
        self,
        slots: Slots,
        rule: StopRule,
        budget: Budget,
        drafter: Drafter | None,
        forced: Tensor | None,
        recorder: Recorder,
        watch: Watch | None = None,
        growth: Growth | None = None,
        verifier: PartialVerifier | None = None,
    ) -> None:
        """Run cycles until every slot has finished, the budget is spent, or `watch` has seen all it waits for."""
        while slots.active.any() and recorder.steps != budget.steps and not (watch and watch.complete):
            active, start = slots.active, slots.length
            if growth is not None:
                accepted, tokens, features, drafted = self._tree_cycle(slots, drafter, growth, recorder)
            elif verifier is not None:
                accepted, tokens, features, drafted = self._partial_cycle(slots, drafter, verifier, recorder)
            else:
                accepted, tokens, features, drafted = self._chain_cycle(slots, drafter, forced, recorder)
            recorder.phase("accept")
            if watch:
                self._watch(watch, slots, tokens, accepted)
            emitted = commit(slots, tokens, accepted, rule)
            if drafter:
                drafter.verified(features, tokens, emitted, start)
            if recorder.experts and isinstance(self.model, RoutesTokens):
                recorder.experts.see(self.model.chosen, active)
            recorder.step(active, accepted, drafted)

    def _chain_cycle(
        self, slots: Slots, drafter: Drafter | None, forced: Tensor | None, recorder: Recorder
    ) -> Verified:
        """Draft a chain, verify it, and accept its longest prefix; without a drafter, decode one token."""
        drafts, drafted = self._chain(slots, drafter, recorder.k)
        recorder.phase("draft")
        tokens, features = self._verify(slots, drafts, drafter.boundaries if drafter else ())
        recorder.phase("verify")
        if drafted is not None:
            recorder.counters[ENDED_EARLY] += int(((drafted < recorder.k) & slots.active).sum())
        if self.sampler:
            proposed = drafter.proposed if isinstance(drafter, SampledDrafter) else None
            tokens, accepted = self.sampler.verify(self._logits, drafts, slots, proposed)
        else:
            accepted = accept(drafts, tokens)
        if forced is None:
            return Verified(accepted, tokens, features, drafted)
        accepted = forced[recorder.steps]
        return Verified(accepted, as_accepted(drafts, tokens, accepted), features)

    def _chain(self, slots: Slots, drafter: Drafter | None, k: int) -> tuple[Tensor, Tensor | None]:
        """(draft tokens [B, ≤ k], how many of them are each slot's [B]; None where all have `k`)."""
        if drafter is None:
            return slots.last_token.new_empty(len(slots.last_token), 0), None
        if self.lengths is None:
            return drafter.chain(slots, k), None
        most = self.lengths.most(k, int(slots.active.sum()))
        if self.lengths.confidence is not None and isinstance(drafter, EagleDrafter):
            return drafter.sure_chain(slots, most, self.lengths.confidence)
        return drafter.chain(slots, most), torch.full_like(slots.last_token, most)

    def _tree_cycle(self, slots: Slots, drafter: Drafter | None, growth: Growth, recorder: Recorder) -> Verified:
        """Draft a tree, verify it, and accept its longest path."""
        assert isinstance(drafter, EagleDrafter) and isinstance(self.model, VerifiesTrees)
        tree = drafter.tree(growth)
        recorder.phase("draft")
        masks = packed_masks(tree.parents, growth.levels)
        broken = int(broken_rows(masks, tree.parents).sum())
        recorder.counters["mask_checked_steps"] += 1
        recorder.counters["mask_integrity_failures"] += broken
        recorder.counters["tree_tokens"] += 0 if broken else growth.nodes * int(slots.active.sum())
        if broken:  # nothing can be verified through broken masks: decode one token instead
            nothing = tree.tokens[:, :0]
            tokens, features = self._verify(slots, nothing, drafter.boundaries)
            recorder.phase("verify")
            if self.sampler:
                tokens, _ = self.sampler.verify(self._logits, nothing, slots, None)
            return Verified(accept(nothing, tokens), tokens, features, torch.zeros_like(slots.last_token))
        result = verify_tree(
            *(self.model, tree, masks, slots.last_token, slots.length, growth.levels, drafter.boundaries),
            choose=partial(self.sampler.of_tree, slots=slots) if self.sampler else None,
        )
        self._logits = result.logits
        recorder.phase("verify")
        return Verified(result.accepted, result.tokens, result.features)

    def _verifier(self, recorder: Recorder) -> PartialVerifier | None:
        if self.partial is None:
            return None
        assert isinstance(self.model, LooksElsewhere)
        return PartialVerifier(self.partial, self.model, self.length, recorder)

    def _partial_cycle(
        self, slots: Slots, drafter: Drafter | None, verifier: PartialVerifier, recorder: Recorder
    ) -> Verified:
        """Draft and verify as SpecPV does."""
        assert drafter is not None
        result = verifier.cycle(slots, drafter, recorder.k)
        self._logits = result.logits
        return Verified(result.accepted, result.tokens, result.features)

    def _watch(self, watch: Watch, slots: Slots, tokens: Tensor, accepted: Tensor) -> None:
        """Show `watch` what a step is about to commit."""
        counts = zip(slots.active.tolist(), slots.emitted.tolist(), accepted.tolist(), strict=True)
        for slot, (active, emitted, count) in enumerate(counts):
            if active:
                watch.see(slot, emitted, tokens[slot, : count + 1].tolist(), self._logits[slot])

    def _check_room(self, role: Role, capacity: int) -> None:
        if not self.prompts:
            raise BackendError("decode before prefill")
        if role.speculative and not self.drafting:
            raise BackendError(f"{role} asked for, but the prefill was made without the draft")
        longest = max(map(len, self.prompts))
        if longest + capacity + role.k + 1 > self.max_positions:
            raise BackendError(
                f"{role}: a prompt of {longest} and {capacity + role.k + 1} more exceed {self.max_positions} positions"
            )

    def _verify(self, slots: Slots, drafts: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """One target pass over the last token and the draft tokens.

        Returns the target's greedy token after each of them [B, K + 1], and the features of these rows.
        """
        tokens = torch.cat((slots.last_token[:, None], drafts), dim=1)
        positions = slots.length[:, None] + torch.arange(tokens.shape[1], device=self.device)
        return self._run(tokens.clamp(min=0), positions, boundaries)

    def _step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self._run(tokens, positions, ())[0]

    def _run(self, tokens: Tensor, positions: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        stream, features = self.model.forward(slice(0, len(tokens)), tokens, positions, boundaries)
        return self._greedy(stream), features

    def _greedy(self, stream: Tensor) -> Tensor:
        """The target's greedy token of each row. Raises BackendError where logits are not finite."""
        self._logits = self.model.logits(stream)
        check_finite(self._logits, "the target's logits")
        return target_argmax(self._logits)

    # ── forensics ────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float]:
        """The two largest float32 logits after prompt[slot] + continuation, with these tokens as input, in one pass; of
        an engine that samples, the two largest scores of its draw.
        """
        logits = self._after(slot, continuation)
        if self.sampler:
            logits = self.sampler.drawn_scores(logits, slot, continuation)
        first, second = logits.topk(2).values.tolist()
        return first, second

    def _after(self, slot: int, continuation: Sequence[int]) -> Tensor:
        """The logits [V] of the token that follows prompt[slot] + continuation, which are in the cache then."""
        self._last = None
        prompt = self.prompts[slot]
        tokens = torch.cat((prompt[-1:], torch.tensor(list(continuation), dtype=torch.long, device=self.device)))[None]
        positions = torch.arange(len(prompt) - 1, len(prompt) - 1 + tokens.shape[1], device=self.device)[None]
        stream, _ = self.model.forward(slice(slot, slot + 1), tokens, positions, (), LAST)
        return self.model.logits(stream)[0, 0]

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]) -> tuple[Score, ...]:
        """As `protocols.ScoresTokens.score`. Raises BackendError where prompt and continuation do not fit."""
        return self._other_text().score(prompt, continuation, positions)

    @torch.inference_mode()
    def token_logits(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        places: Sequence[tuple[int, Sequence[int]]],
        count: int,
    ) -> tuple[TopTokens, ...]:
        """As `protocols.ShowsTokenLogits.token_logits`. Raises BackendError for a text that does not fit."""
        return self._other_text().token_logits(prompt, continuation, places, count)

    def _other_text(self) -> ScoredText:
        """Give the caches to a text of another engine."""
        if self.prompts or self._scored is None:
            drafter = self.drafter if isinstance(self.drafter, EagleDrafter) else None
            self._scored = ScoredText(self.model, drafter, self.sampler, self.max_positions)
        self.prompts, self._last = [], None
        return self._scored

    @torch.inference_mode()
    def drafted(self, starts: Sequence[int], k: int) -> tuple[int, ...]:
        """As `protocols.DraftsAlong.drafted`."""
        if self.prompts or self._scored is None:
            raise BackendError("drafts along a text: no text was scored before")
        return self._scored.drafted(starts, k)

    def close(self) -> None:
        """Nothing to release: memory is freed when the process ends."""


def prefill_draft(drafter: Drafter, slot: int, following: Tensor, features: Tensor | None, positions: Tensor) -> None:
    """Have `drafter` take in rows of a prompt, some at a time: its attention has a mask of rows by positions."""
    for start in range(0, positions.shape[1], PREFILL_CHUNK):
        rows = slice(start, start + PREFILL_CHUNK)
        drafter.prefill(slot, following[:, rows], None if features is None else features[:, rows], positions[:, rows])
