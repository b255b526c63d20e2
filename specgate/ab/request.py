"""The command line of `specgate ab`, and what it means on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from specgate.ab.sides import Asked, asked_of, build, launch_of, package_folder, side_of, worktree
from specgate.contract import Budget, Scenario
from specgate.contract.two_builds import SIDES, Margins, Side, SideName
from specgate.errors import BackendError, UsageError
from specgate.files.config import Config
from specgate.machine.checkout import checkout_of
from specgate.planning.policy import micro_names
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.run.engine_process.launch import AS_THE_HARNESS, Launch

LEAST_PAIRS: Final = 3
"""Fewer process pairs have no interval."""


USUAL_LOOKS: Final[Mapping[bool, tuple[int, ...]]] = {False: (4, 8, 12, 16, 24), True: (8, 16, 24)}
"""Looks at builds, and (True) at servers that run already: of those more is assumed than measured, so that every look
costs more than it tells.
"""
USUAL_STEPS: Final[Mapping[str, int]] = {"gpu": 64, "cpu": 12}
"""Most engine steps of a block, by what its scenario needs: about a second of the demo pair, or of an 8B pair at 32K.
More blocks of a process say little: a pair of processes counts once.
"""


@dataclass(frozen=True, slots=True)
class AbRequest:
    """The command line.

    `run`: what both sides measure, as the command line of a run says it; draft lengths that are () ask for the
        baseline alone.
    `old`, `new`: what `--old` and `--new` said. `base`: the revision that the old side is built from. `build`: the
        command that builds a checkout. `package`: where, below a checkout, the code lies. `same`: both sides are one
        build.
    `looks`: numbers of process pairs, ascending. After each, the words are judged, and it goes on only from CANNOT
        TELL. None: the usual ones.
    `steps`: most engine steps of a block; None for USUAL_STEPS.
    `apart`: whether the engines of both sides never hold memory at once, as is always so in a sandbox.
    """

    run: Request
    old: Sequence[tuple[str, str]] = ()
    new: Sequence[tuple[str, str]] = ()
    base: str | None = None
    build: str | None = None
    package: str | None = None
    same: bool = False
    looks: tuple[int, ...] = ()
    visits: int = 1
    quads: int = 2
    steps: int | None = None
    margins: Margins = field(default_factory=Margins)
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Build:
    """A side that is ready to be started. `config`: what it measures, under its own back end and options."""

    side: Side
    launch: Launch
    config: Config


def check(request: AbRequest) -> None:
    """Raises UsageError where the command line contradicts itself."""
    if request.looks and request.looks[0] < LEAST_PAIRS:
        raise UsageError(f"--processes {request.looks[0]}", hint=f"at least {LEAST_PAIRS}: fewer have no interval")
    if request.same and (request.base or request.old or request.new):
        raise UsageError("--same together with --base, --old or --new", hint="--same compares one build with itself")
    if not (request.same or request.base or request.old or request.new):
        hint = "--base REF for a git revision, or --old and --new KEY=VALUE; --same for an A/A check"
        raise UsageError("nothing to compare: both sides would be the same build", hint=hint)
    if request.build and not request.base:
        raise UsageError("--build without --base", hint="other sides are given as they are: build them first")


@contextmanager
def builds(request: AbRequest, logs: Path) -> Iterator[dict[SideName, Build]]:
    """Both sides, ready to be started, as long as the body runs. What building prints goes to files below `logs`.

    Raises UsageError for a side that cannot be what was asked for, and BackendError for one that does not build.
    """
    sides: dict[SideName, Asked] = {"old": asked_of("old", request.old), "new": asked_of("new", request.new)}
    if request.base is None:
        yield {name: ready(request, side) for name, side in sides.items()}
        return
    here = Path.cwd()
    with worktree(here, request.base) as tree:
        top = checkout_of(here)
        assert top is not None  # the worktree is one of it
        for name, folder in zip(SIDES, (tree, top.top), strict=True):
            if request.build:
                build(folder, request.build, logs / f"build-{name}.log", name)
            if not sides[name].foreign:
                sides[name] = replace(sides[name], source=code_in(folder, request.package, name))
        yield {name: ready(request, side) for name, side in sides.items()}


def code_in(checkout: Path, package: str | None, side: SideName) -> Path:
    """The folder of a checkout that code is imported from. Raises BackendError where it is not there."""
    if package is None:
        return package_folder(checkout)
    folder = checkout / package
    if not folder.is_dir():
        raise BackendError(f"{side}: {folder}: no such folder", hint="--package names it, seen from the checkout")
    return folder


def ready(request: AbRequest, side: Asked) -> Build:
    """One side with its configuration."""
    launch = launch_of(side) if side.foreign else AS_THE_HARNESS
    config = config_of(request, side)
    return Build(side_of(side, config.backend, config.options), launch, config)


def config_of(request: AbRequest, side: Asked) -> Config:
    """Configuration of one side."""
    run, plain = request.run, request.run.question.spec == ()
    run = replace(
        run,
        backend=side.backend or run.backend,
        question=replace(run.question, spec=None) if plain else run.question,
        options={**run.options, **side.options},
    )
    config = resolve(run, foreign=side.foreign, usual=micro_names)
    every = {name: replace(s, grid=replace(s.grid, spec=())) if plain else s for name, s in config.scenarios.items()}
    return replace(config, scenarios={name: shortened(s, request.steps) for name, s in every.items()})


def shortened(scenario: Scenario, steps: int | None) -> Scenario:
    """`scenario` with blocks of at most `steps` engine steps, or the usual number."""
    most = steps or USUAL_STEPS[scenario.needs]
    if scenario.budget.steps is None or scenario.budget.steps <= most:
        return scenario
    return replace(scenario, budget=Budget(steps=most, ignore_eos=scenario.budget.ignore_eos))
