"""Evidence of an engine beside its tokens: logits, draws and their laws, and the stages of both passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule, rows_of_slots, text_of
from specgate.backends.eagle3.cupy.engine.decoding import most_steps
from specgate.backends.eagle3.cupy.engine.partial import kinds_of
from specgate.backends.eagle3.cupy.engine.prefilled import first_tokens
from specgate.backends.eagle3.cupy.engine.ranks.rank import whole_logits
from specgate.backends.eagle3.cupy.engine.sampled import law_of, put_requests, top2_of_draw
from specgate.backends.eagle3.cupy.engine.stages import StagePasses, first_shown
from specgate.backends.eagle3.cupy.engine.tiles import TileCountingEngine
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.step.partial import FULL, Kind
from specgate.backends.eagle3.cupy.step.spans import before_writing, with_trees
from specgate.backends.eagle3.lib.logit_watch import LogitWatch
from specgate.contract import Budget, Role, Sampling
from specgate.contract.draws import TokenLaw
from specgate.contract.samples.spans import ShownSpans, StepSpans
from specgate.contract.traces import TunedProduct
from specgate.errors import BackendError


class ForensicEngine(TileCountingEngine):
    """Whoever looks runs steps of their own: a decode run cannot be extended after that."""

    @torch.inference_mode()
    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...]:
        """As `protocols.ShowsLogits.logits`: step by step, with the graph of a single step, reading after each.

        Where chains are verified in part, a run that is too short for a partial verification has none that is full, but
        plain ones, which round differently: near that length these need not be the logits of a longer run.
        """
        limit = positions[-1] + 1  # a slot ends there, so a fast one needs no more room than a slow one
        self._check_room(Role(0) if self.draft_error is not None else role, Budget(new_tokens=limit))
        k = 0 if self.draft_error is not None else self._drafts(role)
        self._last_role = None
        count, slots = len(self.first.of_prompts.prompts), self.b.slots
        watch = LogitWatch(positions, count)
        path = self.b.tree.path if self.b.tree is not None and self.sizes.tree_of(k) else None
        with self.stream.current():
            kinds = kinds_of(self.sizes, k, self._prompt_lengths, limit)  # every step emits a token at least
            launch = {kind: self.step(k, count, (kind,)) for kind in dict.fromkeys(kinds)}
            ahead = iter(kinds)
            self._rewind(StopRule((), (), limit), k, limit)
            while not watch.complete:
                if not (running := slots.active[: int(slots.active_count)].tolist()):
                    break  # a position that no step reaches: `shown` says so
                before, kind = slots.emitted[:count].tolist(), next(ahead)
                again = self._rows_run_again(kind)
                launch[kind]()
                self._wait()
                self._check(self._faults())
                emitted = slots.emitted[:count].tolist()
                of_slot = self.sizes.rows_in(k, full=kind == FULL)
                where = path if again is None else again[:, None] + torch.arange(k + 1, device=again.device)
                rows = rows_of_slots(whole_logits(self.ranks, len(running) * of_slot), running, of_slot, where)
                for slot, own in rows.items():
                    first, end = before[slot], emitted[slot]
                    watch.see(slot, first, slots.out[slot, first:end].tolist(), own)
        return watch.shown()

    @torch.inference_mode()
    def spans(self, role: Role, budget: Budget, steps: Sequence[int]) -> ShownSpans:
        """As `protocols.ShowsSpans.spans`: step by step, with the graph of a single step. Before each of `steps`, its
        blocks are reserved on their own, which its graph then finds done.
        """
        self._check_room(Role(0) if self.draft_error is not None else role, budget)
        self._last_role = None
        k = 0 if self.draft_error is not None else self._drafts(role)
        count, slots, kept = len(self.first.of_prompts.prompts), self.b.slots, list[StepSpans]()
        with self.stream.current():
            kinds = kinds_of(self.sizes, k, self._prompt_lengths, most_steps(budget))[: steps[-1] + 1]
            launch = {kind: self.step(k, count, (kind,)) for kind in dict.fromkeys(kinds)}
            self._rewind(self._rule(budget, ()), k, most_steps(budget))
            for number, kind in enumerate(kinds):
                drawn, cycle = number in steps, self._cycle(k, count, kind=kind)
                if drawn:
                    for rank in self.ranks:
                        with rank.stream.current():
                            self._cycle(k, count, rank, kind).reserve_blocks(rank.b)
                    self._wait()
                    if not int(slots.active_count):
                        break
                    kept.append(before_writing(cycle, self.b))
                launch[kind]()
                if drawn:
                    self._wait()
                    kept[-1] = with_trees(kept[-1], cycle, self.b)
            self._wait()
            tokens = text_of(slots, count).tokens
        self._check(self._faults())
        return ShownSpans(BLOCK, self.sizes.blocks, tokens, tuple(kept))

    def products(self, role: Role, budget: Budget) -> tuple[TunedProduct, ...]:
        """As `protocols.StatesProducts.products`."""
        k = 0 if self.draft_error is not None else self._drafts(role)
        count = len(self.first.of_prompts.prompts)
        kinds = dict.fromkeys(kinds_of(self.sizes, k, self._prompt_lengths, most_steps(budget)))
        gemms = [self._cycle(k, count, kind=kind).gemms for kind in kinds]
        stated = (product for of in gemms for product in of.products(torch.cuda.current_device()))
        return tuple(dict.fromkeys(stated))

    def _rows_run_again(self, kind: Kind) -> Tensor | None:
        """Return how many rows [S] of the next step come before the newest token's; None if it runs none again."""
        if kind != FULL or self.b.partial is None:
            return None
        return self.b.slots.length - self.b.partial.verified

    @torch.inference_mode()
    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float]:
        """The two largest logits after prompt[slot] + continuation, by one plain decode step per token of it; of an
        engine that samples, the two largest scores of its draw.
        """
        if self.prefilled is None:
            raise BackendError("top2 before prefill")
        if self.sizes.sampling is not None:
            prompt = self.prefilled.prompts[slot]
            with self.stream.current():
                return top2_of_draw(self._logits_after(slot, continuation), self.sizes.sampling, prompt, continuation)
        if not continuation:
            return self.prefilled.first.top2[slot]
        with self.stream.current():
            first, second = self._logits_after(slot, continuation).topk(2).values.tolist()
        return first, second

    def _logits_after(self, slot: int, continuation: Sequence[int]) -> Tensor:
        """The logits [V] of the token that follows prompt[slot] + continuation. They are complete, so any stream may
        read them, and overwritten by what runs next.

        After no continuation at all, of an engine that samples alone.
        """
        prefilled, self._last_role = self.prefilled, None
        assert prefilled is not None
        if not continuation:
            assert prefilled.first.logits is not None
            return prefilled.first.logits[slot]
        count = len(prefilled.prompts)
        for rank in self.ranks:
            with rank.stream.current():
                rank.of_prompts.rewind(rank.b, StopRule((), (), self.sizes.positions))
                rank.b.slots.active[0], rank.b.slots.active_count[0] = slot, 1
        for position, token in enumerate(continuation, len(prefilled.prompts[slot])):
            for rank in self.ranks:
                cycle, slots = self._cycle(0, count, rank), rank.b.slots
                with rank.stream.current():
                    slots.length[slot], slots.last_token[slot] = position, token
                    slots.counts[slot], slots.pending[slot, 0] = 1, token
                    cycle.reserve(rank.b.kv, slots)
                    cycle.verify(rank.b, slots.rows(count, 1))
            for rank in self.ranks:
                with rank.stream.current():
                    _, fault = self._cycle(0, count, rank).verify.choices(rank.b, 1)
                self._check(fault)
        with self.stream.current():
            logits = whole_logits(self.ranks, 1)[0]
            self.stream.wait()
        return logits

    @torch.inference_mode()
    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...]:
        """As `protocols.DrawsTexts.draw`: every slot gets the prompt, which is prefilled once.

        Raises BackendError where the engine decodes greedily.
        """
        self._sampling()
        slots, drawn_tokens = self.sizes.slots, list[tuple[int, ...]]()
        self.prefill([prompt] * slots, draft=role.speculative)
        prefilled, sampling = self.prefilled, self.b.sampling
        assert prefilled is not None and sampling is not None
        verify = self._cycle(0, slots).verify
        try:
            for start in range(first, first + count, slots):
                with self.stream.current():
                    put_requests(sampling, range(start, start + slots))
                    chosen, fault = first_tokens(verify, self.b, prefilled.last, [len(prompt)] * slots)
                self._check(fault)
                self.first.prefilled = replace(prefilled, first=chosen)
                drawn_tokens += self.decode(role, Budget(new_tokens=tokens), ()).tokens
        finally:
            self._forget_prompts()  # its requests are not those of its prompts
        return tuple(drawn_tokens[:count])

    @torch.inference_mode()
    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
        """As `protocols.ShowsDistribution.distribution`. Raises BackendError where the engine decodes greedily."""
        sampling = self._sampling()
        self.prefill([prompt], draft=False)
        with self.stream.current():
            return law_of(self._logits_after(0, continuation), sampling, continuation, least)

    def _sampling(self) -> Sampling:
        if self.sizes.sampling is None:
            raise BackendError("the engine was opened to decode greedily: it draws nothing")
        return self.sizes.sampling

    @torch.inference_mode()
    def stages(self, prompt: Sequence[int], rows: int) -> Mapping[str, NDArray[np.float32] | NDArray[np.int64]]:
        """As `protocols.ShowsStages.stages`: the last rows token by token, after a prefill of what is before them.

        Raises BackendError for a prompt of one token, which is prefilled, for one that does not fit, and where several
        GPUs share the target, of which each has a part of most stages.
        """
        if len(self.ranks) > 1:
            raise BackendError(f"stages are shown with tp=1 only, not with tp={len(self.ranks)}")
        if not 1 < len(prompt) < self.sizes.positions:
            raise BackendError(
                f"stages of {len(prompt)} tokens: this engine shows them of 2 … {self.sizes.positions - 1} tokens"
            )
        start = first_shown(len(prompt), rows)
        self.prefill([prompt[:start]], draft=self.draft is not None)
        prefilled = self.prefilled
        self._forget_prompts()
        assert prefilled is not None
        passes = StagePasses(self.target, self.draft, self.sizes, self.tuned)
        with self.stream.current():
            prefilled.rewind(self.b, StopRule((), (), self.sizes.positions))
            fault = passes.run(self.b, prompt, start)
        self._check(fault)
        return passes.shown(rows)
