"""The one measuring loop: plan → worker → blocks in the journal.

Per prompt set: prefill once, then rounds of blocks, baseline and spec interleaved, every block from the identical
state. (A full run prefills anew before every block, since whole requests are its question.) Nothing is drawn or
judged here; progress is reported between blocks only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from specgate.api import Decoded, Engine, OpenRequest
from specgate.comparison import find_divergences
from specgate.core import Block, EngineFacts, Finish, Margin, Plan, Point, Role, Round, Scenario
from specgate.errors import BackendError
from specgate.plan import positions_needed
from specgate.store import Config, RunFolder
from specgate.worker import EngineWorker
from specgate.workload import Prompts

Progress = Callable[[Block, int, int], None]


@dataclass(slots=True)
class Outcome:
    """What the loop leaves beside the journal."""

    engines: dict[str, EngineFacts]
    failures: dict[str, str]


class Runner:
    """Runs a plan into a run folder; rounds that the journal already holds are not run again."""

    def __init__(
        self, plan: Plan, prompts: Mapping[str, Prompts], config: Config, folder: RunFolder, progress: Progress
    ) -> None:
        self.plan, self.prompts, self.config = plan, prompts, config
        self.folder, self.progress = folder, progress
        self.blocks = folder.blocks()
        self.session = max((b.session for b in self.blocks), default=-1)
        self.total = sum(len(r.order) for r in plan.rounds)
        self.finished = len(whole_rounds(plan, self.blocks))
        self.outcome = Outcome({}, {})

    def run(self) -> Outcome:
        """Run what is missing. A failed point is recorded, the next one gets a fresh engine; other errors propagate."""
        todo = [p for p in self.plan.points if not all(map(self._done, self.plan.rounds_of(p)))]
        for _, points in groupby(todo, key=self._engine_key):
            self._run_points(list(points))
        return self.outcome

    def _engine_key(self, point: Point) -> tuple[object, ...]:
        """Points with equal keys share one engine process."""
        scenario = self.plan.scenarios[point.scenario]
        return point.backend, scenario.dtype, scenario.rope and tuple(sorted(scenario.rope.items())), scenario.perf_mode

    def _run_points(self, points: Sequence[Point]) -> None:
        worker: EngineWorker | None = None
        try:
            for point in points:
                try:
                    worker = worker or self._open(points)
                    self._run_point(point, worker)
                except BackendError as error:
                    self.outcome.failures[point.key] = str(error)
                    if worker is not None:
                        worker.close()
                    worker = None
        finally:
            if worker is not None:
                worker.close()

    def _open(self, points: Sequence[Point]) -> EngineWorker:
        scenarios = [self.plan.scenarios[p.scenario] for p in points]
        first = scenarios[0]
        request = OpenRequest(
            pair=replace(self.config.pair, rope=first.rope) if first.rope else self.config.pair,
            dtype=first.dtype,
            max_batch=max(p.batch for p in points),
            max_positions=max(positions_needed(s, p) for s, p in zip(scenarios, points, strict=True)),
            max_k=max(role.k for s in scenarios for role in s.roles),
            perf_mode=first.perf_mode,
            options=self.config.options,
        )
        self.session += 1
        log = self.folder.log(f"worker-{self.session}.log")
        worker = EngineWorker(points[0].backend, request, max(s.timeout_s for s in scenarios), log)
        for point in points:
            self.outcome.engines[point.key] = worker.facts()
        return worker

    def _run_point(self, point: Point, engine: EngineWorker) -> None:
        scenario = self.plan.scenarios[point.scenario]
        prompts = self.prompts[point.key]
        for _, rounds in groupby(self.plan.rounds_of(point), key=lambda r: (r.warmup, r.prompt_set)):
            self._run_prompt_set(scenario, point, list(rounds), prompts, engine)

    def _run_prompt_set(
        self, scenario: Scenario, point: Point, rounds: Sequence[Round], prompts: Prompts, engine: Engine
    ) -> None:
        todo = [r for r in rounds if not self._done(r)]
        if not todo:
            return
        sets = prompts.warmup if todo[0].warmup else prompts.measured
        ids = sets[todo[0].prompt_set].token_ids
        shared_ns = engine.prefill(ids, draft=any(r.speculative for r in scenario.roles))
        for round_ in todo:
            for slot, role in enumerate(round_.order):
                own = scenario.kind == "full"
                prefill_ns = engine.prefill(ids, draft=role.speculative) if own else shared_ns
                decoded = engine.decode(role, scenario.budget, ())
                self._record(make_block(round_, slot, role, self.session, prefill_ns, decoded))
        if not todo[0].warmup:
            self._explain(point, todo[0].prompt_set, engine)

    def _record(self, block: Block) -> None:
        self.folder.append(block)
        self.blocks.append(block)
        self.finished += 1
        self.progress(block, self.finished, self.total)

    def _done(self, round_: Round) -> bool:
        return whole_session(self.blocks, round_) is not None

    def _explain(self, point: Point, prompt_set: int, engine: Engine) -> None:
        """Ask the engine for the top-2 margin wherever a spec block left the baseline, while the prompts are still
        cached.
        """
        blocks = [b for b in self.blocks if b.point == point and b.prompt_set == prompt_set and not b.warmup]
        for cell, d, baseline in find_divergences(blocks):
            top1, top2 = engine.top2(d.slot, baseline.tokens[d.slot][: d.position])
            self.folder.append_margin(Margin(cell.key, d.prompt_set, d.round, d.slot, d.position, top1, top2))


def whole_session(blocks: Sequence[Block], round_: Round) -> int | None:
    """The session that ran every role of `round_`; None where none did. A pair must come from one process."""
    found = {(b.role, b.session) for b in blocks if in_round(b, round_)}
    return next((s for _, s in sorted(found) if all((role, s) in found for role in round_.order)), None)


def whole_rounds(plan: Plan, blocks: Sequence[Block]) -> list[Block]:
    """The blocks that may be judged: of every round that one process ran whole, in plan order."""
    kept = []
    for round_ in plan.rounds:
        session = whole_session(blocks, round_)
        kept += [b for b in blocks if in_round(b, round_) and b.session == session]
    return kept


def in_round(block: Block, round_: Round) -> bool:
    return (block.point, block.prompt_set, block.round, block.warmup) == (
        round_.point,
        round_.prompt_set,
        round_.index,
        round_.warmup,
    )


def make_block(round_: Round, slot: int, role: Role, session: int, prefill_ns: int, decoded: Decoded) -> Block:
    return Block(
        point=round_.point,
        role=role,
        prompt_set=round_.prompt_set,
        round=round_.index,
        slot=slot,
        warmup=round_.warmup,
        session=session,
        prefill_ns=prefill_ns,
        elapsed_ns=decoded.elapsed_ns,
        step_ns=decoded.step_ns,
        tokens=decoded.tokens,
        accepted=decoded.accepted,
        drafted=decoded.drafted,
        truncated=decoded.truncated,
        finish=tuple(Finish(f) for f in decoded.finish),
        counters=decoded.counters,
        phase_ns=decoded.phase_ns,
    )
