"""`CupyEngine`: prefill once, then rewind and decode as often as asked. Every step runs within a replayed graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.api import Decoded, Text
from specgate.backends.cupy_eagle3.engine import retile
from specgate.backends.cupy_eagle3.engine.decode_run import IdleWatch, StopRule, read, rows_of_slots, run, text_of
from specgate.backends.cupy_eagle3.engine.graph import STEPS_PER_GRAPH, Graph, GraphGeometry, graph_sizes
from specgate.backends.cupy_eagle3.engine.prefill import Way
from specgate.backends.cupy_eagle3.engine.prefilled import Prefilled, first_tokens, prefill_prompts
from specgate.backends.cupy_eagle3.engine.sampled import law_of, name_requests, put_requests, top2_of_draw
from specgate.backends.cupy_eagle3.engine.stages import StagePasses, first_shown
from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.cupy_eagle3.kernels.compiling import compiler
from specgate.backends.cupy_eagle3.kernels.state.kv_blocks import KVBlocks
from specgate.backends.cupy_eagle3.kernels.state.slots import Fault
from specgate.backends.cupy_eagle3.memory.buffers import Buffers
from specgate.backends.cupy_eagle3.memory.cache_layout import assign_blocks
from specgate.backends.cupy_eagle3.memory.model import Draft, Target
from specgate.backends.cupy_eagle3.memory.sizes import DraftTree, Sizes
from specgate.backends.cupy_eagle3.step.cycle import Cycle
from specgate.backends.cupy_eagle3.stream import Stream
from specgate.backends.cupy_eagle3.tuned.lookup import NOTHING_TUNED, Tuned
from specgate.backends.cupy_eagle3.tuned.shape_log import ShapeLog
from specgate.core import Budget, EngineFacts, Role, Sampling
from specgate.core.draws import TokenLaw
from specgate.core.fmha import AttentionConfig, TileStatistics
from specgate.eagle3.logit_watch import LogitWatch
from specgate.eagle3.memory import refusing_overflow
from specgate.errors import BackendError

FAULTS: Mapping[Fault, str] = {
    Fault.TARGET_NOT_FINITE: "the target's logits are not finite: the checkpoint holds NaN or infinity, or overflows",
    Fault.DRAFT_NOT_FINITE: "the draft's logits are not finite: the checkpoint holds NaN or infinity, or overflows",
    Fault.KV_INTEGRITY: "a step was about to write a cache block that is not its slot's",
    Fault.KV_EXHAUSTED: "the cache ran out of blocks or positions in the middle of a stretch",
    Fault.MASK_INTEGRITY: "the attention masks of a step were not those of its tree",
}


class CupyEngine:
    """EAGLE-3 on one GPU.

    Once the draft has proved unusable, a decode run of a spec role ends with BackendError. With `plain_on_draft_error`
    such roles decode without drafts instead, and their counters say so. `shape_log` gets every product before it runs.
    `way`: how prompts are prefilled. With `sizes.sampling` tokens are drawn, wherever greedy ones are spoken of.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft | None,
        sizes: Sizes,
        buffers: Buffers,
        facts: EngineFacts,
        *,
        graphs: bool = True,
        plain_on_draft_error: bool = False,
        tuned: Tuned = NOTHING_TUNED,
        shape_log: ShapeLog | None = None,
        way: Way | None = None,
    ) -> None:
        self.target, self.draft, self.sizes, self.b, self._facts = target, draft, sizes, buffers, facts
        self.use_graphs, self.plain_on_draft_error = graphs, plain_on_draft_error
        self.tuned, self.shape_log = tuned, shape_log
        self.way = way or Way.on(buffers.slots.length.device)
        self.draft_error = facts.draft_error
        self.stream = Stream()
        self._idle = IdleWatch(self.stream.torch)
        self.cycles: dict[tuple[int, int], Cycle] = {}
        self.graphs: dict[GraphGeometry, Graph] = {}
        self.prefilled: Prefilled | None = None
        self._last_role: Role | None = None
        """The role of the decode run whose state is on the device; None where something else has used it since."""

    # ── prefill ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Fill the caches prompt by prompt; return nanoseconds. Raises BackendError where a prompt does not fit."""
        self._check_fit(prompts, draft)
        self.prefilled = self._last_role = None
        verify = self._cycle(0, len(prompts)).verify
        with self.stream.current(), refusing_overflow("prefill"):
            self.way.prepare(self.target, self.draft if draft else None, map(len, prompts))
            if self.b.sampling is not None:
                name_requests(self.b.sampling, prompts)
            self.stream.wait()
            began = time.perf_counter_ns()
            layout = assign_blocks(prompts, self.sizes)
            last = prefill_prompts(self.target, self.draft if draft else None, self.b, prompts, layout, self.way)
            self.b.kv.copy_(layout.kv)
            first, fault = first_tokens(verify, self.b, last, [*map(len, prompts)])
            elapsed = time.perf_counter_ns() - began
            self._check(fault)
            features = [row.features for row in last if row.features is not None]
            # Copies are made on the stream that writes the originals, and reads the copies.
            self.prefilled = Prefilled(
                prompts=tuple(map(tuple, prompts)),
                layout=layout,
                first=first,
                kv=KVBlocks(*(t.clone() for t in self.b.kv.tensors())),
                features=torch.stack(features) if features else None,
                last=tuple(last),
            )
            self.stream.wait()
        return elapsed

    def _check_fit(self, prompts: Sequence[Sequence[int]], draft: bool) -> None:
        if draft and self.draft is None and self.draft_error is None:
            raise BackendError("prefill with a draft, but the engine was opened without one")
        if not 0 < len(prompts) <= self.sizes.slots:
            raise BackendError(f"{len(prompts)} prompts for an engine of {self.sizes.slots} slots")
        longest, shortest = max(map(len, prompts)), min(map(len, prompts))
        if shortest < 1 or longest >= self.sizes.positions:
            raise BackendError(
                f"prompt lengths {shortest}..{longest} outside 1..{self.sizes.positions - 1} cached positions"
            )

    # ── decode ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Rewind to the prompts and decode greedily until every slot has ended or `budget.steps` have run."""
        self._last_role = None
        prefilled = self._check_room(role, budget)
        if role.speculative and self.draft_error is None:
            decoded, fault = self._decode_run(prefilled, role.k, budget, stop_token_ids)
            if fault != Fault.DRAFT_NOT_FINITE or not self.plain_on_draft_error:
                self._check(fault)
                return decoded
            self.draft_error = FAULTS[fault]
        decoded, fault = self._decode_run(prefilled, 0, budget, stop_token_ids)
        self._check(fault)
        self._last_role = role
        return undrafted(decoded) if role.speculative else decoded

    def _decode_run(
        self, prefilled: Prefilled, k: int, budget: Budget, stop_token_ids: Sequence[int]
    ) -> tuple[Decoded, Fault]:
        count = len(prefilled.prompts)
        # Every step emits a token at least, so whole requests need no more steps than tokens after the first.
        steps = budget.steps if budget.steps is not None else budget.longest(0) - 1
        limit = budget.new_tokens or self.sizes.positions  # a budget of steps never ends a slot for its length
        eos, stop = ((), ()) if budget.ignore_eos else (self.target.geometry.eos_token_ids, tuple(stop_token_ids))
        with self.stream.current():
            graphs = graph_sizes(steps)
            launch = {n: self.step(k, count, n) for n in set(graphs)}
            prefilled.rewind(self.b, StopRule(eos, stop, limit))
            # What the first step reserves, by itself. Seen on H200s, and not understood: where a graph follows sixteen
            # copies or fills (not six), and no kernel of ours was launched since, its steps are slower, and so are all
            # after it.
            self._cycle(k, count).reserve(self.b.kv, self.b.slots)
            self.stream.wait()
            watch = partial(self._idle.idle_after, active_count=self.b.slots.active_count)
            looks = graphs.count(STEPS_PER_GRAPH) if budget.steps is None else 0
            elapsed_ns = run([launch[n] for n in graphs], self.stream.torch, watch, looks)
            graphs = graphs[: len(elapsed_ns)]
            mixture = self.b.target.layer.mixture
            decoded, fault = read(self.b.slots, count, k, graphs, elapsed_ns, mixture.touched if mixture else None)
        # Every step checks the blocks that it may write; a violation stops it.
        broken = int(bool(fault & Fault.KV_INTEGRITY))
        checked = {"kv_checked_steps": len(decoded.step_ns), "kv_integrity_failures": broken}
        reused = {"cache_hit_tokens": prefilled.layout.reused_positions}
        found = self._cycle(k, count).gemms.counters
        of_tree = tree_counters(self.sizes.tree_of(k), decoded, fault)
        return replace(decoded, counters={**decoded.counters, **checked, **reused, **found, **of_tree}), fault

    @torch.inference_mode()
    def extend(self, steps: int) -> Text:
        """As `api.ExtendsText.extend`: the state of the last decode run is still on the device.

        Raises BackendError where something else has used it since, or the steps do not fit.
        """
        if self.prefilled is None or self._last_role is None or self._last_role.speculative:
            raise BackendError("extend: a plain decode has to come before")
        count, slots = len(self.prefilled.prompts), self.b.slots
        with self.stream.current():
            more = steps + 2
            if int(slots.length[:count].max()) + more > self.sizes.positions:
                raise BackendError(f"extend: {steps} more steps exceed {self.sizes.positions} cached positions")
            graphs = graph_sizes(steps)
            # Captured before the first of them runs. A capture clears the list of active slots, so it is put back.
            listed, active = slots.active.clone(), slots.active_count.clone()
            launch = {n: self.step(0, count, n) for n in set(graphs)}
            slots.active.copy_(listed)
            slots.active_count.copy_(active)
            self.stream.wait()
            run([launch[n] for n in graphs], self.stream.torch)
            found, fault = text_of(slots, count), Fault(int(slots.fault))
        self._last_role = None
        self._check(fault)
        return found

    @torch.inference_mode()
    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...]:
        """As `api.ShowsLogits.logits`: step by step, with the graph of a single step, reading after each."""
        k = 0 if self.draft_error is not None else role.k
        limit = positions[-1] + 1  # a slot ends there, so a fast one needs no more room than a slow one
        prefilled = self._check_room(Role(k), Budget(new_tokens=limit))
        self._last_role = None
        count, slots = len(prefilled.prompts), self.b.slots
        watch = LogitWatch(positions, count)
        path = self.b.tree.path if self.b.tree is not None and self.sizes.tree_of(k) else None
        with self.stream.current():
            launch = self.step(k, count)
            prefilled.rewind(self.b, StopRule((), (), limit))
            while not watch.complete:
                if not (running := slots.active[: int(slots.active_count)].tolist()):
                    break  # a position that no step reaches: `shown` says so
                before = slots.emitted[:count].tolist()
                launch()
                self.stream.wait()
                self._check(Fault(int(slots.fault)))
                emitted = slots.emitted[:count].tolist()
                rows = rows_of_slots(self.b.target.layer.logits, running, self.sizes.rows_of(k), path)
                for slot, own in rows.items():
                    first, end = before[slot], emitted[slot]
                    watch.see(slot, first, slots.out[slot, first:end].tolist(), own)
        return watch.shown()

    def step(self, k: int, count: int, steps: int = 1) -> Callable[[], None]:
        """`steps` steps of spec-`k` over `count` slots. Their graph is captured at first use, with no slot active."""
        cycle = self._cycle(k, count)

        def launches() -> None:
            for _ in range(steps):
                cycle(self.b)

        if not self.use_graphs:
            return launches
        geometry = GraphGeometry.of(k, count, self.sizes, self.b, steps)
        if geometry not in self.graphs:
            self.b.slots.active_count.zero_()
            self.graphs[geometry] = Graph(cycle.name, geometry, launches, self.stream)
        graph = self.graphs[geometry]
        return lambda: graph.replay(geometry)

    def _cycle(self, k: int, count: int) -> Cycle:
        if (k, count) not in self.cycles:
            self.cycles[k, count] = cycle = Cycle(self.target, self.draft, self.sizes, count, k, self.tuned)
            if self.shape_log:
                self.shape_log.add(cycle.gemms.shapes)
        return self.cycles[k, count]

    def _check_room(self, role: Role, budget: Budget) -> Prefilled:
        if self.prefilled is None:
            raise BackendError("decode before prefill")
        if role.k > self.sizes.most_drafts:
            raise BackendError(f"{role} asked for, but the engine was opened for spec-{self.sizes.most_drafts}")
        if role.speculative and self.prefilled.features is None and self.draft_error is None:
            raise BackendError(f"{role} asked for, but the prefill was made without the draft")
        longest, more = (
            max(map(len, self.prefilled.prompts)),
            budget.longest(role.k) + self.sizes.reserved_of(role.k) + 1,
        )
        if longest + more > self.sizes.positions:
            raise BackendError(
                f"{role}: a prompt of {longest} and {more} more exceed {self.sizes.positions} cached positions"
            )
        return self.prefilled

    def _check(self, fault: Fault) -> None:
        """Raise BackendError with everything that the kernels have found wrong."""
        if not fault:
            return
        if fault != Fault.DRAFT_NOT_FINITE:
            self.prefilled = None
        if fault & Fault.TARGET_NOT_FINITE:
            # A masked position still enters a product: NaN that stays in the cache would reach the next prompts. On the
            # stream that writes them, since another one would not wait for this.
            with self.stream.current():
                for pages in self.b.pages:
                    pages.k.zero_()
                    pages.v.zero_()
        raise BackendError("; ".join(FAULTS[f] for f in fault), hint="no token of this stretch was kept")

    # ── another tiling of attention ──────────────────────────────────────────────────────────────────────────────────

    def attention_config(self) -> AttentionConfig:
        return asdict(self.sizes.fmha)

    def attention_configs(self) -> Sequence[AttentionConfig]:
        return [asdict(config) for config in FmhaConfig.candidates(self.sizes.heads(self.target.geometry))]

    def prepare_attention(self, configs: Sequence[AttentionConfig], roles: Sequence[Role]) -> Sequence[str | None]:
        """Compile for all slots, in parallel. For each configuration, the compiler's first complaint, or None."""
        specs = []
        for config in configs:
            sizes = replace(self.sizes, fmha=retile.config_of(config))
            cycles = (Cycle(self.target, self.draft, sizes, self.sizes.slots, role.k, self.tuned) for role in roles)
            specs.append([spec for cycle in cycles for spec in retile.attention_specs(cycle)])
        with compiler() as compiling:
            said = compiling.compile(spec for of_config in specs for spec in of_config)
        return [next((said[spec] for spec in of_config if said[spec]), None) for of_config in specs]

    def retile_attention(self, config: AttentionConfig) -> None:
        """Decode with `config` from now on. Steps will be captured anew; the prompts stay in the cache."""
        self._last_role = None
        self.sizes = replace(self.sizes, fmha=retile.config_of(config))
        self.cycles.clear()
        self.graphs.clear()
        self.b = retile.retiled_buffers(
            self.b, self.target.geometry, self.draft.geometry if self.draft else None, self.sizes
        )

    @torch.inference_mode()
    def attention_tiles(self, role: Role) -> TileStatistics:
        prefilled, self._last_role = self._check_room(role, Budget(steps=1)), None
        rule = StopRule((), (), self.sizes.positions)
        cycle = Cycle(self.target, self.draft, self.sizes, len(prefilled.prompts), role.k, self.tuned)
        with self.stream.current():
            return retile.counted_tiles(cycle, self.b, lambda: prefilled.rewind(self.b, rule))

    # ── forensics ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """The logits [V] of the token that follows prompt[slot] + continuation. They are overwritten by what runs next.

        After no continuation at all, of an engine that samples alone.
        """
        prefilled, self._last_role = self.prefilled, None
        assert prefilled is not None
        if not continuation:
            assert prefilled.first.logits is not None
            return prefilled.first.logits[slot]
        cycle, slots = self._cycle(0, len(prefilled.prompts)), self.b.slots
        with self.stream.current():
            prefilled.rewind(self.b, StopRule((), (), self.sizes.positions))
            slots.active[0], slots.active_count[0] = slot, 1
            for position, token in enumerate(continuation, len(prefilled.prompts[slot])):
                slots.length[slot], slots.last_token[slot] = position, token
                slots.counts[slot], slots.pending[slot, 0] = 1, token
                cycle.reserve(self.b.kv, slots)
                cycle.verify(self.b, slots.rows(len(prefilled.prompts), 1))
                _, fault = cycle.verify.choices(self.b, 1)
                self._check(fault)
            return self.b.target.layer.logits[0]

    @torch.inference_mode()
    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...]:
        """As `api.DrawsTexts.draw`: every slot gets the prompt, which is prefilled once.

        Raises BackendError where the engine decodes greedily.
        """
        self._sampling()
        slots, found = self.sizes.slots, list[tuple[int, ...]]()
        self.prefill([prompt] * slots, draft=role.speculative)
        prefilled, drawn = self.prefilled, self.b.sampling
        assert prefilled is not None and drawn is not None
        verify = self._cycle(0, slots).verify
        try:
            for start in range(first, first + count, slots):
                with self.stream.current():
                    put_requests(drawn, range(start, start + slots))
                    chosen, fault = first_tokens(verify, self.b, prefilled.last, [len(prompt)] * slots)
                self._check(fault)
                self.prefilled = replace(prefilled, first=chosen)
                found += self.decode(role, Budget(new_tokens=tokens), ()).tokens
        finally:
            self.prefilled = None  # its requests are not those of its prompts
        return tuple(found[:count])

    @torch.inference_mode()
    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
        """As `api.ShowsDistribution.distribution`. Raises BackendError where the engine decodes greedily."""
        asked = self._sampling()
        self.prefill([prompt], draft=False)
        with self.stream.current():
            return law_of(self._logits_after(0, continuation), asked, continuation, least)

    def _sampling(self) -> Sampling:
        if self.sizes.sampling is None:
            raise BackendError("the engine was opened to decode greedily: it draws nothing")
        return self.sizes.sampling

    @torch.inference_mode()
    def stages(self, prompt: Sequence[int], rows: int) -> Mapping[str, NDArray[np.float32] | NDArray[np.int64]]:
        """As `api.ShowsStages.stages`: the last rows token by token, after a prefill of what is before them.

        Raises BackendError for a prompt of one token, which is prefilled, and for one that does not fit.
        """
        if not 1 < len(prompt) < self.sizes.positions:
            raise BackendError(
                f"stages of {len(prompt)} tokens: this engine shows them of 2 … {self.sizes.positions - 1} tokens"
            )
        start = first_shown(len(prompt), rows)
        self.prefill([prompt[:start]], draft=self.draft is not None)
        prefilled, self.prefilled = self.prefilled, None
        assert prefilled is not None
        passes = StagePasses(self.target, self.draft, self.sizes, self.tuned)
        with self.stream.current():
            prefilled.rewind(self.b, StopRule((), (), self.sizes.positions))
            fault = passes.run(self.b, prompt, start)
        self._check(fault)
        return passes.shown(rows)

    def facts(self) -> EngineFacts:
        return self._facts

    def close(self) -> None:
        """Nothing to release before the process ends."""


def tree_counters(shape: DraftTree | None, decoded: Decoded, fault: Fault) -> dict[str, int]:
    """What a decode run reports of its trees: draft tokens that were verified, and the check of every step's masks."""
    if shape is None:
        return {}
    return {
        "tree_tokens": shape.nodes * sum(a >= 0 for row in decoded.accepted for a in row),
        "mask_checked_steps": len(decoded.step_ns),
        "mask_integrity_failures": int(bool(fault & Fault.MASK_INTEGRITY)),
    }


def undrafted(decoded: Decoded) -> Decoded:
    """What a spec role returns that had to be decoded without drafts. Its counters say so."""
    drafted = tuple(tuple(min(a, 0) for a in row) for row in decoded.accepted)
    steps = sum(d == 0 for row in drafted for d in row)
    return replace(decoded, drafted=drafted, counters={**decoded.counters, "disabled_draft_error": steps})
