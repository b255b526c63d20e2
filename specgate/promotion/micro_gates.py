"""Micro scenarios that must be green before a full run, and the command that runs them.

Of a question of one's own it is the same question, asked as a micro run: the same prompts on the same engine. Else they
are the scenarios that the policy lists under `micro`, or, if it lists none, all micro scenarios that this machine
runs by default. Of these, only the ones written for the pair to be measured count. If none is, all of them count and
must be green on that pair.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.contract import VARIANT_MARK, Scenario
from specgate.contract.protocols import HasUsualPair
from specgate.files.config import Config
from specgate.planning.ad_hoc import OF_REQUESTS, stretched
from specgate.planning.defaults import machine_size
from specgate.planning.policy import micro_scenarios
from specgate.planning.request import Request
from specgate.planning.resolution import (
    chosen_scenarios,
    fitted,
    known_backend,
    names_scenarios,
    one_role_at_a_time,
    open_sets,
)
from specgate.planning.scenario import SHIPPED, meant_for, override, select


def micro_gates(request: Request, config: Config) -> tuple[list[Scenario], str]:
    """The micro scenarios that must be green for this request, as `specgate micro` would run them, and that command."""
    size = machine_size()
    if request.question and not names_scenarios(request.scenarios, request.only):
        return own_micro_gates(request, config)
    listed = micro_scenarios(config.policy) or select((), None, "micro", size)
    asking = [s for s in listed if s.pair == config.pair.name]
    pair = list(pair_options(request))
    if not asking and not pair and not is_usual_pair(config):
        pair = ["--pair", config.pair.name]
    gates = [override(s, baseline=request.baseline) for s in meant_for(config.backend, asking or listed)]
    words = ["specgate", "micro", *on_fleet(request.argv)]
    if [s.name for s in gates] != [s.name for s in select((), None, "micro", size)]:
        words += [word for name in dict.fromkeys(map(_said, gates)) for word in ("--scenario", name)]
    words += [*pair, *other_options(request)]
    return as_run(gates, request, config, pair), shlex.join(words)


def own_micro_gates(request: Request, config: Config) -> tuple[list[Scenario], str]:
    """The question of `request` as a micro run asks it, and the command that does."""
    question = replace(request.question, **dict.fromkeys(OF_REQUESTS))
    asking = chosen_scenarios(question, (), None, "micro", machine_size())
    gates = [override(s, baseline=request.baseline) for s in meant_for(config.backend, asking)]
    pair = list(pair_options(request))
    gates = [stretched(gate, config.pair) for gate in gates]
    typed = any(word.startswith(("http://", "https://")) for word in request.argv)
    words = as_typed(request.argv[1:]) if typed else (*question.words(), *pair, *other_options(request))
    return as_run(gates, request, config, pair), shlex.join(("specgate", "micro", *on_fleet(request.argv), *words))


OWN_VALUES: Final = (
    "--new-tokens", "--goodput", "--override-order", "--measurement-runs", "--warmup-runs", "--budget",
    "--on", "--slots",
)  # fmt: skip
OWN_FLAGS: Final = (
    "--explore", "--status", "--json", "--micro-first", "--plain", "--debug", "--perf-mode", "--no-perf-mode",
)  # fmt: skip
"""Options that a full run may have and its micro runs need not, with and without a value."""


def as_typed(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line with URLs in it, without the options of one run alone."""
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in OWN_VALUES and not equals:
            next(rest, None)
        elif name not in (*OWN_VALUES, *OWN_FLAGS):
            yield word


FLEET: Final = ("--on", "--slots")


def on_fleet(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line that say which machines measure: green runs of others count apart."""
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in FLEET:
            yield from (word,) if equals else (word, next(rest, ""))


def as_run(gates: list[Scenario], request: Request, config: Config, pair: list[str]) -> list[Scenario]:
    """The scenarios as they run on the pair and the engine of `config`. `pair`: the words that name the pair."""
    other_target = not {"--pair", "--target", "--tokenizer"}.isdisjoint(pair)
    sets = open_sets(request)
    gates = fitted(gates, config.pair, other_target=other_target, backend=config.backend, most_sets=sets)
    return one_role_at_a_time(gates, config.backend, config.options)


def is_usual_pair(config: Config) -> bool:
    """True if the run takes the pair that its back end brings, which no command line names."""
    backend = known_backend(config.backend)
    return isinstance(backend, HasUsualPair) and backend.usual_pair() == config.pair


def pair_options(request: Request) -> Iterator[str]:
    """The options of `request` that name the pair, as words of a command line."""
    named = ("--pair", request.pair), ("--target", request.target), ("--draft", request.draft)
    for option, value in (*named, ("--tokenizer", request.tokenizer)):
        if value is not None:
            yield from (option, str(value))


def other_options(request: Request) -> Iterator[str]:
    """The other options of `request` that the micro runs must share, as words of a command line."""
    for option, value in (("--backend", request.backend), ("--policy", request.policy)):
        if value is not None:
            yield from (option, value)
    for key, value in request.options.items():
        yield from ("-o", f"{key}={value}")
    if request.isolate:
        yield "--isolate"
    if not request.baseline:
        yield "--no-baseline"
    if request.out != Path("runs"):
        yield from ("--out", str(request.out))


def _said(scenario: Scenario) -> str:
    """Return what a command line calls the scenario. A variant runs with the scenario that it is one of."""
    file = scenario.source_file
    return scenario.name.partition(VARIANT_MARK)[0] if file is None or file.parent == SHIPPED else str(file)
