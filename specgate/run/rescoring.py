"""Ask a second engine what it thinks of a sample of the tokens that were emitted, after all timing.

The second engine is the policy's `checks.rescored_by`, by default the reference. It gets a process of its own and
computes with the dtype of the scenario. Where it cannot score, the journal gets the reason, and the report says that
the tokens are the engine's own word. A process that is ended, hangs or fails gets a second try, in a new one.

Along the texts it runs the pair's own draft, where the engine drafts chains with it and shows its cycles. Tokens that
it finds wrong, where they are few, it scores once more in float32 if the policy asks for that: its own rounding in a
shorter dtype may be what parts the two.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeVar

from specgate import plugins
from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.reduce import sound_blocks
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.tokens.rescoring import Draw, draws, in_doubt
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.hf.any_target import read_any_target
from specgate.contract import (
    Block,
    EngineFacts,
    Plan,
    Point,
    RescoredText,
    Rescoring,
    Score,
    SecondLook,
    TokenChecks,
)
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import Backend, OffersSampling, OpenRequest, StatesDraftOptions, StatesLogitOptions
from specgate.errors import BackendError, CheckpointError, OtherCode, SpecgateError, UsageError, WorkerLost
from specgate.files.config import Config
from specgate.files.journal import Journal
from specgate.files.run_folder import RunFolder
from specgate.planning.prompts import Prompts
from specgate.run.engine_process.launch import Launch
from specgate.run.watched_gpus import engine_options
from specgate.run.worker import EngineWorker
from specgate.sandbox.isolation import current

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of a point's texts. `undrafted`: why the draft was not run along them; None where it was."""

    texts: tuple[RescoredText, ...]
    undrafted: str | None


class SecondEngine:
    """The process of a second engine, started by `start` when it is first asked, and once more where it is lost."""

    def __init__(self, start: Callable[[], EngineWorker]) -> None:
        self._start = start
        self._worker: EngineWorker | None = None
        self.facts: EngineFacts | None = None

    def ask(self, question: Callable[[EngineWorker], T]) -> T:
        """Return the answer to `question`. Raises the error of a second process where the first one failed, too."""
        try:
            return question(self._running())
        except BackendError as error:
            if not failed(error):
                raise
            self.close()
            return question(self._running())

    def _running(self) -> EngineWorker:
        if self._worker is None:
            self._worker = self._start()
            self.facts = self._worker.facts()
        return self._worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


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
        pending = {p: blocks for p in points if p.key not in self.done and (blocks := self._sound(p, journal))}
        for _, group in groupby(pending, key=self._engine_key):
            self._score_points({p: pending[p] for p in group})

    def _sound(self, point: Point, journal: Journal) -> list[Block]:
        """The blocks of `point` that tokens are drawn from."""
        alone = replace(self.plan, rounds=tuple(self.plan.rounds_of(point)))
        blocks = whole_rounds(alone, [b for b in journal.blocks if b.point == point])
        check_facts = CheckFacts(self.engines, self.bandwidth)
        of_cells, _ = sound_blocks(alone, blocks, journal.margins, check_facts, texts=journal.texts)
        return [b for of_cell in of_cells.values() for b in of_cell]

    def _engine_key(self, point: Point) -> tuple[object, ...]:
        scenario, undrafted = self.plan.scenarios[point.scenario], self._why_undrafted(point)
        return scenario.dtype, scenario.rope, scenario.sampling, undrafted, tuple(self._options(point).items())

    def _score_points(self, pending: Mapping[Point, Sequence[Block]]) -> None:
        """Score points that one engine can score. Its first failure is the reason for all that are left."""
        why, lost, doubts = None, False, list[tuple[Rescoring, Point, list[Draw]]]()
        # Only now, when every token is there and no engine that emitted any is left.
        seeded = {
            p: (seed := secrets.token_hex(16), draws(seed, of, self.asked.positions)) for p, of in pending.items()
        }
        samples = {point: of for point, (_, of) in seeded.items()}
        undrafted = self._why_undrafted(next(iter(pending)))
        engine = SecondEngine(lambda: self._open(samples))
        try:
            for point, (seed, of) in seeded.items():
                began, scored = time.monotonic_ns(), Scored((), undrafted)
                try:
                    why = why or self.why_not(point)
                    if why is None:
                        scored = engine.ask(partial(self._score, point=point, samples=of, undrafted=undrafted))
                except OtherCode:
                    raise
                except SpecgateError as error:
                    why, lost = str(error), failed(error)
                facts = engine.facts
                rescoring = Rescoring(
                    point=point.key,
                    engine=self.asked.rescored_by or "none",
                    device=facts.device if facts else None,
                    dtype=facts.dtype if facts else None,
                    texts=scored.texts,
                    unscored=why,
                    span_ns=(began, time.monotonic_ns()),
                    seed=seed,
                    count=self.asked.positions,
                    lost=lost,
                    undrafted=scored.undrafted,
                )
                if doubted := self._in_doubt(rescoring, point, of):
                    doubts.append((rescoring, point, doubted))
                else:
                    self._store(rescoring)
        finally:
            engine.close()
        self._look_again(doubts)

    def _look_again(self, doubts: Sequence[tuple[Rescoring, Point, list[Draw]]]) -> None:
        """Score tokens in doubt in float32, and store what the first and the second look say of their points.

        The engine's first failure is the reason for all that are left.
        """
        why: str | None = None
        engine = SecondEngine(lambda: self._open({p: of for _, p, of in doubts}, self.asked.second_look))
        try:
            for rescoring, point, doubted in doubts:
                began, texts = time.monotonic_ns(), tuple[RescoredText, ...]()
                try:
                    if why is None:
                        texts = engine.ask(partial(self._score, point=point, samples=doubted, undrafted="")).texts
                except OtherCode:
                    raise
                except SpecgateError as error:
                    why = str(error)
                look = SecondLook(texts, why, (began, time.monotonic_ns()))
                self._store(replace(rescoring, again=look))
        finally:
            engine.close()

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

    def _why_undrafted(self, point: Point) -> str | None:
        """Reason that the pair's draft is not run along the texts of `point`; None where it is to be."""
        facts, backend = self.engines[point.key], plugins.backend(point.backend)
        if self.config.pair.draft is None:
            return "the pair has no draft"
        if self.plan.scenarios[point.scenario].sampling is not None:
            return "the tokens are drawn"
        if facts.acceptance not in (None, "real", "planted"):
            return f"what drafts is {facts.acceptance}"
        options = engine_options(self.config, self.plan.scenarios[point.scenario])
        others = set(backend.other_drafts) if isinstance(backend, StatesDraftOptions) else options.keys()
        if named := sorted(others & options.keys()):
            return f"option {named[0]} may draft otherwise than in chains of the pair's draft"
        return None

    def _open(self, pending: Mapping[Point, Sequence[Draw]], dtype: str | None = None) -> EngineWorker:
        """Start the second engine: with the pair's draft, where cycles are drawn and it can load it."""
        longest = max(p.context + max(len(t) for d in of for t in d.block.tokens) for p, of in pending.items())
        log = f"rescoring-{dtype}.log" if dtype else "rescoring.log"
        k = max((d.block.role.k for of in pending.values() for d in of if d.starts), default=0)
        point = next(iter(pending))
        if dtype is not None or self._why_undrafted(point) is not None:
            k = 0
        try:
            worker = self.opened(point, longest, log, dtype, k)
        except (WorkerLost, OtherCode):
            raise
        except SpecgateError:
            if not k:
                raise
            worker = self.opened(point, longest, log, dtype)
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

    def opened(self, point: Point, longest: int, log: str, dtype: str | None = None, k: int = 0) -> EngineWorker:
        """The second engine for points like `point`, for texts of at most `longest` tokens with their prompts.

        `dtype`: what it computes with in the place of the scenario's. `k`: the longest chain that it is to draft.
        """
        scenario = self.plan.scenarios[point.scenario]
        pair = replace(self.config.pair, rope=scenario.rope_keys) if scenario.rope else self.config.pair
        request = OpenRequest(
            pair=pair,
            dtype=dtype or scenario.dtype,
            max_batch=1,
            max_positions=longest,
            max_k=k,
            perf_mode=False,
            logs=self.folder.log(""),
            sampling=scenario.sampling,
            options=self._options(point, drafting=k > 0),
        )
        isolation = current()
        launch = Launch(sources=isolation.sources if isolation else None)
        worker = EngineWorker(self.asked.rescored_by, request, self.asked.within_s, self.folder.log(log), launch)
        if self.target_sha256 is not None and (loaded := worker.facts().target_sha256) != self.target_sha256:
            worker.close()
            what = f"back end {self.asked.rescored_by} loaded a target with the SHA-256 {loaded}"
            raise OtherCode(what, hint=f"before the first engine it was {self.target_sha256}: measure anew")
        return worker

    def _options(self, point: Point, *, drafting: bool = False) -> dict[str, str]:
        """The options that make the second engine's target, and when `drafting` its draft, those that were measured."""
        options_of_engine = engine_options(self.config, self.plan.scenarios[point.scenario])
        second = second_backend(self.asked) if self.asked and self.asked.rescored_by else None
        backends = [plugins.backend(point.backend), *([second] if second else [])]
        stated = [set(b.logit_options) if isinstance(b, StatesLogitOptions) else set[str]() for b in backends]
        if drafting:
            for names, b in zip(stated, backends, strict=True):
                names |= set(b.draft_options) if isinstance(b, StatesDraftOptions) else set[str]()
        return {name: value for name, value in options_of_engine.items() if all(name in options for options in stated)}

    def _score(self, worker: EngineWorker, *, point: Point, samples: Sequence[Draw], undrafted: str | None) -> Scored:
        """Score `samples` in as few passes as possible: one over each text that no other one begins with. Texts of the
        same prompt come one after the other. `undrafted`: why the draft is not run along them.
        """
        if undrafted is None and not any(draw.starts for draw in samples):
            undrafted = "the engine does not show its cycles"
        if undrafted is None and not worker.facts().has_draft:
            undrafted = f"back end {worker.facts().backend} cannot load the draft"
        passes: list[tuple[Draw, list[Draw]]] = []
        for draw in sorted(samples, key=lambda d: (d.place, -len(d.block.tokens[d.slot]))):
            covering = next((under for longest, under in passes if begins(longest, draw)), None)
            if covering is None:
                passes.append((draw, [draw]))
            else:
                covering.append(draw)
        texts: dict[int, RescoredText] = {}
        for longest, under in passes:
            prompt_set, prompt = longest.place
            ids = self.prompts[point.key].measured[prompt_set].token_ids[prompt]
            positions = sorted({p for draw in under for p in draw.positions})
            scores = worker.score(ids, longest.block.tokens[longest.slot], positions)
            if scores is None:
                raise UsageError(f"back end {worker.facts().backend} scores no tokens")
            if len(scores) != len(positions):
                raise BackendError(
                    f"back end {worker.facts().backend}: {len(scores)} scores of {len(positions)} tokens"
                )
            by_position, by_start = dict(zip(positions, scores, strict=True)), dict[int, int]()
            if undrafted is None:
                by_start, undrafted = drafted_along(worker, under)
            texts |= {id(draw): rescored(draw, by_position, by_start) for draw in under}
        ordered = tuple(texts[id(draw)] for draw in samples)
        if undrafted is not None:
            ordered = tuple(replace(text, starts=(), drafted=()) for text in ordered)
        return Scored(ordered, undrafted)

    def _store(self, rescoring: Rescoring) -> None:
        self.folder.append(rescoring)
        self.done[rescoring.point] = rescoring


def failed(error: SpecgateError) -> bool:
    """True if a second engine failed at what it can do: it was ended, hung, crashed or sent what cannot be read. Any
    other error says that it cannot score this pair here.
    """
    return isinstance(error, BackendError) and not isinstance(error, CheckpointError)


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
    if longer.place != shorter.place:
        return False
    text = shorter.block.tokens[shorter.slot]
    return longer.block.tokens[longer.slot][: len(text)] == text


def drafted_along(worker: EngineWorker, samples: Sequence[Draw]) -> tuple[dict[int, int], str | None]:
    """(start of a cycle → tokens that the draft has right there, why there are none), of the text scored last."""
    starts = sorted({start for draw in samples for start in draw.starts})
    if not starts:
        return {}, None
    try:
        counts = worker.drafted(starts, max(draw.block.role.k for draw in samples))
    except WorkerLost:
        raise
    except BackendError as error:
        return {}, error.message
    if counts is None:
        return {}, f"back end {worker.facts().backend} runs no draft along a text"
    return dict(zip(starts, counts, strict=True)), None


def rescored(draw: Draw, scores: Mapping[int, Score], drafted: Mapping[int, int]) -> RescoredText:
    """The answers to what was drawn of a text. A chain is no longer than the role's."""
    block, k = draw.block, draw.block.role.k
    starts = draw.starts if drafted else ()
    return RescoredText(
        *(block.cell.key, block.prompt_set, block.round, draw.slot, draw.positions, draw.tokens),
        scores=tuple(scores[p] for p in draw.positions),
        starts=starts,
        drafted=tuple(min(drafted[start], k) for start in starts),
    )
