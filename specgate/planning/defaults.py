"""Defaults of a command line that leaves things out: its policy, and what a first run on this machine measures.

A policy is chosen by what is measured:

    load                            load; load-forced with -o force_al
    acceptance that is forced       speed-only
    an engine that is not bit-exact engine-gpu if it runs on a GPU of this machine, else engine
    a bit-exact engine on a GPU     seed
    a bit-exact engine on a CPU     cpu for the demo pair, cpu-pair for any other
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate import plugins
from specgate.contract import Machine, Policy, RunKind, Scenario
from specgate.contract.protocols import DrivesAnotherEngine, HasUsualPair, IsBitExact, UsesGpus
from specgate.machine import inventory
from specgate.pairs.resolve import DEMO, shipped_names
from specgate.planning.forced_acceptance import OPTION as FORCED
from specgate.planning.policy import find_policy
from specgate.planning.request import Request
from specgate.planning.scenario import find, select

MACHINE_POLICY: Final[Mapping[Machine, str]] = {"gpu": "seed", "cpu": "cpu"}
"""Policies for the demo pair on a bit-exact engine, whose limits on the machine `specgate machine doctor` checks."""
FIRST_ON_A_GPU: Final[Mapping[str, tuple[str, ...]]] = {
    "micro": ("micro-8b-16k-b4", "micro-8b-32k-single"),
    "full": ("full-8b-16k-b4", "full-8b-32k-single"),
}
"""Scenarios that a command without arguments measures on a GPU. Their pairs need no download and their text does not
loop, so that the verdict is about the engine.
"""
FIRST_POLICY: Final = "planted-8b"
NAMED: Final = ("scenarios", "only", "policy", "pair", "target", "draft", "tokenizer", "resume")
"""Fields of a request that say what is measured."""


def machine_size() -> Machine:
    """Return whether scenarios for a GPU or for a CPU run here by default."""
    return "gpu" if inventory.has_cuda_gpu() else "cpu"


def policy_of(request: Request, backend: object, scenarios: Iterable[Scenario] = ()) -> Policy:
    """Return the policy that the command line names, else the usual one for this back end and these scenarios.

    `backend`: None for one that only another environment knows.
    """
    named = (request.pair not in (None, DEMO), request.target, request.draft, request.tokenizer)
    demo = not any(named) and all(scenario.pair == DEMO for scenario in scenarios)
    name = request.policy or default_policy(request.kind, machine_size(), backend, request.options, demo=demo)
    return find_policy(name, plugins.gates())


def default_policy(
    kind: RunKind, size: Machine, backend: object, options: Mapping[str, str], *, demo: bool = True
) -> str:
    """Return the name of the policy for what is measured. `demo`: whether that is the demo pair."""
    if kind == "load":
        return "load-forced" if FORCED in options else "load"
    if FORCED in options:
        return "speed-only"
    if not isinstance(backend, IsBitExact):
        elsewhere = isinstance(backend, DrivesAnotherEngine) and backend.attaches(options)
        here = not elsewhere or bool(isinstance(backend, DrivesAnotherEngine) and backend.local_ports(options))
        return "engine-gpu" if size == "gpu" and here else "engine"
    return "cpu-pair" if size == "cpu" and not demo else MACHINE_POLICY[size]


def runs_of(request: Request, size: Machine) -> list[Request]:
    """Split a request into the runs that it takes: one, unless it names nothing and this machine has a GPU.

    A run has one pair, and a first verdict on a GPU takes two. An engine that is not made for a GPU measures there what
    it would on a CPU. Engines that need weights of their own format, and those that need none, are measured as asked.
    """
    names = FIRST_ON_A_GPU.get(request.kind, ())
    says = request.question or any(getattr(request, key) not in (None, ()) for key in NAMED)
    if size == "cpu" or says or not names or not {find(name).pair for name in names} <= {*shipped_names()}:
        return [request]
    backend = plugins.backend(request.backend) if request.backend else plugins.default_backend()
    if not isinstance(backend, IsBitExact) or isinstance(backend, HasUsualPair):
        return [request]
    if not isinstance(backend, UsesGpus):
        return [naming(request, [s.name for s in select((), None, request.kind, "cpu")], MACHINE_POLICY["cpu"])]
    return [naming(request, [name], FIRST_POLICY) for name in names]


def naming(request: Request, scenarios: Sequence[str], policy: str) -> Request:
    """Return the request with these scenarios and this policy, on its command line too."""
    words = (*(word for name in scenarios for word in ("--scenario", name)), "--policy", policy)
    return replace(request, scenarios=tuple(scenarios), policy=policy, argv=(*request.argv, *words))
