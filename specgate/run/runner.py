"""The measuring loop: run a plan on an engine and append the blocks to the journal.

The loop itself draws and judges nothing. Between blocks it reports progress, and at the interim looks it asks whether
the point may stop early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from specgate import plugins
from specgate.analysis.load.level_search import needless_points
from specgate.analysis.machine.minutes import seconds_of
from specgate.analysis.stats import planned_interim_looks
from specgate.checkpoints.parameters import least_weight_bytes
from specgate.contract import (
    LEAST_BUDGET_S,
    BlockTrace,
    Budget,
    Cell,
    EngineFacts,
    EngineStart,
    Plan,
    Point,
    TimeEnd,
    TraceSource,
)
from specgate.contract.conditions import Sample
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import Activity, AnswersTurns, OpenRequest
from specgate.contract.samples.spans import ShownSpans
from specgate.contract.traces import Observed
from specgate.contract.types import fields_of
from specgate.errors import BackendError, UsageError
from specgate.files.config import Config
from specgate.files.journal import Journal, PointEngine
from specgate.files.run_folder import RunFolder
from specgate.machine.cpu_counters import CpuProbe
from specgate.machine.memory_in_use import MemoryProbe
from specgate.planning.gates import near_ties
from specgate.planning.plan import positions_needed
from specgate.planning.prompt_files.formats import EVERY_TURN
from specgate.planning.prompts import Prompts
from specgate.promotion.claim import engine_fingerprint
from specgate.run.drawing import Drawer
from specgate.run.early_stop import EARLIER_RUNS_S, Look
from specgate.run.point_blocks import BlockJournal, PointBlocks, RoleByRole, ours
from specgate.run.progress import Silent
from specgate.run.rescoring import Rescorer
from specgate.run.second_engine import SecondEngines
from specgate.run.token_evidence import UNFORESEEN, TokenEvidence
from specgate.run.watched_gpus import engine_options, scenario_gpus
from specgate.run.worker import EngineWorker

TRACED_STEPS = 16
"""Most steps of a traced block. All steps do the same work, and traces are large."""

SPAN_STEPS = 8
"""Drawn steps of a cell whose cache spans and trees are looked at."""
SPAN_DEPTH = 128
"""They are among so many first steps, because the run that shows them goes step by step."""

MayStop = Callable[[Point, Journal], Look]
"""Called at an interim look, which says whether the point may stop, because every rule that rests on samples is
decided.
"""
Sampling = Callable[[EngineFacts], str | None]
"""Called with the facts of a loaded engine: the green run after which texts need not be compared whole any more, or
None.
"""


Beside = Callable[[Sequence[str]], AbstractContextManager[None]]
"""Watches the GPUs with these UUIDs, and the host, while points are measured whose engines use them."""


def unwatched(gpus: Sequence[str]) -> AbstractContextManager[None]:
    return nullcontext()


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
        report: Silent,
        may_stop: MayStop = lambda point, journal: Look(0, decided=False),
        admit: Callable[[EngineFacts], None] = lambda facts: None,
        sampling: Sampling = lambda facts: None,
        bandwidth: Bandwidth | None = None,
        first_generation: int = 0,
    ) -> None:
        self.plan, self.prompts, self.config = plan, prompts, config
        self.folder, self.report = folder, report
        self.may_stop, self.admit, self.sampling = may_stop, admit, sampling
        self.journal, self.traces = BlockJournal(plan, folder, report), folder.keyed(BlockTrace)
        self.blocks, self.engines = self.journal.blocks, folder.engines()
        self.evidence = TokenEvidence(
            plan, folder, self.blocks, self.engines, config.policy.checks, near_ties(config.policy)
        )
        self.drawer = Drawer(plan, prompts, folder)
        self.second = SecondEngines(plan, config, folder, self.engines)
        self.rescorer = Rescorer(plan, prompts, folder, self.second, report.checking, bandwidth)
        watched = (s.worker_generation for s in folder.lines(Sample))
        self.worker_generation = max(
            (*(b.worker_generation for b in self.blocks), *watched), default=first_generation - 1
        )
        self.cpus, self.memory = CpuProbe(), MemoryProbe(())
        self.failures: dict[str, str] = {}
        self.todo = [p for p in plan.points if self._unfinished(p)]
        self.journal.ahead.update({p: self.journal.left(p, warmup=True) for p in self.todo})
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
        self.drawer.finish(self.second)
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
        missing = not all(map(self.journal.done, measured)) or self.evidence.wanting(point)
        return missing or self.drawer.wanting(point) or bool(self._untraced(point))

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
                    self.journal.ahead[point] = 0
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
        kind = RoleByRole if scenario.schedule.by_load else PointBlocks
        probes, looks = (self.cpus, self.memory), planned_interim_looks(scenario)
        prompts, generation = self.prompts[point.key], self.worker_generation
        blocks = kind(self.journal, self.evidence, probes, point, prompts, engine, generation)
        visits = blocks.visits()
        measured, self._only_earlier = 0, False
        for number, rounds in enumerate(visits, 1):
            if not rounds[0].warmup and self._start_s is None:
                self._start_s = (time.monotonic_ns() - self._opened_ns) / 1e9
            blocks.run(rounds)
            measured += sum(not r.warmup for r in rounds)
            look = self.may_stop(point, self._journal()) if measured in looks else None
            if look is not None:
                self._only_earlier = look.only_earlier
            goes_on = measured and number < len(visits) and not self.journal.done(visits[number][0])
            if scenario.schedule.by_load and self.journal.comes_again(rounds[-1]):
                continue  # what this load has measured counts once the other order has come, too
            if (look is not None and look.decided) or (goes_on and self._time_is_spent(point, measured)):
                self.journal.ahead[point] = 0
                if look is not None and look.decided:
                    self.report.refused(look)
                return
            if look is not None and goes_on and scenario.until_decided:
                self.journal.ahead[point] = self.journal.left(point)
                self.report.still_open(look, self._budget_s(point) - self._measured_s(point))

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
                spans=self._spans(Cell(point, role), worker),
                **fields_of(Observed, activity),
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


def source_of(activity: Activity, backend: str, *, scripted: bool) -> TraceSource:
    """Source of a traced block. `scripted`: the engine brought the trace. That a server's own profiler wrote it is
    believed of a back end that comes with specgate: a plug-in's word proves nothing.
    """
    if not scripted:
        return "profiler"
    return "server-profiler" if activity.server_profiler and ours(backend) else "engine"


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
