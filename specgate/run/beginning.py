"""Before the first block: build the prompts, then create the run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specgate import __version__
from specgate.contract import LEAST_BUDGET_S, Plan, Promotion, Run
from specgate.contract.scenarios.own_prompts import in_words
from specgate.errors import UsageError
from specgate.files.config import Config
from specgate.files.json_text import to_plain
from specgate.files.run_folder import RunFolder, label_of
from specgate.machine import inventory, noise_profile
from specgate.machine.bandwidth import bandwidth_of
from specgate.machine.monitor import snapshot
from specgate.machine.software import Software, plugin_commits
from specgate.pairs.resolve import target_limits
from specgate.planning.forced_acceptance import forced_of
from specgate.planning.plan import check_biases, check_limits
from specgate.planning.prompts import Prompts, build_prompts
from specgate.planning.request import Request
from specgate.planning.resolution import another_engine, tokenizer_of
from specgate.promotion.claim import host_identity
from specgate.promotion.ledger import Ledger
from specgate.redaction import credentials_in
from specgate.run.early_stop import required_decisions
from specgate.run.progress import spoken
from specgate.run.reachability import check_reachable
from specgate.run.references import compared_builds, earlier_runs
from specgate.run.watched_gpus import run_gpus


def fitting_prompts(plan: Plan, config: Config) -> dict[str, Prompts]:
    """Build the prompts of every point, by point key.

    They are all built before anything is measured, so that a run that cannot work is refused at once. Raises UsageError
    if a context is longer than the pair allows, a bias is of a token that it has not, or a text source has too few
    prompts.
    """
    others = another_engine(config.backend) is not None
    limits = {
        name: target_limits(config.pair, s.rope_keys, any_architecture=others) for name, s in config.scenarios.items()
    }
    check_limits(plan, {name: p for name, (p, _) in limits.items() if p is not None}, config.pair.name)
    check_biases(config.scenarios, {name: vocab for name, (_, vocab) in limits.items()}, config.pair.name)
    tokenizer = tokenizer_of(config.pair)
    return {
        p.key: build_prompts(s, p.context, s.prompts_in_set(p.batch, p.rate), tokenizer, limits[p.scenario][1])
        for p in plan.points
        for s in [config.scenarios[p.scenario]]
    }


def own_prompts(prompts: Mapping[str, Prompts]) -> Iterator[str]:
    """Yield the user's own prompts in words: chats or text, lengths, and what was left out of the file. A batch or a
    level of load that takes fewer of the prompts of another one has no line of its own.

    `prompts`: point key → its prompts.
    """
    own: list[Mapping[str, Any]] = [of_point.about for of_point in prompts.values() if in_words(of_point.about)]
    lines = [[line for of_set in about["lines"] for line in of_set] for about in own]
    most = list[int]()
    for index in sorted(range(len(own)), key=lambda index: -len(lines[index])):
        if not any(set(lines[index]) <= set(lines[other]) for other in most):
            most.append(index)
    for index in sorted(most):
        fewer = any(len(some) < len(lines[index]) and set(some) <= set(lines[index]) for some in lines)
        yield f"prompts: {'up to ' * fewer}{in_words(own[index])}"


def time_limits(plan: Plan) -> Iterator[str]:
    """Yield how long the timed blocks of every scenario may take in all, where that is known before the first."""
    for name, scenario in plan.scenarios.items():
        points, load = [point for point in plan.points if point.scenario == name], scenario.load
        if scenario.until_decided:
            each = scenario.schedule.budget_s or LEAST_BUDGET_S
            what = f"{len(points)} {'points' if load is None else 'levels of load'}, at most {each:g} s each: "
            yield f"{what if len(points) > 1 else 'at most '}{spoken(each * len(points))} of timed blocks in all"
        elif load is not None and (load.duration_s or points[0].rate):
            seconds = sum(
                (load.duration_s or load.requests / (round_.point.rate or 1)) * len(round_.order)
                for point in points
                for round_ in plan.rounds_of(point)
            )
            yield f"{len(points)} level{'s' * (len(points) != 1)} of load: about {spoken(seconds)} in all"


def begin(
    request: Request,
    config: Config,
    plan: Plan,
    prompts: Mapping[str, Prompts],
    promotion: Promotion,
    software: Software,
    ledger: Ledger,
) -> tuple[RunFolder, Run]:
    """Create the run folder and write into it what is known before anything is measured.

    That is config.resolved.yaml, env.json and a run.json without figures, whose status is `running`. Raises UsageError
    if the configuration holds a credential, or if the policy refuses floors that cannot be reached and has some.
    """
    refuse_credentials(config)
    forced = forced_of(request)
    profile = noise_profile.profile_of(request.out)
    environment = {
        **inventory.environment(),
        **({"plugins": commits} if (commits := plugin_commits(software)) else {}),
        "env_before": snapshot(run_gpus(config)),
        "env_after": None,
    }
    memory = bandwidth_of(request.out)
    beyond = check_reachable(config.policy, plan)
    tree = software.facts["source_tree_sha256"]
    folder = RunFolder.create(request.out, request.kind, label_of(tuple(config.scenarios)), tree)
    run = Run(
        id=folder.id,
        kind=request.kind,
        status="running",
        started=now(),
        ended=None,
        argv=("specgate", *request.argv),
        tool_version=__version__,
        fingerprint=fingerprint_of(config, software),
        environment=environment,
        scenarios=config.scenarios,
        pair=config.pair,
        engines={},
        prompts={key: p.describe() for key, p in prompts.items()},
        cells=(),
        comparisons=(),
        failures={},
        warnings=(*noise_profile.warnings(profile), *beyond, *([forced.in_words] if forced else [])),
        mde=noise_profile.effects(plan, profile),
        between_runs=noise_profile.between_runs(plan, profile, request.out),
        required_decisions=required_decisions(plan, config.policy),
        earlier=earlier_runs(config, ledger, datetime.now(UTC)),
        builds=compared_builds(config, ledger, datetime.now(UTC), Path.cwd()),
        bandwidth=memory,
        promotion=promotion,
    )
    folder.write_config(config)
    folder.write_json("env.json", environment)
    folder.write_run(run)
    return folder, run


def refuse_credentials(config: Config) -> None:
    """Raise UsageError for a configuration that holds a credential.

    It would be stored, and masked it could neither be verified nor resumed.
    """
    if place := next(credentials_in(to_plain(Config, config)), None):
        raise UsageError(
            f"{place}: a credential would be written into the run folder",
            hint="it has the form of one, or is the value of a variable such as *_TOKEN or *_KEY: name the variable "
            "(-o api_key_env=NAME), or unset it if it is no secret",
        )


def fingerprint_of(config: Config, software: Software) -> dict[str, str | None]:
    """The fingerprint of a run as far as it is known before an engine is loaded."""
    host = host_identity()
    return {**software.facts, "config_sha256": config.digest, **({"host": host} if host else {})}


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
