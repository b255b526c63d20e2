"""Request → Config: what a command line means on this machine, or what an earlier run has fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specgate import plugins
from specgate.contract import Machine, PairRef, Point, Policy, RunKind, Scenario, TimeEnd, tape
from specgate.contract.protocols import (
    Backend,
    ChecksOptions,
    ChecksSampling,
    DrivesAnotherEngine,
    HasUsualPair,
    OffersLoad,
    OffersSampling,
    StatesDraftOptions,
)
from specgate.contract.types import REPEATS
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.pairs.resolve import DEMO, refuse_two_names, resolve_pair, served_pair, target_limits
from specgate.planning.ad_hoc import MOST_SETS, Question, asked, stretched
from specgate.planning.contradictions import check_plan
from specgate.planning.defaults import machine_size, policy_of
from specgate.planning.forced_acceptance import OPTION as FORCED
from specgate.planning.forced_acceptance import forced_of
from specgate.planning.gates import explored
from specgate.planning.plan import room_needed
from specgate.planning.prompt_files.choosing import OwnPrompts
from specgate.planning.prompts import RANDOM, Prompts, build_prompts
from specgate.planning.request import Request
from specgate.planning.rule_names import with_elsewhere
from specgate.planning.scenario import meant_for, override, refuse_double_options, select

FIXED_BY_A_RUN = (
    "backend", "scenarios", "only", "policy", "pair", "target", "draft", "tokenizer", "warmup_runs", "perf_mode",
    "options",
)  # fmt: skip
"""Fields of a request that cannot be given together with `--resume`. With more rounds or time, a run goes on longer
(`continued`).
"""


def resolve(
    request: Request, *, foreign: bool = False, usual: Callable[[Policy], Sequence[str]] | None = None
) -> Config:
    """Return the configuration of a new run.

    `foreign`: the engine runs in an environment of its own, which alone knows whether its back end can run and what its
    options mean. `usual`: names the scenarios of a request that names none and has no question; without it those that
    this machine runs.

    Raises UsageError where a name or option is wrong, and EnvironmentRefused where the back end cannot run here or a
    scenario needs a GPU and there is none.
    """
    if (forced := forced_of(request)) is not None:
        request = replace(request, options={**request.options, FORCED: forced.option})
    size = machine_size()
    backend = request.backend if request.backend and foreign else usable_backend(request)
    if usual and not request.scenarios and not request.question:
        request = replace(request, scenarios=usual(policy_of(request, known_backend(backend))))
    meant = meant_for(backend, chosen_scenarios(request.question, request.scenarios, request.only, request.kind, size))
    chosen = as_requested(meant, request, backend)
    if forced is not None:
        forced.check(chosen)
    if not foreign:
        refuse_without_sampling(backend, chosen)
        check_options(backend, chosen, request.options)
    pair = chosen_pair(request, chosen, backend)
    if request.question and not names_scenarios(request.scenarios, request.only):
        chosen = [stretched(scenario, pair) for scenario in chosen]
    named = any((request.target, request.pair, request.tokenizer))
    other_target = named or (pair.name != DEMO and {s.pair for s in chosen} == {DEMO})
    chosen = fitted(chosen, pair, other_target=other_target, backend=backend, most_sets=open_sets(request))
    chosen = one_role_at_a_time(chosen, backend, request.options)
    policy = with_elsewhere(policy_of(request, known_backend(backend), chosen), chosen)
    return Config(
        kind=request.kind,
        backend=backend,
        pair=pair,
        policy=explored(policy) if request.explore else policy,
        scenarios={s.name: s for s in chosen},
        options=request.options,
    )


def as_requested(scenarios: Sequence[Scenario], request: Request, backend: str) -> list[Scenario]:
    """The scenarios with the rounds and roles of the command line. Raises UsageError where the engine takes none of
    its roles away, and as `override` does.
    """
    if not request.baseline and another_engine(backend) is None:
        raise UsageError(
            f"--no-baseline with back end {backend}: it runs the baseline by itself",
            hint="leave it out; it is for one server with speculation on, which is measured by itself",
        )
    return [
        override(
            scenario,
            warmup_runs=request.warmup_runs,
            measurement_runs=request.measurement_runs,
            budget_s=request.budget,
            perf_mode=request.perf_mode,
            baseline=request.baseline,
        )
        for scenario in scenarios
    ]


def chosen_scenarios(
    question: Question, names: Sequence[str], only: str | None, kind: RunKind | None, machine: Machine
) -> list[Scenario]:
    """The scenarios that a command line means: those that it names, changed by what it asks; a small one of its own
    where it asks and names none.
    """
    named = None if question and not names_scenarios(names, only) else select(names, only, kind, machine)
    return asked(question, named, kind or "micro", machine)


def one_role_at_a_time(scenarios: Sequence[Scenario], backend: str, options: Mapping[str, str]) -> list[Scenario]:
    """The scenarios, those measured load by load whose engine holds one role at a time (`servers=apart`). Servers that
    run already are loaded by nobody, and a server under load has blocks of its own length.
    """

    def by_load(scenario: Scenario) -> bool:
        engine, every = another_engine(backend), {**options, **scenario.options}
        attached = engine is not None and engine.attaches(every)
        return every.get("servers") == "apart" and not attached and scenario.load is None

    return [replace(s, schedule=replace(s.schedule, by_load=by_load(s))) for s in scenarios]


def names_scenarios(names: Sequence[str], only: str | None) -> bool:
    """Return whether the command line says which scenarios it means."""
    return bool(names) or only is not None


def usable_backend(request: Request) -> str:
    """The name of the back end that the command line names, else of the best one, which can run here and takes the
    options.
    """
    backend = plugins.backend(request.backend) if request.backend else plugins.default_backend()
    if request.kind == "load":
        refuse_without_load(backend)
    availability = backend.available()
    if not availability.usable:
        raise EnvironmentRefused(f"back end {backend.name!r} cannot run here: {availability.reason}")
    if isinstance(backend, ChecksOptions):
        backend.check_options(request.options)
    return backend.name


def check_options(backend: str, scenarios: Sequence[Scenario], options: Mapping[str, str]) -> None:
    """Raise UsageError where a scenario and the command line set one option, or the back end refuses a scenario's, or
    if a tape that is to be replayed cannot be read.
    """
    refuse_double_options(scenarios, options)
    plugin = plugins.backend(backend)
    for scenario in scenarios:
        if scenario.options and isinstance(plugin, ChecksOptions):
            plugin.check_options({**options, **scenario.options})
    if isinstance(plugin, StatesDraftOptions) and tape.OPTION in plugin.other_drafts:
        named = (of.get(tape.OPTION) for of in (options, *(scenario.options for scenario in scenarios)))
        for file in dict.fromkeys(filter(None, named)):
            tape.Tape.load(Path(file))


def refuse_without_load(backend: Backend) -> None:
    """Raise UsageError for a back end whose engines take no requests while others run."""
    if not isinstance(backend, OffersLoad):
        raise UsageError(
            f"back end {backend.name!r} takes no requests while others run, so it cannot be put under load",
            hint="name a server's: --backend vllm, sglang, trtllm, lmdeploy or llamacpp",
        )


def refuse_without_sampling(backend: str, scenarios: Sequence[Scenario]) -> None:
    """Raise UsageError where a scenario samples and the back end of that name decodes greedily, or cannot sample so."""
    asking = [(s.name, s.sampling) for s in scenarios if s.sampling is not None]
    if not asking:
        return
    plugin = plugins.backend(backend)
    if not isinstance(plugin, OffersSampling):
        raise UsageError(
            f"scenario {asking[0][0]}: sampling: back end {backend!r} decodes greedily",
            hint="--backend reference and cupy sample, and so do servers; or leave sampling out of the scenario",
        )
    if isinstance(plugin, ChecksSampling):
        for name, sampling in asking:
            plugin.check_sampling(sampling, f"scenario {name}: sampling")


def another_engine(backend: str) -> DrivesAnotherEngine | None:
    """The back end of that name where it drives somebody else's engine; None for others, and for one that only another
    environment knows.
    """
    plugin = known_backend(backend)
    return plugin if isinstance(plugin, DrivesAnotherEngine) else None


def known_backend(name: str) -> object:
    """Return the back end of that name; None if only another environment knows it."""
    return plugins.backend(name) if name in plugins.registered("specgate.backends") else None


def chosen_pair(request: Request, scenarios: Sequence[Scenario], backend: str) -> PairRef:
    """Return the pair that the command line names, else the one that the scenarios name. If neither names one, a back
    end without weights has a pair of its own.

    Raises UsageError where the scenarios name several pairs, or the command line names two. A server that runs already
    serves what it serves, so that there the command line has to name it.
    """
    refuse_two_names(request.pair, request.target, request.draft, request.tokenizer)
    engine = another_engine(backend)
    attached = engine is not None and engine.attaches(request.options)
    if request.tokenizer is not None:
        if not attached:
            hint = "for other engines: --target and --draft; for a server that runs: -o url=URL"
            raise UsageError(f"--tokenizer with back end {backend}, and no server that runs already", hint=hint)
        return served_pair(request.tokenizer)
    if attached and not (request.pair or request.target or request.draft):
        raise UsageError(
            f"back end {backend}: a server that runs already, and nothing says what it serves",
            hint="--tokenizer FILE|DIR, the tokenizer of its target; or, where its weights are on this machine too, "
            "--pair or --target and --draft",
        )
    if request.pair is not None:
        return resolve_pair(request.pair, None, None)
    names, plugin = {s.pair for s in scenarios} or {DEMO}, known_backend(backend)
    if names == {DEMO} and not (request.target or request.draft) and isinstance(plugin, HasUsualPair):
        return plugin.usual_pair()
    if len(names) > 1 and request.target is None:
        raise UsageError(f"scenarios of several pairs in one run: {', '.join(sorted(names))}", hint="run them apart")
    return resolve_pair(names.pop(), request.target, request.draft, needs_draft=engine is None)


def read_back(request: Request) -> Config:
    """The configuration of the run to be continued. Raises UsageError for options that the run has fixed."""
    assert request.resume is not None
    fixed = [name for name in FIXED_BY_A_RUN if getattr(request, name) not in (None, (), {})]
    fixed = [*fixed, *([] if request.baseline else ["no_baseline"]), *(["explore"] if request.explore else [])]
    if fixed or request.question:
        names = ("--" + name.removesuffix("s").replace("_", "-") for name in fixed)
        options = ", ".join((*names, *request.question.options()))
        raise UsageError(f"--resume with {options}", hint="the run's own config.resolved.yaml says what it measures")
    folder = RunFolder.open(request.resume)
    config = folder.read_config()
    if config.kind != request.kind:
        hint = f"continue it with specgate {config.kind} --resume"
        raise UsageError(f"{request.resume} is a {config.kind} run", hint=hint)
    backend = plugins.backend(config.backend)
    if isinstance(backend, ChecksOptions):
        backend.check_options(config.options)  # it also learns which credentials are to be masked
    if request.measurement_runs is None and request.budget is None:
        return config
    ends = folder.lines(TimeEnd)
    measured = min((end.seconds for end in ends), default=0.0)
    if request.budget is not None and request.budget <= measured:
        problem = f"--budget {request.budget:g}s: {measured:.0f} s of measuring were spent on a point already"
        raise UsageError(problem, hint="the budget counts from the first block on: give more than that")
    return continued(config, request.measurement_runs, request.budget)


def continued(config: Config, rounds: int | None, budget_s: float | None = None) -> Config:
    """The configuration of a run that goes on to `rounds` rounds per prompt set, or with `budget_s` seconds of
    measuring per point. The ends of its plans so far are kept.

    Raises UsageError where a scenario has as many rounds already, or is measured in the other way.
    """
    longer = {}
    for name, old in config.scenarios.items():
        if old.until_decided != (rounds is None):
            way, option = ("until it is decided", "budget") if old.until_decided else ("in rounds", "measurement-runs")
            raise UsageError(f"{name}: a point of it is measured {way}", hint=f"continue it with --{option}")
        more = override(old, measurement_runs=rounds, budget_s=budget_s)
        if rounds is not None:
            if rounds <= old.schedule.rounds:
                problem = f"{name}: {old.schedule.rounds} rounds per prompt set are planned, and {rounds} are asked for"
                raise UsageError(problem, hint="a run can only be continued with more of them")
            extended = (*old.schedule.extended, old.schedule.rounds)
            more = replace(more, schedule=replace(more.schedule, extended=extended))
        longer[name] = more
    return replace(config, scenarios=longer)


def open_sets(request: Request) -> int | None:
    """Most prompt sets of the request's file that are measured; None where their number is fixed."""
    question = request.question
    if question.all_prompts:
        return REPEATS
    if question.prompts is None or question.prompt_sets is not None or names_scenarios(request.scenarios, request.only):
        return None
    return MOST_SETS


def fitted(
    scenarios: Sequence[Scenario], pair: PairRef, *, other_target: bool, backend: str, most_sets: int | None = None
) -> list[Scenario]:
    """The scenarios as they run on `pair` with the back end of that name. With `other_target` the command line named
    the target, not the scenarios. `most_sets`: see `settled`.
    """
    if other_target:
        # A scenario's RoPE scaling is meant for the pair that the scenario names. Another target has its own.
        scenarios = [replace(s, rope=None) for s in scenarios]
    if pair.acceptance == "planted":
        # Text has no meaning for a planted pair, and the pair has no tokenizer. A user's own prompts stay: token ids
        # have the meaning that the user gives them.
        scenarios = [
            s if s.workload.own else replace(s, workload=replace(s.workload, source=RANDOM)) for s in scenarios
        ]
    others = another_engine(backend) is not None
    return [settled(s, pair, any_architecture=others, most_sets=most_sets) for s in scenarios]


def settled(
    scenario: Scenario, pair: PairRef, *, any_architecture: bool = False, most_sets: int | None = None
) -> Scenario:
    """The scenario with the length of its longest prompt as its context, where prompts from a file keep their lengths.

    `any_architecture`: as in `target_limits`. `most_sets`: measure as many prompt sets as the file has, up to so many;
    None: those that the scenario says. Raises UsageError where the longest prompt, with the tokens that follow it, is
    longer than the pair allows.
    """
    if not scenario.workload.own or (scenario.grid.context and most_sets is None):
        return scenario
    positions, vocab = target_limits(pair, scenario.rope_keys, any_architecture=any_architecture)
    own = OwnPrompts(scenario, tokenizer_of(pair), vocab)
    if most_sets is not None:
        scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=own.sets(most_sets)))
        own.scenario = scenario
        check_plan([scenario])
    if scenario.grid.context:
        return scenario
    if own.trace is not None and scenario.load is not None and not scenario.load.rates:
        scenario = replace(scenario, load=replace(scenario.load, rates=(float(f"{own.trace.rate:.4g}"),)))
        own.scenario = scenario
    longest = own.draw(0, None, scenario.set_sizes[-1]).longest
    tokens, room = len(longest.token_ids), room_needed(scenario)
    if positions is not None and tokens + room > positions:
        right = f"max_tokens: {positions - room}" if positions > room else f"fewer than {room} tokens after the prompt"
        raise UsageError(
            f"{longest.entry.where}: a prompt of {tokens} tokens; with {room} positions for the answer it needs "
            f"{tokens + room}, and pair {pair.name!r} has {positions}",
            hint=f"right would be {right}, which leaves longer prompts out (on the command line: --context)",
        )
    return replace(scenario, grid=replace(scenario.grid, context=(tokens,)))


def prompts_of(scenario: Scenario, point: Point, pair: PairRef, *, any_architecture: bool = False) -> Prompts:
    """The prompts of one point of the scenario on `pair`. Raises what `build_prompts` raises."""
    _, vocab = target_limits(pair, scenario.rope_keys, any_architecture=any_architecture)
    return build_prompts(
        scenario, point.context, scenario.prompts_in_set(point.batch, point.rate), tokenizer_of(pair), vocab
    )


def tokenizer_of(pair: PairRef) -> Path | None:
    """The target's `tokenizer.json`; None where it has none."""
    return pair.tokenizer if pair.tokenizer.is_file() else None
