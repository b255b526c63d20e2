"""Loads plug-ins: back ends, gates, reports, contrast gates, views, pairs, profilers and commands. The
built-in ones are loaded the same way.

A third party declares entry points in the groups below. A plug-in is imported only when it is asked for, and a back end
from outside never in the harness. A built-in
plug-in is listed in this file, or in the file `entry_points.txt` of its folder below `backends/`, instead of in package
metadata, so that a checkout runs without being installed. The environment variable `SPECGATE_LOAD_PLUGINS` limits which
third-party plug-ins are seen. It holds the names of their distributions, separated by commas; an empty value hides them
all.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specgate.contract.protocols import Availability, Backend, ContrastGate, Gate, PairSource, Profiler, Report, View
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.plugin_process import ENGINE_LIBRARIES, BackendApart, checked

if TYPE_CHECKING:
    import click

GROUPS = (
    *("specgate.backends", "specgate.gates", "specgate.reports"),
    *("specgate.contrast_gates", "specgate.views"),
    *("specgate.pairs", "specgate.profilers", "specgate.commands"),
)

NEAR = 0.65
"""Least likeness of a name that is suggested: a letter or two differ."""

_BUILT_IN: tuple[tuple[str, str, str], ...] = (
    ("specgate.backends", "vllm", "specgate.backends.servers.backend:VLLM"),
    ("specgate.backends", "sglang", "specgate.backends.servers.backend:SGLANG"),
    ("specgate.backends", "trtllm", "specgate.backends.servers.backend:TRTLLM"),
    ("specgate.backends", "lmdeploy", "specgate.backends.servers.backend:LMDEPLOY"),
    ("specgate.backends", "llamacpp", "specgate.backends.servers.backend:LLAMACPP"),
    ("specgate.backends", "openai", "specgate.backends.servers.backend:COMPATIBLE"),
    ("specgate.backends", "vllm-offline", "specgate.backends.offline.backend:VLLM"),
    ("specgate.backends", "lmdeploy-pipeline", "specgate.backends.offline.backend:LMDEPLOY"),
    ("specgate.backends", "fake", "specgate.backends.fake.engine:BACKEND"),
    ("specgate.gates", "validity", "specgate.gates.validity:GATE"),
    ("specgate.gates", "tokens", "specgate.gates.tokens.gate:GATE"),
    ("specgate.gates", "distribution", "specgate.gates.sampled.distribution:GATE"),
    ("specgate.gates", "acceptance", "specgate.gates.acceptance:GATE"),
    ("specgate.gates", "acceptance-drift", "specgate.gates.acceptance_drift:GATE"),
    ("specgate.gates", "speed", "specgate.gates.speed:GATE"),
    ("specgate.gates", "tail", "specgate.gates.tail:GATE"),
    ("specgate.gates", "goodput", "specgate.gates.goodput:GATE"),
    ("specgate.gates", "memory", "specgate.gates.memory:GATE"),
    ("specgate.gates", "load", "specgate.gates.load:GATE"),
    ("specgate.gates", "invariants", "specgate.gates.invariants:GATE"),
    ("specgate.gates", "since-green", "specgate.gates.since_green:GATE"),
    ("specgate.gates", "builds", "specgate.gates.builds:GATE"),
    ("specgate.gates", "degeneracy", "specgate.gates.degeneracy:GATE"),
    ("specgate.gates", "quality", "specgate.gates.quality:GATE"),
    ("specgate.gates", "environment", "specgate.gates.environment:GATE"),
    ("specgate.reports", "console", "specgate.reports.texts.console:REPORT"),
    ("specgate.reports", "plain", "specgate.reports.texts.console:PLAIN"),
    ("specgate.reports", "details", "specgate.reports.texts.console:DETAILS"),
    ("specgate.reports", "explain", "specgate.reports.texts.explain:REPORT"),
    ("specgate.reports", "metrics_csv", "specgate.reports.texts.csv:METRICS"),
    ("specgate.reports", "summary_csv", "specgate.reports.texts.csv:SUMMARY"),
    ("specgate.reports", "html", "specgate.reports.page.html:REPORT"),
    ("specgate.reports", "junit", "specgate.reports.texts.junit:REPORT"),
    ("specgate.reports", "markdown", "specgate.reports.texts.markdown:REPORT"),
    ("specgate.reports", "benchmark_json", "specgate.reports.texts.benchmark_json:REPORT"),
    ("specgate.reports", "github", "specgate.reports.texts.annotations:REPORT"),
    ("specgate.contrast_gates", "change", "specgate.gates.change:GATE"),
    ("specgate.contrast_gates", "same-tokens", "specgate.gates.same_tokens:GATE"),
    ("specgate.views", "builds", "specgate.reports.views.builds:VIEW"),
    ("specgate.views", "engines", "specgate.reports.views.engines:VIEW"),
    ("specgate.views", "acceptance", "specgate.reports.views.acceptance:VIEW"),
    ("specgate.views", "ab", "specgate.reports.views.two_builds:VIEW"),
    ("specgate.views", "history", "specgate.reports.views.trends:VIEW"),
)

T = TypeVar("T")


@cache
def built_in() -> tuple[tuple[str, str, str], ...]:
    """Return (group, name, object) of every plug-in that comes with specgate, and of each folder beside this package
    that declares its own.
    """
    declared = []
    for file in sorted((Path(__file__).parent / "backends").glob("*/entry_points.txt")):
        groups = ConfigParser(delimiters=("=",))
        groups.read_string(file.read_text(encoding="utf-8"), str(file))
        declared += [(group, name, value) for group in groups.sections() for name, value in groups[group].items()]
    return (*declared, *_BUILT_IN)


def _allowed(entry: EntryPoint) -> bool:
    names = os.environ.get("SPECGATE_LOAD_PLUGINS")
    return names is None or (entry.dist is not None and entry.dist.name in names.split(","))


def _installed(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points in `group` of installed distributions. Metadata that lies in the checkout which specgate
    runs from is none: a checkout declares its own plug-ins (`built_in`).
    """
    home = Path(__file__).resolve().parents[1]
    checkout = home if (home / "pyproject.toml").is_file() else None
    for entry in entry_points(group=group):
        if entry.dist is None or Path(str(entry.dist.locate_file(""))).resolve() != checkout:
            yield entry


@cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Name → entry point of every plug-in in `group`, built-in ones first. Raises UsageError where two plug-ins have
    one name.
    """
    entries = {name: EntryPoint(name, value, g) for g, name, value in built_in() if g == group}
    for entry in filter(_allowed, _installed(group)):
        if entry.name in entries:
            raise UsageError(
                f"plug-in {entry.value}: {group} already has the name {entry.name!r} ({entries[entry.name].value})"
            )
        entries[entry.name] = entry
    return entries


def from_outside(group: str, names: Iterable[str]) -> list[EntryPoint]:
    """The entry points in `group` that have one of these `names` and are not built in. Nothing is imported."""
    known = registered(group)
    return [known[n] for n in dict.fromkeys(names) if n in known and (group, n, known[n].value) not in built_in()]


def _load(group: str, name: str, kind: type[T]) -> T:
    known = registered(group)
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=NEAR)
        what = group.rpartition(".")[2].rstrip("s")
        raise UsageError(
            f"no such {what}: {name!r}",
            hint=(f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(known)}",
        )
    try:
        plugin = known[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"plug-in {name} ({known[name].value}) cannot be loaded: {error}") from error
    return checked(plugin, kind, f"plug-in {name} ({known[name].value})")


def backend(name: str) -> Backend:
    """The back end called `name`. One from outside answers from a process of its own (`plugin_process`).

    Raises UsageError where it is unknown, cannot be loaded or is not a Backend.
    """
    outside = from_outside("specgate.backends", [name])
    return apart(outside[0]) if outside else backend_here(name)


def apart(entry: EntryPoint) -> Backend:
    """The back end of an entry point, in a process of its own. Raises UsageError as `backend` does."""
    return BackendApart(entry)


def backend_here(name: str) -> Backend:
    """As `backend`, with its module in this process: that of an engine, or of a tool that measures nothing."""
    return _load("specgate.backends", name, Backend)


def problems_of_backend(name: str) -> list[str]:
    """List breaches of the contract by the back end called `name`, one sentence each; empty if it keeps it.

    It must load, have the name of its entry point, and have a description. Its `available()` must give a reason and
    must not import an engine library.
    """
    before = set(sys.modules)
    try:
        loaded = backend(name)
        availability = loaded.available()
    except (UsageError, BackendError) as error:
        return [error.message]
    problems = []
    if loaded.name != name:
        problems.append(f"its entry point is {name}, its name is {loaded.name}")
    if not isinstance(availability, Availability) or not availability.reason:
        problems.append(f"available() gives {availability!r}, not an Availability with a reason")
    if not loaded.description:
        problems.append("it has no description")
    imported = loaded.libraries if isinstance(loaded, BackendApart) else set(sys.modules) - before
    if heavy := [library for library in ENGINE_LIBRARIES if library in imported]:
        problems.append(f"asking whether it is available imports {', '.join(heavy)}")
    return problems


def gate(name: str) -> Gate:
    """The gate called `name`. Raises UsageError as `backend` does."""
    return _load("specgate.gates", name, Gate)


def report(name: str) -> Report:
    """The report called `name`. Raises UsageError as `backend` does."""
    return _load("specgate.reports", name, Report)


def contrast_gate(name: str) -> ContrastGate:
    """The contrast gate called `name`. Raises UsageError as `backend` does."""
    return _load("specgate.contrast_gates", name, ContrastGate)


def view(name: str) -> View[Any]:
    """The view called `name`. Raises UsageError as `backend` does."""
    return _load("specgate.views", name, View)


@cache
def pair_sources() -> tuple[PairSource, ...]:
    """Return every plug-in that has pairs by name. Raises UsageError where one of them cannot be loaded."""
    return tuple(_load("specgate.pairs", name, PairSource) for name in registered("specgate.pairs"))


def profilers() -> Iterator[Profiler]:
    """Yield every profiler. Raises UsageError where one of them cannot be loaded."""
    for name in registered("specgate.profilers"):
        yield _load("specgate.profilers", name, Profiler)


def command_names(above: str) -> list[str]:
    """Return the names of commands that plug-ins add to the group whose entry points begin with `above`: nothing for
    `specgate engine`, `pairs.` for the group `pairs`.
    """
    names = [name.removeprefix(above) for name in registered("specgate.commands") if name.startswith(above)]
    return [name for name in names if "." not in name]


def command(name: str) -> click.Command:
    """The command with this entry point. Raises UsageError where it cannot be loaded."""
    import click

    return _load("specgate.commands", name, click.Command)


def contrast_gates() -> Mapping[str, ContrastGate]:
    """Name → contrast gate, for all that are registered. Raises UsageError where one of them cannot be loaded."""
    return {name: contrast_gate(name) for name in registered("specgate.contrast_gates")}


def gates() -> Mapping[str, Gate]:
    """Name → gate, for all that are registered. Raises UsageError where one of them cannot be loaded."""
    return {name: gate(name) for name in registered("specgate.gates")}


def backends_available() -> Mapping[str, tuple[Backend, Availability]]:
    """Name → (back end, whether it can run here), for all that are registered.

    Raises UsageError where one of them cannot be loaded.
    """
    loaded = {name: backend(name) for name in registered("specgate.backends")}
    return {name: (b, b.available()) for name, b in loaded.items()}


def default_backend() -> Backend:
    """The usable back end with the highest rank. A back end with a negative rank is never the default.

    Raises EnvironmentRefused, with the reason of every back end, where none can run.
    """
    candidates = backends_available()
    usable = [(a.rank, name) for name, (_, a) in candidates.items() if a.usable and a.rank >= 0]
    if not usable:
        reasons = "; ".join(f"{name}: {a.reason}" for name, (_, a) in candidates.items() if not a.usable)
        raise EnvironmentRefused(f"no back end can run on this machine ({reasons})")
    return candidates[max(usable)[1]][0]
