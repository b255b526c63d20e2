"""Commit, machine, driver, pair and engine of a run, in a few words: empty or a dash if the run does not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.analysis.environment_diff import flat
from specgate.analysis.machine.gpu_clocks import seen_by
from specgate.contract import EngineIdentity, Run
from specgate.reports.common.figures import NONE

_DIGITS = 12
"""Of a commit or a hash that are shown."""
_UNKNOWN, _TRUE = "unknown", "true"
"""As `flat` writes None and True."""


def commit(run: Run) -> str:
    """Return the commit of the code under test, and whether it had other changes: that of a plug-in's checkout, else of
    the built-in engine's source tree. A dash for somebody else's engine, whose version or build identifies it.
    """
    known = dict(flat(run.environment))
    for engine in run.engines.values():
        if f"plugins.plugin:backend:{engine.backend}.commit" in known:
            return _commit(known, f"plugins.plugin:backend:{engine.backend}")
        if engine.identity is not None:
            return NONE
    return source(run)


def source(run: Run) -> str:
    """Return the commit of specgate's own source tree; without one, the hash of the tree."""
    known, tree = dict(flat(run.environment)), run.fingerprint.get("source_tree_sha256")
    if known.get("source.commit", _UNKNOWN) != _UNKNOWN:
        return _commit(known, "source")
    return f"tree {tree[:_DIGITS]}" if tree else NONE


def _commit(known: Mapping[str, str], key: str) -> str:
    name = f"{known[f'{key}.repository']} " if f"{key}.repository" in known else ""
    return (
        name
        + known[f"{key}.commit"][:_DIGITS]
        + (" + uncommitted changes" if known.get(f"{key}.dirty") == _TRUE else "")
    )


def machines(run: Run) -> Iterator[tuple[str, str]]:
    """Yield (`machine`, its GPUs or CPU). If the engine is a server on a machine that is not visible here, the server's
    version and the client's machine.
    """
    engine = next(iter(run.engines.values()), None)
    attached = engine is not None and engine.identity is not None and bool(engine.identity.served)
    if engine is None or not attached or any(key.endswith(" listens as") for key in engine.details):
        yield "machine", device(run)
        return
    yield "server", f"machine not visible, says {engine_name(run)}"
    yield "client", device(run)


def engine_name(run: Run) -> str | None:
    """Return engine and version of somebody else's engine; None for specgate's own."""
    identity = next((e.identity for e in run.engines.values() if e.identity), None)
    return f"{identity.engine} {identity.version or _UNKNOWN}" if identity else None


def device(run: Run) -> str:
    """Return the GPUs that the run's programs were allowed to see, or the CPU if there are none."""
    gpus = seen_by(run.environment)
    if not gpus:
        known = dict(flat(run.environment))
        return known.get("host.cpu") or next((e.device for e in run.engines.values()), NONE)
    return str(gpus[0]["name"]) if len(gpus) == 1 else f"{len(gpus)} × {gpus[0]['name']}"


def driver(run: Run) -> str | None:
    """The version of the GPU's driver; None where no GPU was seen."""
    return dict(flat(run.environment)).get("gpus[0].driver")


def pair(run: Run) -> str:
    """The pair. Of a server that somebody else has started, also what it says that it serves."""
    served = next((e.identity.served for e in run.engines.values() if e.identity and e.identity.served), {})
    models = " and ".join(dict.fromkeys(model.path or model.name for model in served.values()))
    if not models:
        return run.pair.name
    return f"{models}, as the server says" if run.pair.weights == "server" else f"{run.pair.name} (served: {models})"


def engine(run: Run) -> Iterator[tuple[str, str]]:
    """(name, value) of what identifies somebody else's engine. Nothing for specgate's own: the commit identifies it."""
    identity = next((e.identity for e in run.engines.values() if e.identity), None)
    if identity is None:
        return
    yield "engine", f"{identity.engine} {identity.version or _UNKNOWN}"
    yield "build", build(identity)
    if identity.settings:
        yield "set up", ", ".join(f"{words(name)} {value}" for name, value in identity.settings.items())
    for role, settings in identity.differing.items():
        yield f"set up, {role}", ", ".join(f"{words(name)} {value}" for name, value in settings.items())
    if untold := [words(name) for name in identity.untold if name != "build"]:
        yield "not told", ", ".join(untold)


def build(identity: EngineIdentity) -> str:
    if identity.build is None:
        return f"{_UNKNOWN} (-o build=TEXT names it)"
    return identity.build if identity.told_by == "version" else f"{identity.build}, as the command line says"


def words(name: str) -> str:
    return name.replace("_", " ")
