"""The measuring loop: run a plan on an engine and append the blocks to the journal.

For each prompt set, a micro run prefills once and then runs rounds of blocks, baseline and speculation interleaved.
Every block starts from the same state of the KV cache. A full run measures whole requests, so it prefills before every
block. Each pass over the plan visits every prompt set again. In a load run a block is a whole set of requests, which
the engine is offered as the scenario says.

The loop itself draws and judges nothing. Between blocks it reports progress, and at the interim looks it asks whether
the point may stop early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from specgate import plugins
from specgate.analysis.load.level_search import needless_points
from specgate.analysis.machine.minutes import seconds_of
from specgate.analysis.rounds import whole_generation
from specgate.analysis.stats import planned_interim_looks
from specgate.checkpoints.parameters import least_weight_bytes
from specgate.contract import (
    LEAST_BUDGET_S,
    PASS_ROUNDS,
    Block,
    BlockTrace,
    Budget,
    Cell,
    DecodeRun,
    EngineFacts,
    EngineStart,
    Plan,
    Point,
    Role,
    Round,
    Scenario,
    TimeEnd,
    TraceSource,
)
from specgate.contract.conditions import Sample
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import Activity, AnswersTurns, Decoded, OpenRequest
from specgate.contract.samples.memory import MemoryUse
from specgate.contract.samples.spans import ShownSpans
from specgate.contract.types import fields_of
from specgate.errors import BackendError, UsageError
from specgate.files.config import Config
from specgate.files.journal import Journal, PointEngine
from specgate.files.run_folder import RunFolder
from specgate.machine.cpu_counters import CpuProbe, between
from specgate.machine.memory_in_use import MemoryProbe
from specgate.planning.arrivals import offered_load
from specgate.planning.gates import near_ties
from specgate.planning.plan import positions_needed, prefill_group
from specgate.planning.prompt_files.formats import EVERY_TURN
from specgate.planning.prompts import Prompts, PromptSet
from specgate.promotion.claim import engine_fingerprint
from specgate.run.drawing import Drawer
from specgate.run.early_stop import EARLIER_RUNS_S, Look
from specgate.run.rescoring import ReportCheck, Rescorer
from specgate.run.role_by_role import RoleByRole, order_of
from specgate.run.token_evidence import UNFORESEEN, TokenEvidence
from specgate.run.watched_gpus import engine_options, scenario_gpus
from specgate.run.worker import EngineWorker

TRACED_STEPS = 16
"""Most steps of a traced block. All steps do the same work, and traces are large."""

SPAN_STEPS = 8
"""Drawn steps of a cell whose cache spans and trees are looked at."""
SPAN_DEPTH = 128
"""They are among so many first steps, because the run that shows them goes step by step."""

Progress = Callable[[Block, int, int], None]
MayStop = Callable[[Point, Journal], Look]
"""Called at an interim look, which says whether the point may stop, because every rule that rests on samples is
decided.
"""
ReportOpen = Callable[[Look, float], None]
"""Called where a point that is measured until it is decided goes on after a look: with the seconds that are left."""


Sampling = Callable[[EngineFacts], str | None]
"""Called with the facts of a loaded engine: the green run after which texts need not be compared whole any more, or
None.
"""


Beside = Callable[[Sequence[str]], AbstractContextManager[None]]
"""Watches the GPUs with these UUIDs, and the host, while points are measured whose engines use them."""


def unwatched(gpus: Sequence[str]) -> AbstractContextManager[None]:
    return nullcontext()


def never_stop(point: Point, journal: Journal) -> Look:
    return Look(0, decided=False)


def unheard(look: Look, left_s: float) -> None:
    pass


def unreported(point: str, engine: str, dtype: str) -> None:
    pass


def never_sample(facts: EngineFacts) -> str | None:
    return None


class Runner:
    """Runs a plan and stores what it measures in a run folder. Rounds that the journal already holds are not run again.

    `admit` is called with the facts of every engine that is loaded, before its first block. If it raises, the run ends
    with that error. `sampling` is asked then, too. `bandwidth`: of this machine's memory, where it was measured.
    `first_generation`: of the engine's process, in a run folder without blocks.

    After `run`, `engines` says which engine measured a point, and `failures` why a point is missing or incomplete; both
    are keyed by point key. `evidence` is what the tokens are checked by.
    """

    def __init__(
        self,
        plan: Plan,
        prompts: Mapping[str, Prompts],
        config: Config,
        folder: RunFolder,
        progress: Progress,
        may_stop: MayStop = never_stop,
        admit: Callable[[EngineFacts], None] = lambda facts: None,
        sampling: Sampling = never_sample,
        bandwidth: Bandwidth | None = None,
        first_generation: int = 0,
        report_open: ReportOpen = unheard,
        report_check: ReportCheck = unreported,
    ) -> None:
        self.plan, self.prompts, self.config = plan, prompts, config
        self.folder, self.progress, self.report_open = folder, progress, report_open
        self.may_stop, self.admit, self.sampling = may_stop, admit, sampling
        self.blocks, self.engines, self.traces = folder.lines(Block), folder.engines(), folder.keyed(BlockTrace)
        self.evidence = TokenEvidence(
            plan, folder, self.blocks, self.engines, config.policy.checks, near_ties(config.policy)
        )
        self.drawer = Drawer(plan, prompts, folder)
        self.rescorer = Rescorer(plan, prompts, config, folder, self.engines, report_check, bandwidth)
        watched = (s.worker_generation for s in folder.lines(Sample))
        self.worker_generation = max(
            (*(b.worker_generation for b in self.blocks), *watched), default=first_generation - 1
        )
        self.cpus, self.memory = CpuProbe(), MemoryProbe(())
        self.failures: dict[str, str] = {}
        self._in_one_go = {b.point.key for b in self.blocks if b.own_prefill and b.served is None}
        self.todo = [p for p in plan.points if self._unfinished(p)]
        self.finished = 0
        self._ahead = {p: self._blocks_left(p, warmup=True) for p in self.todo}
        self._start_s: float | None = None
        self._only_earlier = False  # at the last look at the point
        self._opened_ns = 0

    def run(self, beside: Beside = unwatched) -> None:
        """Run every round that the journal lacks.

        A watch reads its GPUs as one, and an idle one among them would look like a slow one. So points whose engines
        use other GPUs than those before get a watch of their own.

        If the engine fails (BackendError), the point is recorded in `failures` and the next one gets a new engine
        process. Any other error propagates.
        """
        for gpus, points in groupby(self.todo, key=self._gpus):
            with MemoryProbe(gpus) as self.memory, beside(gpus):
                for _, alike in groupby(points, key=self._engine_key):
                    self._run_points(list(alike))
        # Last of all, so that no second engine shares the machine with a block that is timed.
        checks = self.config.policy.checks
        self.drawer.finish(self.rescorer.why_not_opened, self.rescorer.opened, checks.rescored_by if checks else "")
        needless = needless_points(self.plan, self.blocks)
        scored = [p for p in self.plan.points if p.key not in self.failures and p not in needless]
        self.rescorer.run(scored, self._journal(), self.evidence)

    def _journal(self) -> Journal:
        evidence = self.evidence
        return Journal(
            self.blocks,
            evidence.margins,
            self.engines,
            texts=evidence.texts,
            logits=evidence.logits,
            followed=evidence.followed,
        )

    def _unfinished(self, point: Point) -> bool:
        measured = [r for r in self.plan.rounds_of(point) if not r.warmup]
        missing = not all(map(self.done, measured)) or self.evidence.wanting(point)
        return missing or self.drawer.wanting(point) or bool(self._untraced(point))

    def _blocks_left(self, point: Point, *, warmup: bool = False) -> int:
        """Blocks of `point` that are still to run, up to its next look if it is measured until it is decided. `warmup`:
        with those for warm-up.
        """
        scenario, rounds = self.plan.scenarios[point.scenario], [r for r in self.plan.rounds_of(point) if not r.warmup]
        left = [number for number, round_ in enumerate(rounds) if not self.done(round_)]
        looks = planned_interim_looks(scenario) if scenario.until_decided else ()
        last = next((look for look in looks if left and look > left[0]), len(rounds))
        untimed = sum(len(r.order) for r in self.plan.rounds_of(point) if r.warmup and warmup)
        return untimed + sum(len(rounds[number].order) for number in left if number < last)

    def _gpus(self, point: Point) -> tuple[str, ...]:
        """The UUIDs of the GPUs that the engine of `point` uses."""
        return scenario_gpus(self.config, self.plan.scenarios[point.scenario])

    def _engine_key(self, point: Point) -> tuple[object, ...]:
        """Points with equal keys share one engine process."""
        scenario = self.plan.scenarios[point.scenario]
        return (
            point.backend,
            scenario.dtype,
            scenario.rope,
            scenario.perf_mode,
            scenario.sampling,
            tuple(scenario.options.items()),
        )

    def _run_points(self, points: Sequence[Point]) -> None:
        worker: EngineWorker | None = None
        try:
            # Traces come after all timed blocks: once a profiler has been attached, the process may stay slower.
            parts = (self._run_point, self._show_logits, self.drawer.draw, self._trace_point)
            for run, point in [(run, p) for run in parts for p in points]:
                if point.key in self.failures or point in needless_points(self.plan, self.blocks):
                    self._ahead[point] = 0
                    continue
                try:
                    worker = worker or self._open(points)
                    run(point, worker)
                except BackendError as error:
                    self.failures[point.key] = str(error)
                    if worker is not None:
                        worker.close()
                    worker = None
        finally:
            if worker is not None:
                worker.close()

    def _open(self, points: Sequence[Point]) -> EngineWorker:
        request = open_request(
            self.plan, points, self.config, self.folder.log(""), [self.prompts[p.key] for p in points]
        )
        self.worker_generation += 1
        log = self.folder.log(f"worker-{self.worker_generation}.log")
        self._start_s, self._opened_ns = None, time.monotonic_ns()
        worker = EngineWorker(points[0].backend, request, answer_timeout_s(self.plan, points), log)
        try:
            facts = worker.facts()
            self.folder.append(EngineStart(self.worker_generation, (self._opened_ns, time.monotonic_ns())))
            self.admit(facts)
            self.evidence.sampled_after = self.sampling(facts)
            for point in points:
                self._register(point, facts)
        except BaseException:
            worker.close()
            raise
        return worker

    def _register(self, point: Point, facts: EngineFacts) -> None:
        """Store the facts of the engine that will measure `point`.

        Raises UsageError if earlier blocks of the point were measured with other weights, another device or another
        configuration.
        """
        gpus = max(1, len(self._gpus(point)))
        facts = replace(facts, least_weight_bytes=least_weight_bytes(self.config.pair.target, gpus))
        before = self.engines.setdefault(point.key, facts)
        then, now = (
            {**engine_fingerprint(f), "dtype": f.dtype, "capture_rule": f.capture_rule} for f in (before, facts)
        )
        for key in dict.fromkeys((*then, *now)):
            if (old := then.get(key)) != (new := now.get(key)):
                hint = "start a new run: blocks of two engines must not be paired"
                raise UsageError(f"{self.folder.path}: {point.key}: {key}: it was {old}, it is {new} now", hint=hint)
        self.folder.append(PointEngine(point.key, facts))

    def _run_point(self, point: Point, engine: EngineWorker) -> None:
        scenario = self.plan.scenarios[point.scenario]
        prompts, looks = self.prompts[point.key], planned_interim_looks(scenario)
        by_load = scenario.schedule.by_load
        planned = [r for r in self.plan.rounds_of(point) if not (by_load and r.warmup)]
        visits = [list(rounds) for _, rounds in groupby(planned, key=order_of if by_load else prefill_group)]
        by_role = RoleByRole(self, scenario, point, prompts, engine)
        run = by_role.run if by_load else partial(self._run_prompt_set, scenario, point, prompts, engine)
        measured, self._only_earlier = 0, False
        for number, rounds in enumerate(visits, 1):
            if not rounds[0].warmup and self._start_s is None:
                self._start_s = (time.monotonic_ns() - self._opened_ns) / 1e9
            run(rounds)
            measured += sum(not r.warmup for r in rounds)
            look = self.may_stop(point, self._journal()) if measured in looks else None
            if look is not None:
                self._only_earlier = look.only_earlier
            goes_on = measured and number < len(visits) and not self.done(visits[number][0])
            if by_load and self.comes_again(rounds[-1]):
                continue  # what this load has measured counts once the other order has come, too
            if (look is not None and look.decided) or (goes_on and self._time_is_spent(point, measured)):
                self._ahead[point] = 0
                return
            if look is not None and goes_on and scenario.until_decided:
                self._ahead[point] = self._blocks_left(point)
                self.report_open(look, self._budget_s(point) - self._measured_s(point))

    def _time_is_spent(self, point: Point, measured: int) -> bool:
        """True if a point that is measured until it is decided has used up its time. That is recorded then."""
        seconds, budget = self._measured_s(point), self._budget_s(point)
        if seconds < budget or not self.plan.scenarios[point.scenario].until_decided:
            return False
        self.folder.append(TimeEnd(point.key, measured, seconds, budget))
        return True

    def _budget_s(self, point: Point) -> float:
        usual = EARLIER_RUNS_S if self._only_earlier else max(LEAST_BUDGET_S, self._start_s or 0.0)
        return self.plan.scenarios[point.scenario].schedule.budget_s or usual

    def _measured_s(self, point: Point) -> float:
        return seconds_of((b for b in self.blocks if b.point == point and not b.warmup), self.plan.scenarios)

    def _run_prompt_set(
        self, scenario: Scenario, point: Point, prompts: Prompts, engine: EngineWorker, rounds: Sequence[Round]
    ) -> None:
        # A new process is cold, so warm-up rounds run again even if an earlier process has run them.
        warmup, prompt_set = rounds[0].warmup, rounds[0].prompt_set
        todo = [r for r in rounds if r.warmup or not self.done(r)]
        # The baseline's text is made longer after a block of its own. If one is still to come, it can wait.
        # Where a look decides when the point ends, its tokens have to be checked before every look.
        later = not warmup and not scenario.until_decided and self.comes_again(rounds[-1])
        if not todo and (later or not self.evidence.wanting(point, prompt_set)):
            return
        chosen = (prompts.warmup if warmup else prompts.measured)[prompt_set]
        shared_ns = 0
        if scenario.load is None:
            shared_ns = engine.prefill(chosen.token_ids, draft=any(r.speculative for r in scenario.roles))
        elif not todo:  # so that the engine knows which prompts the evidence that is missing is about
            offered = offered_load(scenario, rounds[0], chosen.prompts)
            engine.serve(rounds[0].order[0], chosen.token_ids, scenario.budget, offered, ())
        alone = dict[Role, int]()
        for round_ in todo:
            for position, role in enumerate(round_.order):
                self.record(self.measure_block(scenario, round_, position, role, chosen, shared_ns, alone, engine))
            if not warmup and not round_.order[-1].speculative:
                self.evidence.extend_text(point, prompt_set, engine, self.worker_generation)
        if not warmup and not later:
            self.evidence.gather(point, prompt_set, engine, self.worker_generation)

    def measure_block(
        self,
        scenario: Scenario,
        round_: Round,
        position: int,
        role: Role,
        prompts: PromptSet,
        shared_ns: int,
        alone: dict[Role, int],
        engine: EngineWorker,
    ) -> Block:
        """Measure one block of `role` on `prompts`, which took `shared_ns` to prefill. `alone`: see `_one_step_ns`."""
        ids, lengths = prompts.token_ids, prompts.lengths if scenario.workload.own else ()
        one_step_ns = self._one_step_ns(round_.point, role, engine, alone)
        before, asked_ns = self.cpus.read(engine.pid), time.monotonic_ns()
        if scenario.load is not None:
            prefill_ns, offered = 0, offered_load(scenario, round_, prompts.prompts)
            decoded = engine.serve(role, ids, scenario.budget, offered, ())
        else:
            own = scenario.whole_requests
            prefill_ns = engine.prefill(ids, draft=role.speculative) if own else shared_ns
            decoded = engine.decode(role, scenario.budget, ())
        block = make_block(round_, position, role, self.worker_generation, prefill_ns, decoded)
        span_ns = asked_ns, time.monotonic_ns()
        cpu = between(before, self.cpus.read_again(before))
        answered = decoded.served.prompts if decoded.served is not None else ()
        own_lengths = tuple(lengths[i] for i in answered) if lengths and answered else lengths
        memory = self._memory_in_use(engine, decoded)
        block = replace(block, prompt_tokens=own_lengths, memory=memory, one_step_ns=one_step_ns)
        return replace(block, span_ns=span_ns, cpu=cpu)

    def _one_step_ns(self, point: Point, role: Role, engine: EngineWorker, alone: dict[Role, int]) -> int | None:
        """Time that a single step takes with its prefill, by the harness's clock: once for all rounds of a prompt set.

        `alone`: what is known of the set already. None where it need not be known, or where no earlier block has shown
        that the engine prefills and decodes in one go.
        """
        if point.key not in self._in_one_go or ours(point.backend):
            return None
        if role not in alone:
            began = time.monotonic_ns()
            engine.decode(role, Budget(steps=1), ())
            alone[role] = time.monotonic_ns() - began
        return alone[role]

    def _memory_in_use(self, engine: EngineWorker, decoded: Decoded) -> MemoryUse | None:
        """After a block; None where the engine only pretends to decode."""
        if engine.facts().acceptance == "scripted":
            return None
        return self.memory.read(engine.pid, decoded.memory)

    def comes_again(self, round_: Round) -> bool:
        """True if a later round, in the other order, is still to run on the prompt set of `round_`."""
        return any(
            (r.prompt_set, r.index // PASS_ROUNDS) == (round_.prompt_set, round_.index // PASS_ROUNDS)
            and r.index > round_.index
            and not self.done(r)
            for r in self.plan.rounds_of(round_.point)
            if not r.warmup
        )

    def _show_logits(self, point: Point, worker: EngineWorker) -> None:
        """Sample the logits of every role, where the engine shows them. A server under load shows none."""
        if self.plan.scenarios[point.scenario].load is not None or not self.evidence.lacks_logits(point):
            return
        ids = self.prompts[point.key].measured[0].token_ids
        worker.prefill(ids, draft=any(r.speculative for r in self.plan.scenarios[point.scenario].roles))
        self.evidence.record_logits(point, worker, self.worker_generation)

    def _trace_point(self, point: Point, worker: EngineWorker) -> None:
        """Decode one untimed block of every role under a profiler, if the scenario checks the PERF_MODE invariants."""
        roles = [cell.role for cell in self._untraced(point)]
        if not roles:
            return
        scenario, ids = self.plan.scenarios[point.scenario], self.prompts[point.key].measured[0].token_ids
        longest = scenario.budget.longest(0)
        budget = Budget(steps=min(TRACED_STEPS, longest), ignore_eos=scenario.budget.ignore_eos)
        worker.prefill(ids, draft=any(role.speculative for role in roles))
        for role in roles:
            decoded, activity = worker.trace(role, budget)
            trace = BlockTrace(
                cell=Cell(point, role).key,
                prompt_set=0,
                worker_generation=self.worker_generation,
                source=source_of(activity, point.backend, scripted=worker.scripted),
                steps=len(decoded.step_ns) if activity.steps is None else activity.steps,
                tokens=decoded.tokens,
                kernels=activity.kernels,
                copies=activity.copies,
                calls=activity.calls,
                unseen=activity.unseen,
                partial=activity.partial,
                loop=activity.loop,
                findings=activity.findings,
                allowed=activity.allowed,
                notes=activity.notes,
                products=activity.products,
                launches=activity.launches,
                spans=self._spans(Cell(point, role), worker),
            )
            self.folder.append(trace)
            self.traces[trace.cell] = trace

    def _spans(self, cell: Cell, worker: EngineWorker) -> ShownSpans | None:
        """Cache spans and trees of drawn steps, of those that the cell's timed blocks on the first prompt set have."""
        steps = [len(b.step_ns) for b in self.blocks if b.cell == cell and b.prompt_set == 0 and not b.warmup]
        deep = min((SPAN_DEPTH, *steps)) if steps else 0
        drawn = sorted(UNFORESEEN.sample(range(deep), min(SPAN_STEPS, deep)))
        return worker.spans(cell.role, self.plan.scenarios[cell.point.scenario].budget, drawn) if drawn else None

    def _untraced(self, point: Point) -> list[Cell]:
        scenario = self.plan.scenarios[point.scenario]
        cells = [Cell(point, role) for role in scenario.roles] if scenario.perf_mode else []
        return [cell for cell in cells if cell.key not in self.traces]

    def record(self, block: Block) -> None:
        self.folder.append(block)
        self.blocks.append(block)
        if block.own_prefill and block.served is None:
            self._in_one_go.add(block.point.key)
        self.finished += 1
        self._ahead[block.point] -= 1
        self.progress(block, self.finished, self.finished + sum(self._ahead.values()))

    def done(self, round_: Round) -> bool:
        return whole_generation(self.blocks, round_) is not None


def source_of(activity: Activity, backend: str, *, scripted: bool) -> TraceSource:
    """Source of a traced block. `scripted`: the engine brought the trace. That a server's own profiler wrote it is
    believed of a back end that comes with specgate: a plug-in's word proves nothing.
    """
    if not scripted:
        return "profiler"
    return "server-profiler" if activity.server_profiler and ours(backend) else "engine"


def ours(backend: str) -> bool:
    """True if a back end comes with specgate."""
    return not plugins.from_outside("specgate.backends", [backend])


def open_request(
    plan: Plan, points: Sequence[Point], config: Config, logs: Path, prompts: Iterable[Prompts] = ()
) -> OpenRequest:
    """The request for one engine that can measure all of `points`, which share dtype, RoPE scaling, PERF_MODE,
    sampling and options. `prompts`: those of the points, whose chats it is told.
    """
    scenarios = [plan.scenarios[p.scenario] for p in points]
    if any(s.workload.format == EVERY_TURN for s in scenarios) and not isinstance(
        plugins.backend(points[0].backend), AnswersTurns
    ):
        raise UsageError(
            f"--format {EVERY_TURN}: back end {points[0].backend!r} answers no earlier turns",
            hint="a server's chat end point does",
        )
    first, steps = scenarios[0], {s.budget.steps for s in scenarios}
    return OpenRequest(
        pair=replace(config.pair, rope=first.rope_keys) if first.rope else config.pair,
        dtype=first.dtype,
        max_batch=max(p.batch for p in points),
        max_positions=max(positions_needed(s, p) for s, p in zip(scenarios, points, strict=True)),
        max_k=max(role.k for s in scenarios for role in s.roles),
        perf_mode=first.perf_mode,
        options=engine_options(config, first),
        baseline=any(s.baseline for s in scenarios),
        sampling=first.sampling,
        steps=steps.pop() if len(steps) == 1 else None,
        logs=logs,
        chats=tuple({chat.sha256: chat for of in prompts for chat in of.chats}.values()),
    )


def answer_timeout_s(plan: Plan, points: Sequence[Point]) -> float:
    """The longest time, in seconds, that one call of the engine for `points` may take."""
    return max(plan.scenarios[p.scenario].timeout_s for p in points)


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
