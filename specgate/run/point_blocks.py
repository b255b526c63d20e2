"""The blocks of one point on one engine.

For each prompt set, a micro run prefills once and then runs rounds of blocks, baseline and speculation interleaved.
Every block starts from the same state of the KV cache. A full run measures whole requests, so it prefills before every
block. Each pass over the plan visits every prompt set again. In a load run a block is a whole set of requests, which
the engine is offered as the scenario says.

On an engine that holds one role at a time (`servers=apart`, `Schedule.by_load`), all blocks of a role are measured,
then those of the next, so that few loads measure many prompt sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from specgate import plugins
from specgate.analysis.rounds import in_round, whole_generation
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import PASS_ROUNDS, Block, Budget, DecodeRun, Plan, Point, Role, Round
from specgate.contract.protocols import Decoded
from specgate.contract.types import fields_of
from specgate.files.run_folder import RunFolder
from specgate.machine.cpu_counters import CpuProbe, between
from specgate.machine.memory_in_use import MemoryProbe
from specgate.planning.arrivals import offered_load
from specgate.planning.plan import prefill_group
from specgate.planning.prompts import Prompts, PromptSet
from specgate.run.progress import Silent
from specgate.run.token_evidence import TokenEvidence
from specgate.run.worker import EngineWorker


class BlockJournal:
    """The blocks of a run, those that its folder has among them. `ahead`: point → blocks that are still to run."""

    def __init__(self, plan: Plan, folder: RunFolder, report: Silent) -> None:
        self.plan, self.folder, self.report = plan, folder, report
        self.blocks = folder.lines(Block)
        self.ahead: dict[Point, int] = {}
        self.finished = 0

    def record(self, block: Block) -> None:
        """Store a block, and show it."""
        self.folder.append(block)
        self.blocks.append(block)
        self.finished += 1
        self.ahead[block.point] -= 1
        self.report(block, self.finished, self.finished + sum(self.ahead.values()))

    def done(self, round_: Round) -> bool:
        """True if every block of the round is there."""
        return whole_generation(self.blocks, round_) is not None

    def comes_again(self, round_: Round) -> bool:
        """True if a later round, in the other order, is still to run on the prompt set of `round_`."""
        return any(
            (r.prompt_set, r.index // PASS_ROUNDS) == (round_.prompt_set, round_.index // PASS_ROUNDS)
            and r.index > round_.index
            and not self.done(r)
            for r in self.plan.rounds_of(round_.point)
            if not r.warmup
        )

    def left(self, point: Point, *, warmup: bool = False) -> int:
        """Blocks of `point` that are still to run, up to its next look if it is measured until it is decided. `warmup`:
        with those for warm-up.
        """
        scenario, rounds = self.plan.scenarios[point.scenario], [r for r in self.plan.rounds_of(point) if not r.warmup]
        left = [number for number, round_ in enumerate(rounds) if not self.done(round_)]
        looks = planned_interim_looks(scenario) if scenario.until_decided else ()
        last = next((look for look in looks if left and look > left[0]), len(rounds))
        untimed = sum(len(r.order) for r in self.plan.rounds_of(point) if r.warmup and warmup)
        return untimed + sum(len(rounds[number].order) for number in left if number < last)


class PointBlocks:
    """Measures the blocks of one point on `engine`, whose process has the number `generation`."""

    def __init__(
        self,
        journal: BlockJournal,
        evidence: TokenEvidence,
        probes: tuple[CpuProbe, MemoryProbe],
        point: Point,
        prompts: Prompts,
        engine: EngineWorker,
        generation: int,
    ) -> None:
        self.journal, self.evidence, self.point, self.prompts = journal, evidence, point, prompts
        self.engine, self.generation = engine, generation
        self.cpus, self.memory = probes
        self.scenario = journal.plan.scenarios[point.scenario]
        self.draft = any(role.speculative for role in self.scenario.roles)

    def visits(self) -> list[list[Round]]:
        """The rounds in running order, those together that `run` takes at once: of one prompt set."""
        return [list(rounds) for _, rounds in groupby(self.journal.plan.rounds_of(self.point), key=prefill_group)]

    def run(self, rounds: Sequence[Round]) -> None:
        """Measure the rounds of one visit that are not there yet, and check their tokens."""
        # A new process is cold, so warm-up rounds run again even if an earlier process has run them.
        warmup, prompt_set = rounds[0].warmup, rounds[0].prompt_set
        todo = [r for r in rounds if r.warmup or not self.journal.done(r)]
        # The baseline's text is made longer after a block of its own. If one is still to come, it can wait.
        # Where a look decides when the point ends, its tokens have to be checked before every look.
        later = not warmup and not self.scenario.until_decided and self.journal.comes_again(rounds[-1])
        if not todo and (later or not self.evidence.wanting(self.point, prompt_set)):
            return
        chosen = (self.prompts.warmup if warmup else self.prompts.measured)[prompt_set]
        shared_ns = 0
        if self.scenario.load is None:
            shared_ns = self.engine.prefill(chosen.token_ids, draft=self.draft)
        elif not todo:  # so that the engine knows which prompts the evidence that is missing is about
            self.serve(rounds[0], rounds[0].order[0], chosen)
        alone = dict[Role, int]()
        for round_ in todo:
            for position, role in enumerate(round_.order):
                self.journal.record(self.measure(round_, position, role, chosen, shared_ns, alone))
            if not warmup and not round_.order[-1].speculative:
                self.evidence.extend_text(self.point, prompt_set, self.engine, self.generation)
        if not warmup and not later:
            self.evidence.gather(self.point, prompt_set, self.engine, self.generation)

    def measure(
        self, round_: Round, position: int, role: Role, chosen: PromptSet, shared_ns: int, alone: dict[Role, int]
    ) -> Block:
        """Measure one block of `role` on the prompts `chosen`, which took `shared_ns` to prefill.

        `alone`: what is known of the set, see `_one_step_ns`.
        """

        def ask() -> tuple[int, Decoded]:
            if self.scenario.load is not None:
                return 0, self.serve(round_, role, chosen)
            own = self.scenario.whole_requests
            prefill_ns = self.engine.prefill(chosen.token_ids, draft=role.speculative) if own else shared_ns
            return prefill_ns, self.engine.decode(role, self.scenario.budget, ())

        one_step_ns = self._one_step_ns(role, alone)
        lengths = chosen.lengths if self.scenario.workload.own else ()
        block, decoded = timed_block(round_, position, role, self.generation, self.engine, self.cpus, ask, lengths)
        scripted = self.engine.facts().acceptance == "scripted"  # it only pretends to decode
        memory = None if scripted else self.memory.read(self.engine.pid, decoded.memory)
        return replace(block, memory=memory, one_step_ns=one_step_ns)

    def serve(self, round_: Round, role: Role, chosen: PromptSet) -> Decoded:
        """Offer the engine a round's load of requests."""
        offered = offered_load(self.scenario, round_, chosen.prompts)
        return self.engine.serve(role, chosen.token_ids, self.scenario.budget, offered, ())

    def _one_step_ns(self, role: Role, alone: dict[Role, int]) -> int | None:
        """Time that a single step takes with its prefill, by the harness's clock: once for all rounds of a prompt set.

        `alone`: what is known of the set already. None where it need not be known, or where no earlier block has shown
        that the engine prefills and decodes in one go.
        """
        mine = (b for b in self.journal.blocks if b.point == self.point)
        if ours(self.point.backend) or not any(b.own_prefill and b.served is None for b in mine):
            return None
        if role not in alone:
            began = time.monotonic_ns()
            self.engine.decode(role, Budget(steps=1), ())
            alone[role] = time.monotonic_ns() - began
        return alone[role]


class RoleByRole(PointBlocks):
    """Measures all blocks of a role, then those of the next. `loaded`: the role that the engine holds, once warm."""

    loaded: Role | None = None

    def visits(self) -> list[list[Round]]:
        """The measured rounds, neighbours of one order together: they share a load."""
        measured = (r for r in self.journal.plan.rounds_of(self.point) if not r.warmup)
        return [list(rounds) for _, rounds in groupby(measured, key=lambda r: r.order)]

    def run(self, rounds: Sequence[Round]) -> None:
        """Measure neighbouring rounds of one order. A role that is loaded anew is warmed up."""
        todo = [r for r in rounds if not self.journal.done(r)]
        for position, role in enumerate(rounds[0].order if todo else ()):
            if role != self.loaded:
                self.warm_up(role)
            for round_ in todo:
                self.journal.record(self.prefilled(round_, position, role, self.prompts.measured[round_.prompt_set]))
        if self.journal.comes_again(rounds[-1]):
            return  # the backward rounds end with the baseline, which the evidence asks
        for prompt_set in dict.fromkeys(r.prompt_set for r in rounds):
            if self.evidence.wanting(self.point, prompt_set):
                self.engine.prefill(self.prompts.measured[prompt_set].token_ids, draft=self.draft)
                self.evidence.gather(self.point, prompt_set, self.engine, self.generation)

    def warm_up(self, role: Role) -> None:
        """Run the warm-up rounds' blocks of one role. Those of its first load are stored."""
        of = role, self.generation
        for round_ in (r for r in self.journal.plan.rounds_of(self.point) if r.warmup):
            block = self.prefilled(round_, round_.order.index(role), role, self.prompts.warmup[round_.prompt_set])
            if not any(in_round(b, round_) and (b.role, b.worker_generation) == of for b in self.journal.blocks):
                self.journal.record(block)
        self.loaded = role

    def prefilled(self, round_: Round, position: int, role: Role, chosen: PromptSet) -> Block:
        """Prefill, and measure one block."""
        return self.measure(round_, position, role, chosen, self.engine.prefill(chosen.token_ids, draft=self.draft), {})


def timed_block(
    round_: Round,
    position: int,
    role: Role,
    generation: int,
    engine: EngineWorker,
    cpus: CpuProbe,
    ask: Callable[[], tuple[int, Decoded]],
    lengths: Sequence[int],
    idle: Sequence[int] = (),
) -> tuple[Block, Decoded]:
    """One block with its span on the harness's clock and its use of the CPUs, and what `engine` said.

    `ask`: has it decode; returns the nanoseconds of the prefill that belongs to the block, too. `lengths`: of the
    prompts, where they have lengths of their own. `idle`: numbers of processes that have nothing to do meanwhile.
    """
    before, asked_ns = cpus.read(engine.pid, idle), time.monotonic_ns()
    prefill_ns, decoded = ask()
    block = make_block(round_, position, role, generation, prefill_ns, decoded)
    span_ns = asked_ns, time.monotonic_ns()
    cpu = between(before, cpus.read_again(before))
    answered = decoded.served.prompts if decoded.served is not None else ()
    own_lengths = tuple(lengths[i] for i in answered) if lengths and answered else tuple(lengths)
    return replace(block, span_ns=span_ns, cpu=cpu, prompt_tokens=own_lengths), decoded


def ours(backend: str) -> bool:
    """True if a back end comes with specgate."""
    return not plugins.from_outside("specgate.backends", [backend])


def make_block(
    round_: Round, position: int, role: Role, worker_generation: int, prefill_ns: int, decoded: Decoded
) -> Block:
    made = fields_of(DecodeRun, decoded)
    made["began_ns"] = decoded.began_ns if ours(round_.point.backend) else None
    return Block(
        point=round_.point,
        role=role,
        prompt_set=round_.prompt_set,
        round=round_.index,
        position_in_round=position,
        warmup=round_.warmup,
        worker_generation=worker_generation,
        prefill_ns=prefill_ns if decoded.prefill_ns is None else decoded.prefill_ns,
        own_prefill=decoded.prefill_ns is not None,
        **made,
    )
