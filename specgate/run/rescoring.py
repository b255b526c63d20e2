"""Ask a second engine what it thinks of a sample of the tokens that were emitted, after all timing.

The second engine is the policy's `checks.rescored_by`, by default the reference. It gets a process of its own and
computes with the dtype of the scenario. Where it cannot score, the journal gets the reason, and the report says that
the tokens are the engine's own word. Tokens that it finds wrong, where they are few, it scores once more in float32 if
the policy asks for that: its own rounding in a shorter dtype may be what parts the two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from specgate import plugins
from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.reduce import Checked, measure, sound_blocks, to_be_scored
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.tokens.rescoring import Draw, in_doubt
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.hf.any_target import read_any_target
from specgate.contract import EngineFacts, Plan, Point, RescoredText, Rescoring, Score, SecondLook, TokenChecks
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import Backend, OffersSampling, OpenRequest, StatesLogitOptions
from specgate.errors import BackendError, CheckpointError, OtherCode, SpecgateError
from specgate.files.config import Config
from specgate.files.journal import Journal
from specgate.files.run_folder import RunFolder
from specgate.planning.gates import near_ties
from specgate.planning.prompts import Prompts
from specgate.run.engine_process.launch import Launch
from specgate.run.watched_gpus import engine_options
from specgate.run.worker import EngineWorker
from specgate.sandbox.isolation import current


class Rescorer:
    """Scores the points of a run and stores the answers in its folder. Points that have an answer are left out."""

    def __init__(
        self,
        plan: Plan,
        prompts: Mapping[str, Prompts],
        config: Config,
        folder: RunFolder,
        engines: Mapping[str, EngineFacts],
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.plan, self.prompts, self.config, self.folder, self.engines = plan, prompts, config, folder, engines
        self.bandwidth = bandwidth
        self.asked = config.policy.checks
        self.done = folder.keyed(Rescoring)
        self.target_sha256 = target_sha256(config) if current() and self.asked.rescored_by else None

    def run(self, points: Sequence[Point], journal: Journal) -> None:
        """Score `points`, whose blocks are all in `journal`. An engine that fails costs the scores, never the run."""
        pending = {p: draws for p in points if p.key not in self.done and (draws := self._draws(p, journal))}
        for _, group in groupby(pending, key=self._engine_key):
            self._score_points({p: pending[p] for p in group})

    def _draws(self, point: Point, journal: Journal) -> list[Draw]:
        """Tokens of `point` to be scored; [] if it has no sound block."""
        alone = replace(self.plan, rounds=tuple(self.plan.rounds_of(point)))
        blocks = whole_rounds(alone, [b for b in journal.blocks if b.point == point])
        records = Checked(journal.texts, asked=self.asked, run_id=self.folder.id, followed=journal.followed)
        ties = near_ties(self.config.policy)
        check_facts = CheckFacts(self.engines, self.bandwidth)
        _, comparisons = measure(
            alone, blocks, journal.margins, ties, records, forced=journal.forced, check_facts=check_facts
        )
        sound = [
            b for of_cell in sound_blocks(alone, blocks, journal.margins, check_facts)[0].values() for b in of_cell
        ]
        return to_be_scored(sound, comparisons, records) if sound else []

    def _engine_key(self, point: Point) -> tuple[object, ...]:
        scenario = self.plan.scenarios[point.scenario]
        return scenario.dtype, scenario.rope, scenario.sampling, tuple(self._options(point).items())

    def _score_points(self, pending: Mapping[Point, Sequence[Draw]]) -> None:
        """Score points that one engine can score. Its first failure is the reason for all that are left."""
        worker: EngineWorker | None = None
        why: str | None = None
        doubts: list[tuple[Rescoring, Point, list[Draw]]] = []
        try:
            for point, draws in pending.items():
                began, texts = time.monotonic_ns(), []
                try:
                    why = why or self.why_not(point)
                    if why is None:
                        worker = worker or self._open(pending)
                        texts = self._score(worker, point, draws)
                except OtherCode:
                    raise
                except SpecgateError as error:
                    why = str(error)
                rescoring = self._first_look(point, worker, texts, why, (began, time.monotonic_ns()))
                if doubted := self._in_doubt(rescoring, point, draws):
                    doubts.append((rescoring, point, doubted))
                else:
                    self._store(rescoring)
        finally:
            if worker is not None:
                worker.close()
        self._look_again(doubts)

    def _look_again(self, doubts: Sequence[tuple[Rescoring, Point, list[Draw]]]) -> None:
        """Score tokens in doubt in float32, and store what the first and the second look say of their points.

        The engine's first failure is the reason for all that are left.
        """
        worker: EngineWorker | None = None
        why: str | None = None
        try:
            for rescoring, point, doubted in doubts:
                began, texts = time.monotonic_ns(), []
                try:
                    if why is None:
                        worker = worker or self._open({p: draws for _, p, draws in doubts}, self.asked.second_look)
                        texts = self._score(worker, point, doubted)
                except OtherCode:
                    raise
                except SpecgateError as error:
                    why = str(error)
                look = SecondLook(tuple(texts), why, (began, time.monotonic_ns()))
                self._store(replace(rescoring, again=look))
        finally:
            if worker is not None:
                worker.close()

    def why_not(self, point: Point) -> str | None:
        """Reason that nothing of `point` can be scored, as far as that is known without loading an engine."""
        sampling = self.plan.scenarios[point.scenario].sampling
        if sampling is not None and sampling.method == "rejection":
            return "the tokens were drawn by rejection: another engine's draws need not be these"
        return self.why_not_opened(point)

    def why_not_opened(self, point: Point) -> str | None:
        """Reason that the second engine cannot be opened, or is not to be asked anything about `point`."""
        source = self.engines[point.key].acceptance
        if source == "forced":
            return "acceptance was forced: the tokens are wrong by design"
        if source == "scripted":
            return "the engine is scripted: it decodes nothing"
        if self.config.pair.weights == "server":
            return "the weights are on a server, and not on this machine"
        if not self.asked.rescored_by:
            return "the policy names no engine to score them"
        backend = second_backend(self.asked)
        if backend is None:
            return f"back end {self.asked.rescored_by} is not installed"
        available = backend.available()
        if not available.usable:
            return f"back end {self.asked.rescored_by} cannot run here: {available.reason}"
        if self.plan.scenarios[point.scenario].sampling is not None and not isinstance(backend, OffersSampling):
            return f"back end {self.asked.rescored_by} decodes greedily"
        return None

    def _open(self, pending: Mapping[Point, Sequence[Draw]], dtype: str | None = None) -> EngineWorker:
        longest = max(p.context + max(len(t) for d in draws for t in d.block.tokens) for p, draws in pending.items())
        log = f"rescoring-{dtype}.log" if dtype else "rescoring.log"
        worker = self.opened(next(iter(pending)), longest, log, dtype)
        if dtype is not None and worker.facts().dtype != dtype:
            worker.close()
            raise BackendError(f"back end {self.asked.rescored_by} computes in {worker.facts().dtype}, not in {dtype}")
        return worker

    def _in_doubt(self, rescoring: Rescoring, point: Point, draws: Sequence[Draw]) -> list[Draw]:
        """The tokens of `draws` that are worth a second look, none where the first was as good.

        With options that change the logits float32 knows no better: a cache in fewer bits has other codes then.
        """
        if not rescoring.texts or self.asked.second_look in ("none", rescoring.dtype) or self._options(point):
            return []
        return in_doubt(draws, rescoring.texts, self.asked)

    def opened(self, point: Point, longest: int, log: str, dtype: str | None = None) -> EngineWorker:
        """The second engine for points like `point`, for texts of at most `longest` tokens with their prompts.

        `dtype`: what it computes with in the place of the scenario's.
        """
        scenario = self.plan.scenarios[point.scenario]
        pair = replace(self.config.pair, rope=scenario.rope_keys) if scenario.rope else self.config.pair
        request = OpenRequest(
            pair=pair,
            dtype=dtype or scenario.dtype,
            max_batch=1,
            max_positions=longest,
            max_k=0,
            perf_mode=False,
            logs=self.folder.log(""),
            sampling=scenario.sampling,
            options=self._options(point),
        )
        isolation = current()
        launch = Launch(sources=isolation.sources if isolation else None)
        worker = EngineWorker(self.asked.rescored_by, request, self.asked.within_s, self.folder.log(log), launch)
        if self.target_sha256 is not None and (loaded := worker.facts().target_sha256) != self.target_sha256:
            worker.close()
            what = f"back end {self.asked.rescored_by} loaded a target with the SHA-256 {loaded}"
            raise OtherCode(what, hint=f"before the first engine it was {self.target_sha256}: measure anew")
        return worker

    def _options(self, point: Point) -> dict[str, str]:
        """The options that make the second engine's target the one that was measured."""
        options_of_engine = engine_options(self.config, self.plan.scenarios[point.scenario])
        second = second_backend(self.asked) if self.asked and self.asked.rescored_by else None
        backends = [plugins.backend(point.backend), *([second] if second else [])]
        stated = [set(b.logit_options) if isinstance(b, StatesLogitOptions) else set[str]() for b in backends]
        return {name: value for name, value in options_of_engine.items() if all(name in options for options in stated)}

    def _score(self, worker: EngineWorker, point: Point, draws: Sequence[Draw]) -> list[RescoredText]:
        """Score `draws` in as few passes as possible: one over each text that no other one begins with."""
        passes: list[tuple[Draw, list[Draw]]] = []
        for draw in sorted(draws, key=lambda d: len(d.block.tokens[d.slot]), reverse=True):
            covering = next((under for longest, under in passes if begins(longest, draw)), None)
            if covering is None:
                passes.append((draw, [draw]))
            else:
                covering.append(draw)
        scores: dict[int, dict[int, Score]] = {}
        for longest, under in passes:
            prompt = self.prompts[point.key].measured[longest.block.prompt_set].token_ids[longest.slot]
            positions = sorted({p for draw in under for p in draw.positions})
            new_scores = worker.score(prompt, longest.block.tokens[longest.slot], positions)
            if new_scores is None or len(new_scores) != len(positions):
                raise BackendError(f"back end {worker.facts().backend} scores no tokens")
            by_position = dict(zip(positions, new_scores, strict=True))
            scores |= {id(draw): by_position for draw in under}
        return [rescored(draw, scores[id(draw)]) for draw in draws]

    def _first_look(
        self,
        point: Point,
        worker: EngineWorker | None,
        texts: Sequence[RescoredText],
        why: str | None,
        span_ns: tuple[int, int],
    ) -> Rescoring:
        facts = worker.facts() if worker is not None else None
        device, dtype = (facts.device, facts.dtype) if facts else (None, None)
        return Rescoring(point.key, self.asked.rescored_by or "none", device, dtype, tuple(texts), why, span_ns)

    def _store(self, rescoring: Rescoring) -> None:
        self.folder.append(rescoring)
        self.done[rescoring.point] = rescoring


def target_sha256(config: Config) -> str | None:
    """SHA-256 that engines state of the pair's target; None of one that has no weights here."""
    if config.pair.weights == "server":
        return None
    try:
        return checkpoint_sha256(config.pair.target, read_any_target(config.pair.target).files)
    except CheckpointError:
        return None


def second_backend(checks: TokenChecks) -> Backend | None:
    """Return the back end that scores tokens. None if it is the default one and not installed: nobody asked for it."""
    default = checks.rescored_by == TokenChecks().rescored_by
    installed = checks.rescored_by in plugins.registered("specgate.backends")
    return None if default and not installed else plugins.backend(checks.rescored_by)


def begins(longer: Draw, shorter: Draw) -> bool:
    """True if the text of `longer` begins with that of `shorter`, after the same prompt."""
    if (longer.block.prompt_set, longer.slot) != (shorter.block.prompt_set, shorter.slot):
        return False
    text = shorter.block.tokens[shorter.slot]
    return longer.block.tokens[longer.slot][: len(text)] == text


def rescored(draw: Draw, scores: Mapping[int, Score]) -> RescoredText:
    block = draw.block
    new_scores = tuple(scores[p] for p in draw.positions)
    return RescoredText(
        block.cell.key, block.prompt_set, block.round, draw.slot, draw.positions, draw.tokens, new_scores
    )
