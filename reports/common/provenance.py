"""What a run was made with, in a few words: commit, device and driver, pair and engine. Empty or a dash where the run
does not say.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.environment_diff import flat
from specgate.analysis.machine.visible_gpus import seen_by
from specgate.contract import EngineIdentity, Run
from specgate.reports.common.figures import NONE

_DIGITS = 12
"""Of a commit or a hash that are shown."""
_UNKNOWN, _TRUE = "unknown", "true"
"""As `flat` writes None and True."""


def commit(run: Run) -> str:
    """The commit of the source tree, and whether it had other changes; without one, the hash of the tree."""
    known = dict(flat(run.environment))
    found = known.get("source.commit", _UNKNOWN)
    if found == _UNKNOWN:
        tree = run.fingerprint.get("source_tree_sha256")
        return f"tree {tree[:_DIGITS]}" if tree else NONE
    return found[:_DIGITS] + (" + uncommitted changes" if known.get("source.dirty") == _TRUE else "")


def device(run: Run) -> str:
    """What computed: the GPUs that the run's programs were allowed to see, or the CPU where there are none."""
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
    told = next((e.identity.served for e in run.engines.values() if e.identity and e.identity.served), {})
    models = " and ".join(dict.fromkeys(model.path or model.name for model in told.values()))
    if not models:
        return run.pair.name
    return f"{models}, as the server says" if run.pair.weights == "server" else f"{run.pair.name} (served: {models})"


def engine(run: Run) -> Iterator[tuple[str, str]]:
    """(name, value) of what identifies somebody else's engine. Nothing for specgate's own: the commit identifies it."""
    found = next((e.identity for e in run.engines.values() if e.identity), None)
    if found is None:
        return
    yield "engine", f"{found.engine} {found.version or _UNKNOWN}"
    yield "build", build(found)
    if found.settings:
        yield "set up", ", ".join(f"{words(name)} {value}" for name, value in found.settings.items())
    for role, told in found.differing.items():
        yield f"set up, {role}", ", ".join(f"{words(name)} {value}" for name, value in told.items())
    if untold := [words(name) for name in found.untold if name != "build"]:
        yield "not told", ", ".join(untold)


def build(found: EngineIdentity) -> str:
    if found.build is None:
        return f"{_UNKNOWN} (-o build=TEXT names it)"
    return found.build if found.told_by == "version" else f"{found.build}, as the command line says"


def words(name: str) -> str:
    return name.replace("_", " ")
