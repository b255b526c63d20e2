"""The second engine of a run: whether it can be asked about a point, what makes it decode as the measured one did, and
its process.

It is the policy's `checks.rescored_by`, by default the reference. A process that is ended, hangs or fails gets a second
try, in a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from specgate import plugins
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.hf.any_target import read_any_target
from specgate.contract import EngineFacts, Plan, Point, TokenChecks
from specgate.contract.protocols import Backend, OffersSampling, OpenRequest, StatesDraftOptions, StatesLogitOptions
from specgate.errors import BackendError, CheckpointError, OtherCode, SpecgateError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.run.engine_process.launch import Launch
from specgate.run.watched_gpus import engine_options
from specgate.run.worker import EngineWorker
from specgate.sandbox.isolation import current

T = TypeVar("T")


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


class SecondEngines:
    """Opens second engines for the points of a run. `engines`: point key → the engine that measured it."""

    def __init__(self, plan: Plan, config: Config, folder: RunFolder, engines: Mapping[str, EngineFacts]) -> None:
        self.plan, self.config, self.folder, self.engines = plan, config, folder, engines
        self.checks, self.name = config.policy.checks, config.policy.checks.rescored_by
        self.target_sha256 = target_sha256(config) if current() and self.name else None

    def why_not(self, point: Point) -> str | None:
        """Reason that the second engine cannot be opened, or is not to be asked anything about `point`."""
        source = self.engines[point.key].acceptance
        if source == "forced":
            return "acceptance was forced: the tokens are wrong by design"
        if source == "scripted":
            return "the engine is scripted: it decodes nothing"
        if self.config.pair.weights == "server":
            return "the weights are on a server, and not on this machine"
        if not self.name:
            return "the policy names no engine to score them"
        backend = second_backend(self.checks)
        if backend is None:
            return f"back end {self.name} is not installed"
        available = backend.available()
        if not available.usable:
            return f"back end {self.name} cannot run here: {available.reason}"
        if self.plan.scenarios[point.scenario].sampling is not None and not isinstance(backend, OffersSampling):
            return f"back end {self.name} decodes greedily"
        return None

    def why_undrafted(self, point: Point) -> str | None:
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

    def key(self, point: Point) -> tuple[object, ...]:
        """What points have in common that one engine can be asked about."""
        scenario, undrafted = self.plan.scenarios[point.scenario], self.why_undrafted(point)
        return (
            self.number_format(point),
            scenario.rope,
            scenario.sampling,
            undrafted,
            tuple(self.options(point).items()),
        )

    def opened(self, point: Point, longest: int, log: str, dtype: str | None = None, k: int = 0) -> EngineWorker:
        """The second engine for points like `point`, for texts of at most `longest` tokens with their prompts.

        `dtype`: a number format in the place of the measured engine's. `k`: the longest chain that it is to draft.
        """
        scenario = self.plan.scenarios[point.scenario]
        pair = replace(self.config.pair, rope=scenario.rope_keys) if scenario.rope else self.config.pair
        request = OpenRequest(
            pair=pair,
            dtype=dtype or self.number_format(point),
            max_batch=1,
            max_positions=longest,
            max_k=k,
            perf_mode=False,
            logs=self.folder.log(""),
            sampling=scenario.sampling,
            options=self.options(point, drafting=k > 0),
        )
        isolation = current()
        launch = Launch(sources=isolation.sources if isolation else None)
        worker = EngineWorker(self.name, request, self.checks.within_s, self.folder.log(log), launch)
        if self.target_sha256 is not None and (loaded := worker.facts().target_sha256) != self.target_sha256:
            worker.close()
            what = f"back end {self.name} loaded a target with the SHA-256 {loaded}"
            raise OtherCode(what, hint=f"before the first engine it was {self.target_sha256}: measure anew")
        return worker

    def number_format(self, point: Point) -> str:
        """The number format of the engine that measured `point`. The second engine computes in the same."""
        return self.engines[point.key].computes_in(self.plan.scenarios[point.scenario].dtype)

    def options(self, point: Point, *, drafting: bool = False) -> dict[str, str]:
        """The options that make the second engine's target, and when `drafting` its draft, those that were measured."""
        options_of_engine = engine_options(self.config, self.plan.scenarios[point.scenario])
        second = second_backend(self.checks) if self.name else None
        backends = [plugins.backend(point.backend), *([second] if second else [])]
        stated = [set(b.logit_options) if isinstance(b, StatesLogitOptions) else set[str]() for b in backends]
        if drafting:
            for names, b in zip(stated, backends, strict=True):
                names |= set(b.draft_options) if isinstance(b, StatesDraftOptions) else set[str]()
        return {name: value for name, value in options_of_engine.items() if all(name in options for options in stated)}


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
