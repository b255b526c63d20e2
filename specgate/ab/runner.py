"""The measuring loop of a comparison: processes in pairs, and blocks in groups A B B A.

Both builds are loaded side by side where memory allows. Otherwise the processes of a pair run one after the other, in
an order that was drawn. Either way a pair of processes gives one difference.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from specgate.ab.folder import AbFolder, Processes
from specgate.ab.one_build import check_origin, check_side, check_sides, origin_of
from specgate.ab.recording import device_bytes_in_use, most_host_bytes
from specgate.ab.schedule import AbbaGroup, ProcessPair, Visit, other
from specgate.analysis.tokens.comparison import first_difference
from specgate.checkpoints.parameters import least_weight_bytes
from specgate.contract import (
    Block,
    Budget,
    EngineFacts,
    Margin,
    NearTies,
    Plan,
    Point,
    Role,
    Round,
    TokenChecks,
    TopTokens,
)
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.two_builds import Process, SideName
from specgate.errors import BackendError, EnvironmentRefused
from specgate.files.journal import PointEngine
from specgate.machine.cpu_counters import CpuProbe
from specgate.planning.prompts import Prompts, PromptSet
from specgate.run.engine_process.launch import Launch
from specgate.run.point_blocks import timed_block
from specgate.run.progress import Silent
from specgate.run.runner import answer_timeout_s
from specgate.run.token_evidence import TokenEvidence
from specgate.run.watched_gpus import used_gpus
from specgate.run.worker import EngineWorker

WARM_UP_STEPS: Mapping[str, int] = {"gpu": 8, "cpu": 2}
"""Steps of each role that a fresh process decodes before it is measured. On a CPU no clock rises and nothing is
compiled, and a step takes as long as twenty of a GPU.
"""
WARM_UP_TOKENS = 4096
"""Tokens of each prompt that a fresh process prefills before it is measured: every kernel runs, and a prefill of 32K
tokens would take as long as five blocks.
"""
PREFILLED_NS: Mapping[str, int] = {"gpu": 1_000_000_000, "cpu": 2_000_000_000}
MOST_PREFILLS = 16
"""A visit prefills until that much time of the slower side is measured, by what its scenario needs, but no more often
than that. A prefill of 20 ms is mostly the host's noise, and on a busy host one of 190 took 340. On a CPU three of a
second differ between processes as much as steps do, by 3 to 4 %, and may differ by twice as much.
"""
Report = Callable[[Block, int, int, str], None]
"""Called with every finished block, the blocks done, those planned up to the next look, and the block's side."""


@dataclass(frozen=True, slots=True)
class SideSetup:
    """Set-up of one side. `plan` has its points under its own back end's name."""

    name: SideName
    backend: str
    options: Mapping[str, str]
    launch: Launch
    plan: Plan


@dataclass(slots=True)
class Running:
    """A process that is ready. `device_bytes`: the GPU memory that it has taken by the end of its first prefill."""

    worker: EngineWorker
    start_ns: int
    device_bytes: int | None
    prefilled: bool = False


class AbRunner:
    """Measures a schedule and journals every block at once.

    A folder may hold blocks of earlier process pairs already. `processes`: what was seen of those, and by and by of
    all. Only the very first pair may find that two processes do not fit beside each other.
    """

    def __init__(
        self,
        sides: Mapping[SideName, SideSetup],
        prompts: Mapping[str, Prompts],
        open_request_of: Callable[[SideSetup, Sequence[Point]], OpenRequest],
        folder: AbFolder,
        checks: TokenChecks | None,
        ties: NearTies,
        report: Silent,
        processes: Processes,
    ) -> None:
        self.sides, self.prompts, self.folder, self.report, self.total = sides, prompts, folder, report, 0
        self._request_of = open_request_of
        self.blocks: dict[SideName, list[Block]] = {name: side.lines(Block) for name, side in folder.sides.items()}
        self.engines: dict[SideName, dict[str, EngineFacts]] = {
            name: side.engines() for name, side in folder.sides.items()
        }
        self.evidence = {
            name: TokenEvidence(side.plan, folder.sides[name], self.blocks[name], self.engines[name], checks, ties)
            for name, side in sides.items()
        }
        self.processes, self.cpus = processes, CpuProbe()

    def run(self, pairs: Sequence[ProcessPair], total: int) -> None:
        """Measure all `pairs`. `total`: blocks that there will be then, of earlier pairs too.

        Raises BackendError or EnvironmentRefused that names the side where one cannot be measured, and UsageError where
        the two sides are not two builds over the same weights. Blocks that were measured before stay in the journals.
        """
        self.total = total
        for pair in pairs:
            self._run_pair(pair)
            self.folder.write_processes(self.processes)

    def _run_pair(self, pair: ProcessPair) -> None:
        if self.processes.beside:
            try:
                self._beside(pair)
                return
            except _NoRoom:
                # The second of two processes could not be loaded, the first is gone by now: one after the other.
                self.processes = replace(self.processes, beside=False)
        self._apart(pair)

    def _beside(self, pair: ProcessPair) -> None:
        running: dict[SideName, Running] = {}
        try:
            for name in (pair.first, other(pair.first)):
                try:
                    running[name] = self._start(name, pair)
                except BackendError:
                    if running and not self.processes.found:
                        raise _NoRoom from None
                    raise
            for visit in pair.visits:
                self._visit(visit, pair.number, running)
            self._note(pair, running)
        finally:
            close_all(process.worker for process in running.values())

    def _apart(self, pair: ProcessPair) -> None:
        for name in (pair.first, other(pair.first)):
            running = self._start(name, pair)
            try:
                for visit in pair.visits:
                    self._visit(visit, pair.number, {name: running})
                self._note(pair, {name: running})
            finally:
                running.worker.close()

    def _note(self, pair: ProcessPair, running: Mapping[SideName, Running]) -> None:
        """Keep what was seen of the processes, while they still run."""
        processes = [
            Process(
                side=name,
                number=pair.number,
                first=name == pair.first,
                start_ns=process.start_ns,
                device_bytes=process.device_bytes,
                host_bytes=most_host_bytes(process.worker.pid),
                origin=origin_of(process.worker),
            )
            for name, process in running.items()
        ]
        for process in processes:
            check_origin(process, self.processes.found)
        self.processes = replace(self.processes, found=(*self.processes.found, *processes))

    # ── a process ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, name: SideName, pair: ProcessPair) -> Running:
        """Start a process of one side, and warm it up. Raises the side's error with its name."""
        side, points = self.sides[name], [self._own(name, v.point) for v in pair.visits]
        folder, before, began = self.folder.sides[name], device_bytes_in_use(), time.monotonic_ns()
        with named(name):
            worker = EngineWorker(
                side.backend,
                self._request_of(side, points),
                answer_timeout_s(side.plan, points),
                folder.log(f"worker-{pair.number}.log"),
                side.launch,
            )
            start_ns = time.monotonic_ns() - began
            try:
                for point in dict.fromkeys(points):
                    self._register(name, point, worker.facts())
                self._warm_up(name, pair.visits[0], worker)
            except BaseException:
                worker.close()
                raise
        return Running(worker, start_ns, grown(before, device_bytes_in_use()))

    def _warm_up(self, name: SideName, visit: Visit, worker: EngineWorker) -> None:
        """Prefill the beginning of the first visit's prompts and decode a few steps of every role.

        The one that the visit begins with comes last: it may be the only one that is loaded then.
        """
        scenario = self.sides[name].plan.scenarios[visit.point.scenario]
        ids = [prompt[:WARM_UP_TOKENS] for prompt in self._ids(visit)]
        worker.prefill(ids, draft=any(q.role.speculative for q in visit.groups))
        most = WARM_UP_STEPS[scenario.needs]
        steps = min(most, scenario.budget.steps or scenario.budget.new_tokens or most)
        for role in reversed(scenario.roles):
            worker.decode(role, Budget(steps=steps, ignore_eos=scenario.budget.ignore_eos), ())

    def _register(self, name: SideName, point: Point, facts: EngineFacts) -> None:
        """Store the facts of the engine that measures `point`. Raises UsageError where the sides are not two builds
        over the same weights.
        """
        folder = self.folder.sides[name]
        side = self.sides[name]
        request = self._request_of(side, [point])
        gpus = max(1, len(used_gpus(side.backend, request.options)))
        counted = replace(facts, least_weight_bytes=least_weight_bytes(request.pair.target, gpus))
        before = self.engines[name].setdefault(point.key, counted)
        check_side(name, before, counted)
        if (theirs := next(iter(self.engines[other(name)].values()), None)) is not None:
            check_sides(name, counted, theirs)
        if before is counted:
            folder.append(PointEngine(point.key, counted))

    # ── a visit ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _visit(self, visit: Visit, number: int, running: Mapping[SideName, Running]) -> None:
        """Prefill one prompt set and run its ABBA groups, on all sides that have a process."""
        names = [name for name in (visit.first, other(visit.first)) if name in running]
        workers = {name: running[name].worker for name in names}
        shared = self._prefill(visit, running, names)
        self._settle(visit, workers)
        for count, group in enumerate(visit.groups):
            self._group(visit, group, earlier(visit.groups, count), number, workers, shared)
            if not group.role.speculative and self._micro(visit):
                # Each side has just decoded the baseline: its text goes on from there, which is cheaper than anew.
                for name in names:
                    with named(name):
                        self.evidence[name].extend_text(
                            self._own(name, visit.point), visit.prompt_set, workers[name], number
                        )
        for name in names:
            with named(name):
                self.evidence[name].gather(self._own(name, visit.point), visit.prompt_set, workers[name], number)
        with named(names[-1]):
            self._weigh_partings(visit, number, names[-1], workers[names[-1]])

    def _weigh_partings(self, visit: Visit, number: int, name: SideName, worker: EngineWorker) -> None:
        """Record how close the two largest logits of one side are wherever the texts of both sides part in this visit:
        another order of additions parts them at near ties alone.
        """
        ranked: dict[tuple[int, tuple[int, ...]], TopTokens | None] = {}
        for role in dict.fromkeys(q.role for q in visit.groups):
            mine, theirs = (self._first_block(side, visit, number, role) for side in (name, other(name)))
            if mine is None or theirs is None:
                continue
            for slot, texts in enumerate(zip(mine.tokens, theirs.tokens, strict=True)):
                if (at := first_difference(*texts)) is None:
                    continue
                place = slot, texts[0][:at]
                if place not in ranked:
                    ranked[place] = worker.ranked(*place, 2)
                if (top := ranked[place]) is not None:
                    where = mine.cell.key, visit.prompt_set, mine.round, slot, at
                    margin = Margin(*where, *top.values[:2])
                    self.folder.sides[name].append(margin)

    def _first_block(self, name: SideName, visit: Visit, number: int, role: Role) -> Block | None:
        """The first block of a role in this visit on one side, which may have ended before."""
        point = self._own(name, visit.point)
        of = (b for b in self.blocks[name] if b.worker_generation == number and b.role == role)
        return next((b for b in of if b.point == point and b.prompt_set == visit.prompt_set), None)

    def _prefill(
        self, visit: Visit, running: Mapping[SideName, Running], names: Sequence[SideName]
    ) -> dict[SideName, int]:
        """Prefill the visit's prompts on every side in turn, equally often. Returns the median nanoseconds of each."""
        draft, ids = any(q.role.speculative for q in visit.groups), self._ids(visit)
        taken: dict[SideName, list[int]] = {name: [] for name in names}
        for name in names:
            process, before = running[name], None if running[name].prefilled else device_bytes_in_use()
            with named(name):
                taken[name].append(process.worker.prefill(ids, draft=draft))
            if not process.prefilled and (more := grown(before, device_bytes_in_use())):
                process.device_bytes = (process.device_bytes or 0) + more
            process.prefilled = True
        slowest = max(ns for times in taken.values() for ns in times)
        enough = PREFILLED_NS[self.sides["old"].plan.scenarios[visit.point.scenario].needs]
        for more in range(more_prefills(slowest, enough) if self._micro(visit) else 0):
            for name in names if more % 2 else reversed(names):
                with named(name):
                    taken[name].append(running[name].worker.prefill(ids, draft=draft))
        return {name: round(statistics.median(times)) for name, times in taken.items()}

    def _micro(self, visit: Visit) -> bool:
        """True if all blocks of a visit share its prefill. A block of whole requests has its own."""
        return self.sides["old"].plan.scenarios[visit.point.scenario].kind == "micro"

    def _settle(self, visit: Visit, workers: Mapping[SideName, EngineWorker]) -> None:
        """Decode one untimed block on every side, since the first one after a prefill is slower on a GPU."""
        scenario = self.sides["old"].plan.scenarios[visit.point.scenario]
        for name, worker in workers.items() if self._micro(visit) and scenario.needs == "gpu" else ():
            with named(name):
                worker.decode(visit.groups[0].role, scenario.budget, ())

    def _group(
        self,
        visit: Visit,
        group: AbbaGroup,
        before: int,
        number: int,
        workers: Mapping[SideName, EngineWorker],
        shared: Mapping[SideName, int],
    ) -> None:
        """Four blocks of one role, two rounds of each side. `before`: groups of the role earlier in the visit."""
        taken = {"old": 0, "new": 0}
        for place, name in enumerate(group.order):
            index = visit.rounds + 2 * before + taken[name]
            taken[name] += 1
            if name not in workers:
                continue
            point, roles = self._own(name, visit.point), tuple(dict.fromkeys(q.role for q in visit.groups))
            round_ = Round(point, visit.prompt_set, index, roles, warmup=False)
            with named(name):
                idle = [worker.pid for other_name, worker in workers.items() if other_name != name]
                self._block(name, round_, group, place, number, workers[name], shared[name], idle)

    def _block(
        self,
        name: SideName,
        round_: Round,
        group: AbbaGroup,
        place: int,
        number: int,
        worker: EngineWorker,
        shared_ns: int,
        idle: Sequence[int],
    ) -> None:
        scenario = self.sides[name].plan.scenarios[round_.point.scenario]
        chosen = self._set_of(round_.point, round_.prompt_set)

        def ask() -> tuple[int, Decoded]:
            own, speculative = scenario.whole_requests, group.role.speculative
            prefill_ns = worker.prefill(chosen.token_ids, draft=speculative) if own else shared_ns
            return prefill_ns, worker.decode(group.role, scenario.budget, ())

        lengths = chosen.lengths if scenario.workload.own else ()
        block, _ = timed_block(round_, place, group.role, number, worker, self.cpus, ask, lengths, idle)
        self.folder.sides[name].append(block)
        self.blocks[name].append(block)
        self.report(block, sum(map(len, self.blocks.values())), self.total, name)

    def _own(self, name: SideName, point: Point) -> Point:
        """`point` as the plan of a side names it."""
        return replace(point, backend=self.sides[name].backend)

    def _ids(self, visit: Visit) -> Sequence[Sequence[int]]:
        return self._set_of(visit.point, visit.prompt_set).token_ids

    def _set_of(self, point: Point, prompt_set: int) -> PromptSet:
        prompts = self.prompts[replace(point, backend=self.sides["old"].backend).key]
        return prompts.measured[prompt_set]


def more_prefills(slowest_ns: int, enough_ns: int) -> int:
    """Number of further prefills of a visit whose first one took up to `slowest_ns`, until they last `enough_ns`. None
    where a prefill takes no time, as a server's, which is part of every request.
    """
    if slowest_ns <= 0:
        return 0
    return min(MOST_PREFILLS, -(-enough_ns // slowest_ns)) - 1


def grown(before: int | None, after: int | None) -> int | None:
    """By how many bytes a use has grown; None where it has not, or is not known."""
    return after - before if before is not None and after is not None and after > before else None


def close_all(workers: Iterable[EngineWorker]) -> None:
    """End processes, at the same time: each takes a second to give its memory back."""
    with ThreadPoolExecutor() as pool:
        for closing in [pool.submit(worker.close) for worker in workers]:
            closing.result()


class _NoRoom(Exception):
    """The second process of a pair could not be loaded beside the first."""


def earlier(groups: Sequence[AbbaGroup], count: int) -> int:
    """Number of the first `count` groups that have the role of the one after them."""
    return sum(q.role == groups[count].role for q in groups[:count])


@contextmanager
def named(side: SideName) -> Iterator[None]:
    """Within the body, errors of an engine say which side it is, and whose options would be right."""
    try:
        yield
    except (BackendError, EnvironmentRefused) as error:
        hint = error.hint and error.hint.replace("-o ", f"--{side} ")
        raise type(error)(f"{side}: {error.message}", hint=hint) from error


def blocks_of(pairs: Sequence[ProcessPair]) -> int:
    """Number of blocks in a schedule, on both sides together."""
    return sum(len(q.order) for pair in pairs for visit in pair.visits for q in visit.groups)
