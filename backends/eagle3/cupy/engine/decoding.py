"""Prefill once, then rewind and decode as often as asked. Every step runs within a replayed graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from specgate.backends.eagle3.cupy.engine.decode_run import SlotWatch, Steps, StopRule, read, run, text_of, widths
from specgate.backends.eagle3.cupy.engine.partial import graphs_of, kinds_of
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.engine.prefilled import (
    FirstTokens,
    LastRow,
    Prefilled,
    prefill_prompts,
    put_last_rows,
    top2_of,
)
from specgate.backends.eagle3.cupy.engine.ranks.prefill import Prefill
from specgate.backends.eagle3.cupy.engine.ranks.rank import Rank, whole_logits
from specgate.backends.eagle3.cupy.engine.run_parts import DecodeRun, RunPart
from specgate.backends.eagle3.cupy.kernels.peers.launchers import LIMIT_MS
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, KVBlocks, Slots
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.peers import reset
from specgate.backends.eagle3.cupy.memory.sizes import CacheLayout, assign_blocks
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import PLAIN, Kind
from specgate.backends.eagle3.cupy.step.verify import Verify
from specgate.backends.eagle3.cupy.tuned.required import ShapeLog
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.contract import Budget, EngineFacts, Role
from specgate.contract.protocols import Decoded, Text
from specgate.errors import BackendError

FAULTS: Mapping[Fault, str] = {
    Fault.TARGET_NOT_FINITE: "the target's logits are not finite: the checkpoint holds NaN or infinity, or overflows",
    Fault.DRAFT_NOT_FINITE: "the draft's logits are not finite: the checkpoint holds NaN or infinity, or overflows",
    Fault.KV_INTEGRITY: "a step was about to write a cache block that is not its slot's",
    Fault.KV_EXHAUSTED: "the cache ran out of blocks or positions in the middle of a stretch",
    Fault.MASK_INTEGRITY: "the attention masks of a step were not those of its tree",
    Fault.PEER_LATE: f"a GPU waited more than {LIMIT_MS / 1000:g} s for another one in the middle of a step",
    Fault.PEERS_DIFFER: "the GPUs that share the target read different tokens in one step",
}
PEERS: Final = Fault.PEER_LATE | Fault.PEERS_DIFFER


class DecodingEngine:
    """Base of every use of an engine: its caches are filled, and steps run from there.

    Once the draft has proved unusable, a decode run of a spec role ends with BackendError. With `plain_on_draft_error`
    such roles decode without drafts instead, and their counters say so. `shape_log` gets every product before it runs.
    With `sizes.sampling` tokens are drawn, wherever greedy ones are spoken of. `parts`: the features of its runs.

    Where several GPUs share the target, there are several `ranks`. All hold the same state, since they compute the same
    bits. What is read is read from the first; the others are held against it.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        facts: EngineFacts,
        parts: list[RunPart],
        *,
        graphs: bool = True,
        plain_on_draft_error: bool = False,
        shape_log: ShapeLog | None = None,
    ) -> None:
        self.ranks, self.first, self.parts, self._facts = ranks, ranks[0], parts, facts
        self.target, self.draft, self.sizes = self.first.target, self.first.draft, self.first.sizes
        self.use_graphs, self.plain_on_draft_error = graphs, plain_on_draft_error
        self.tuned, self.shape_log = self.first.tuned, shape_log
        self.shared_chunk = 0
        """Tokens of a chunk that prompts share, with those before them in the cache, too; 0: only equal prompts do."""
        self.draft_error = facts.draft_error
        self.stream = self.first.stream
        self.cycles, self.graphs = self.first.cycles, self.first.graphs
        with self.stream.current():
            self._watch = SlotWatch(self.stream.torch)
        self._prefill = Prefill(ranks) if len(ranks) > 1 else None
        self._last_role: Role | None = None
        """The role of the decode run whose state is on the device; None where something else has used it since."""

    @property
    def b(self) -> Buffers:
        """Those of the first rank."""
        return self.first.b

    @property
    def mode(self) -> PrefillMode:
        return self.first.mode

    @mode.setter
    def mode(self, mode: PrefillMode) -> None:
        for rank in self.ranks:
            rank.mode = mode

    @property
    def prefilled(self) -> Prefilled | None:
        """The prompts in the cache, as the first rank has them."""
        return self.first.prefilled

    def _forget_prompts(self) -> None:
        for rank in self.ranks:
            rank.prefilled = None

    # ── prefill ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Fill the caches prompt by prompt; return nanoseconds. Raises BackendError where a prompt does not fit."""
        self._check_fit(prompts, draft)
        for part in self.parts:
            part.meet(prompts)
        cached = self.prefilled.cached(draft=draft) if self.prefilled and self.shared_chunk else ()
        self._forget_prompts()
        self._last_role = None
        heads = [self._cycle(0, len(prompts), rank).verify for rank in self.ranks]
        with self.stream.current(), refusing_overflow("prefill"):
            for rank in self.ranks:
                with rank.stream.current():
                    rank.mode.prepare(rank.target, rank.draft if draft else None, map(len, prompts), self.sizes.kv)
                    for part in self.parts:
                        part.name(rank.b, prompts)
                    rank.stream.wait()
                if len(self.ranks) > 1:
                    rank.load(0, len(prompts))
            began = time.perf_counter_ns()
            layout = assign_blocks(prompts, self.sizes, self.shared_chunk, cached)
            if self._prefill is None:
                last = [prefill_prompts(self.target, self.draft if draft else None, self.b, prompts, layout, self.mode)]
            else:
                last = self._prefill.prompts(prompts, layout, draft=draft)
            first, fault = self._first_tokens(heads, last, layout, [*map(len, prompts)])
            for part in self.parts if draft else ():
                part.prefilled(self.b, self.target.geometry, [*map(len, prompts)])
            self.stream.wait()
            elapsed = time.perf_counter_ns() - began
            self._check(fault)
            for rank, rows, chosen in zip(self.ranks, last, first, strict=True):
                with rank.stream.current():
                    features = [row.features for row in rows if row.features is not None]
                    # Copies are made on the stream that writes the originals, and reads the copies.
                    rank.prefilled = Prefilled(
                        prompts=tuple(map(tuple, prompts)),
                        layout=layout,
                        first=chosen,
                        kv=KVBlocks(*(t.clone() for t in rank.b.kv.tensors())),
                        features=torch.stack(features) if features else None,
                        last=tuple(rows),
                    )
                    rank.stream.wait()
        return elapsed

    def _first_tokens(
        self, heads: Sequence[Verify], last: Sequence[Sequence[LastRow]], layout: CacheLayout, lengths: Sequence[int]
    ) -> tuple[list[FirstTokens], Fault]:
        """The token after each prompt, once per rank. All ranks are launched before any of them is read."""
        count = len(lengths)
        for rank, verify, rows in zip(self.ranks, heads, last, strict=True):
            with rank.stream.current():
                rank.b.kv.copy_(layout.kv)
                put_last_rows(verify, rank.b, rows, lengths)
        self._wait()  # nothing but launches comes between the heads of two ranks, which wait for each other
        for rank, verify in zip(self.ranks, heads, strict=True):
            with rank.stream.current():
                verify.head(rank.b, rank.b.slots.rows(count, 1))
        read_of, fault = list[tuple[int, ...]](), Fault(0)
        for rank, verify in zip(self.ranks, heads, strict=True):
            with rank.stream.current():
                tokens, own = verify.choices(rank.b, count)
                read_of.append(tokens)
                fault |= own
        if len(set(read_of)) > 1 and not fault:
            raise BackendError(f"prefill: the GPUs that share the target chose different first tokens: {read_of}")
        logits = whole_logits(self.ranks, count)
        kept = logits.clone() if self.b.sampling is not None else None
        return [FirstTokens(tokens, top2_of(logits), kept) for tokens in read_of], fault

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
            decoded, fault = self._decode_run(prefilled, role.k, self._drafts(role), budget, stop_token_ids)
            if fault != Fault.DRAFT_NOT_FINITE or not self.plain_on_draft_error:
                self._check(fault)
                return decoded
            self.draft_error = FAULTS[fault]
        decoded, fault = self._decode_run(prefilled, role.k, 0, budget, stop_token_ids)
        self._check(fault)
        self._last_role = role
        return undrafted(decoded) if role.speculative else decoded

    def _decode_run(
        self, prefilled: Prefilled, asked_k: int, k: int, budget: Budget, stop_token_ids: Sequence[int]
    ) -> tuple[Decoded, Fault]:
        count = len(prefilled.prompts)
        steps = most_steps(budget)
        rule = self._rule(budget, stop_token_ids)
        with self.stream.current():
            kinds = kinds_of(self.sizes, k, self._prompt_lengths, steps)
            graphs = graphs_of(kinds)
            narrow = widths(count, self.sizes.rows_of(k)) if budget.steps is None else (count,)
            alone = [(kind,) for kind in kinds] if len(narrow) > 1 else []
            launches = {(of, slots): self.step(k, slots, of) for of in {*graphs, *alone} for slots in narrow}

            def launch(of: Steps, running: int | None) -> None:
                launches[of, next(slots for slots in narrow if slots >= (running or count))]()

            self._rewind(rule, k, steps)
            for rank in self.ranks:
                with rank.stream.current():
                    # What the first step reserves, by itself. Seen on H200s, and not understood: where a graph follows
                    # sixteen copies or fills (not six), and no kernel of ours was launched since, its steps are slower,
                    # and so are all after it.
                    rank.cycle(k, count, *kinds[:1]).reserve_blocks(rank.b)
            self._wait()
            watch = partial(self._watch.running_after, active_count=self.b.slots.active_count)
            seen = watch if budget.steps is None else None
            lengths_of, elapsed_ns = run(graphs, launch, self.stream.torch, seen, narrows=len(narrow) > 1)
            mixture = self.b.target.layer.mixture
            touched = mixture.touched if mixture else None
            decoded, fault = read(self.b.slots, count, k, lengths_of, elapsed_ns, touched)
        fault |= self._held_against_first(count, fault)
        # Every step checks the blocks that it may write; a violation stops it.
        broken = int(bool(fault & Fault.KV_INTEGRITY))
        of_blocks = {"kv_checked_steps": len(decoded.step_ns), "kv_integrity_failures": broken}
        reused = {"cache_hit_tokens": prefilled.layout.reused_positions}
        first = self._cycle(k, count, kind=next(iter(kinds), PLAIN))
        counters = {**decoded.counters, **of_blocks, **reused, **first.gemms.counters}
        with self.stream.current():
            ran = DecodeRun(asked_k, k, self._prompt_lengths, kinds, first, self.b, decoded, fault)
            for part in self.parts:
                counters |= part.counters(ran)
        return replace(decoded, counters=counters), fault

    def _rewind(self, rule: StopRule, k: int, steps: int) -> None:
        """Put every rank back to its prompts, before up to `steps` steps of spec-`k`."""
        for rank in self.ranks:
            with rank.stream.current():
                rank.of_prompts.rewind(rank.b, rule, self.sizes.partial)
                for part in self.parts:
                    part.rewind(rank.b, k, steps, len(rank.of_prompts.prompts))

    def _rule(self, budget: Budget, stop_token_ids: Sequence[int]) -> StopRule:
        """Return the rule by which requests end; a budget of steps never ends one for its length."""
        eos, stop = ((), ()) if budget.ignore_eos else (self.target.geometry.eos_token_ids, tuple(stop_token_ids))
        return StopRule(eos, stop, budget.new_tokens or self.sizes.positions)

    @property
    def _prompt_lengths(self) -> list[int]:
        return [*map(len, self.first.of_prompts.prompts)]

    def _drafts(self, role: Role) -> int:
        """The most draft tokens of each step of `role` over the prompts in the cache: K, or fewer by their number."""
        count = len(self.first.of_prompts.prompts)
        return min(part.drafts(role.k, count) for part in self.parts)

    def _held_against_first(self, count: int, fault: Fault) -> Fault:
        """The faults of the other ranks; where there are none, what they hold is compared with what the first does."""
        if len(self.ranks) == 1:
            return Fault(0)
        self._wait()
        faults = self._faults()
        if not fault | faults:
            steps = int(self.b.slots.step)
            first, *others = (state_of(rank.b.slots, count, steps) for rank in self.ranks)
            if any(other != first for other in others):
                faults |= Fault.PEERS_DIFFER
        return faults

    def _faults(self) -> Fault:
        """Return the errors that kernels have recorded so far, on any rank. Nothing may be running."""
        faults = Fault(0)
        for rank in self.ranks:
            faults |= Fault(int(rank.b.slots.fault))
        return faults

    def _wait(self) -> None:
        for rank in self.ranks:
            rank.stream.wait()

    @torch.inference_mode()
    def extend(self, steps: int) -> Text:
        """As `protocols.ExtendsText.extend`: the state of the last decode run is still on the device.

        Raises BackendError where something else has used it since, or the steps do not fit.
        """
        if self.prefilled is None or self._last_role is None or self._last_role.speculative:
            raise BackendError("extend: a plain decode has to come before")
        count, slots = len(self.prefilled.prompts), self.b.slots
        with self.stream.current():
            more = steps + 2
            if int(slots.length[:count].max()) + more > self.sizes.positions:
                raise BackendError(f"extend: {steps} more steps exceed {self.sizes.positions} cached positions")
            graphs = graphs_of((PLAIN,) * steps)
            # Captured before the first of them runs. A capture clears the list of active slots, so it is put back.
            listed = [(rank, rank.b.slots.active.clone(), rank.b.slots.active_count.clone()) for rank in self.ranks]
            launches = {of: self.step(0, count, of) for of in set(graphs)}
            for rank, active, active_count in listed:
                with rank.stream.current():
                    rank.b.slots.active.copy_(active)
                    rank.b.slots.active_count.copy_(active_count)
            self._wait()
            run(graphs, lambda of, running: launches[of](), self.stream.torch)
            texts, fault = text_of(slots, count), Fault(int(slots.fault))
        fault |= self._held_against_first(count, fault)
        self._last_role = None
        self._check(fault)
        return texts

    def step(self, k: int, count: int, kinds: tuple[Kind, ...] = (PLAIN,)) -> Callable[[], None]:
        """A step of spec-`k` over `count` slots for each of `kinds`, on every rank. Their graphs are captured at first
        use, with no slot active.
        """
        for rank in self.ranks:
            for kind in dict.fromkeys(kinds):
                self._cycle(k, count, rank, kind)

        def launches() -> None:
            for kind in kinds:
                for rank in self.ranks:
                    rank.launch(k, count, kind)

        if not self.use_graphs:
            if len(self.ranks) > 1:
                for rank in self.ranks:
                    rank.load(k, count)
            return launches
        replays = [rank.replay(k, count, kinds) for rank in self.ranks]
        if len(replays) == 1:
            return replays[0]

        def replay_all() -> None:
            for rank, replay in zip(self.ranks, replays, strict=True):
                with rank.stream.current():
                    replay()

        return replay_all

    def _cycle(self, k: int, count: int, rank: Rank | None = None, kind: Kind = PLAIN) -> Cycle:
        """Return the first rank's, unless one is given."""
        rank = rank or self.first
        new = (k, count, kind) not in rank.cycles
        cycle = rank.cycle(k, count, kind)
        if new and self.shape_log and rank is self.first:
            self.shape_log.add(cycle.gemms.shapes)
        return cycle

    def _check_room(self, role: Role, budget: Budget) -> Prefilled:
        if self.prefilled is None:
            raise BackendError("decode before prefill")
        if role.k > self.sizes.most_drafts:
            raise BackendError(f"{role} asked for, but the engine was opened for spec-{self.sizes.most_drafts}")
        if role.speculative and self.prefilled.features is None and self.draft_error is None:
            raise BackendError(f"{role} asked for, but the prefill was made without the draft")
        longest = max(map(len, self.prefilled.prompts))
        more = budget.longest(role.k) + self.sizes.reserved_of(role.k) + 1
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
            self._forget_prompts()
        if fault & Fault.TARGET_NOT_FINITE:
            # A masked position still enters a product: NaN that stays in the cache would reach the next prompts. On the
            # stream that writes them, since another one would not wait for this.
            for rank in self.ranks:
                with rank.stream.current():
                    for pages in rank.b.pages:
                        pages.clear()
        if fault & PEERS:
            # Ranks have ended in the middle of an exchange, and not all in the same one.
            self._wait()
            for boxes in zip(*(rank.b.mailboxes for rank in self.ranks), strict=True):
                reset(boxes)
        raise BackendError("; ".join(FAULTS[f] for f in fault), hint="no token of this stretch was kept")


def most_steps(budget: Budget) -> int:
    """Return the most steps that a run takes: each emits a token at least, and the first token comes before them."""
    return budget.steps if budget.steps is not None else budget.longest(0) - 1


def state_of(slots: Slots, count: int, steps: int) -> tuple[object, ...]:
    """Return the state in which ranks must agree after `steps` steps over `count` slots."""
    log, emitted = slots.accepted_log[:steps, :count].tolist(), slots.emitted[:count].tolist()
    text = [row[:n] for row, n in zip(slots.out[:count].tolist(), emitted, strict=True)]
    return int(slots.step), slots.length[:count].tolist(), slots.finish[:count].tolist(), text, log


def undrafted(decoded: Decoded) -> Decoded:
    """Return the result of a spec role that had to be decoded without drafts. Its counters say so."""
    drafted = tuple(tuple(min(a, 0) for a in row) for row in decoded.accepted)
    steps = sum(d == 0 for row in drafted for d in row)
    return replace(decoded, drafted=drafted, counters={**decoded.counters, "disabled_draft_error": steps})
