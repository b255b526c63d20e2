"""Which micro scenarios must be green before a full run, and the command that runs them.

They are the policy's `micro`, or all micro scenarios that the machine runs by default; of these, the ones that ask for
the pair to be measured, or all where none does: then they have to be green on that pair.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specgate.core import PairRef, Scenario
from specgate.files.run_folder import Config
from specgate.machine import inventory
from specgate.planning.policy import micro_scenarios
from specgate.planning.prompts import RANDOM
from specgate.planning.request import Request
from specgate.planning.scenario import SHIPPED, select


def machine_size() -> Literal["cpu", "gpu"]:
    return "gpu" if inventory.has_cuda_gpu() else "cpu"


def micro_gates(request: Request, config: Config) -> tuple[list[Scenario], str]:
    """(the micro scenarios as `specgate micro` would run them for this request, that command)."""
    size = machine_size()
    listed = micro_scenarios(config.policy) or select((), None, "micro", size)
    asking = [s for s in listed if s.pair == config.pair.name]
    pair = list(pair_options(request))
    if not asking and not pair:
        pair = ["--pair", config.pair.name]
    gates = asking or listed
    words = ["specgate", "micro"]
    if [s.name for s in gates] != [s.name for s in select((), None, "micro", size)]:
        words += [word for s in gates for word in ("--scenario", _said(s))]
    words += [*pair, *other_options(request)]
    return fitted(gates, config.pair, other_target="--pair" in pair or "--target" in pair), shlex.join(words)


def fitted(scenarios: Sequence[Scenario], pair: PairRef, *, other_target: bool) -> list[Scenario]:
    """The scenarios as they run on `pair`; `other_target`: the command line named it, not the scenarios."""
    if other_target:
        # A scenario's RoPE scaling stretches the pair it names; another target brings its own.
        scenarios = [replace(s, rope=None) for s in scenarios]
    if pair.acceptance == "planted":
        # No text means anything to a planted pair, and it has no tokenizer.
        scenarios = [replace(s, workload=replace(s.workload, source=RANDOM)) for s in scenarios]
    return list(scenarios)


def pair_options(request: Request) -> Iterator[str]:
    for option, value in (("--pair", request.pair), ("--target", request.target), ("--draft", request.draft)):
        if value is not None:
            yield from (option, str(value))


def other_options(request: Request) -> Iterator[str]:
    for option, value in (("--backend", request.backend), ("--policy", request.policy)):
        if value is not None:
            yield from (option, value)
    for key, value in request.options.items():
        yield from ("-o", f"{key}={value}")
    if request.out != Path("runs"):
        yield from ("--out", str(request.out))


def _said(scenario: Scenario) -> str:
    file = scenario.source_file
    return scenario.name if file is None or file.parent == SHIPPED else str(file)
