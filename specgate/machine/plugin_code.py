"""The code of plug-ins from outside: which files it is, and one hash over them. Nothing is imported to find out.

The built-in plug-ins are part of the source tree, which `inventory.source_tree_sha256` covers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from specgate import plugins
from specgate.errors import EnvironmentRefused

DISTRIBUTION = "specgate-bench"
"""The name that this package is installed under."""


@dataclass(frozen=True, slots=True)
class PluginCode:
    """One plug-in from outside.

    `key`: `plugin:KIND:NAME`, such as `plugin:gate:p90`.
    `said`: distribution and version, and the SHA-256 over its entry points and over names and contents of its files.
        The same files in another folder have the same hash.
    `files`: path → SHA-256 of its content. `requires`: the distributions that its own names as its requirements.
    """

    key: str
    said: str
    files: Mapping[str, str]
    requires: tuple[str, ...]


def taking_part(backends: Iterable[str], gates: Iterable[str]) -> list[PluginCode]:
    """The plug-ins from outside that take part in a run: its back ends, the gates of its policy, and every report,
    since a run writes them all.

    Raises EnvironmentRefused where a file cannot be read.
    """
    reports = plugins.registered("specgate.reports")
    parts = (("specgate.backends", backends), ("specgate.gates", gates), ("specgate.reports", reports))
    return [code_of(entry) for group, names in parts for entry in plugins.from_outside(group, names)]


def code_of(entry: EntryPoint) -> PluginCode:
    """The code behind an entry point. Raises EnvironmentRefused where a file cannot be read.

    Its files are those of

    - the package or module that it is imported from,
    - the others of its distribution, such as an extension module beside the package,
    - the distributions that it requires and that are installed in place (editable), since no version number stands for
      their content.

    `__pycache__` and files whose names begin with a dot are left out.
    """
    owner, sources = entry.dist, dict[str, tuple[str, str]]()
    names = [module_name(entry), *(name for each in changing(owner) for name in modules_of(each))]
    for name in dict.fromkeys(names):
        for inside, file in files_at(place) if (place := place_of(name)) else ():
            sources[f"{name}: {inside}"] = file, sha256_of(file)
    registered = owner.read_text("entry_points.txt") if owner else entry.value
    whole = hashlib.sha256(f"{registered}\0".encode())
    for inside, (_, sha256) in sorted(sources.items()):
        whole.update(f"{inside}\0{sha256}\0".encode())
    says = f"{owner.name} {owner.version}" if owner else "no distribution"
    return PluginCode(
        key=f"plugin:{entry.group.rpartition('.')[2].rstrip('s')}:{entry.name}",
        said=f"{says}, SHA-256 {whole.hexdigest()}" if sources else f"{says}, no files found",
        files=dict(sources.values()),
        requires=requirements(owner) if owner else (),
    )


def module_name(entry: EntryPoint) -> str:
    """The package or module to look for: the first part of the entry point's module that is no namespace package.

    Of `company.engine.backend`, where `company` is a namespace that several distributions share, `company.engine`.
    """
    parts = entry.module.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        if not _is_namespace(_spec(name)):
            return name
    return entry.module


def modules_of(distribution: Distribution) -> Iterator[str]:
    """The top-level packages and modules that a distribution states, in its metadata or as its files. Namespace
    packages are left out, because other distributions share them.
    """
    stated = (distribution.read_text("top_level.txt") or "").split()
    firsts = (f.parts[0] if len(f.parts) > 1 else inspect.getmodulename(f.name) for f in distribution.files or ())
    for name in dict.fromkeys((*stated, *filter(None, firsts))):
        if name.isidentifier() and not _is_namespace(_spec(name)):
            yield name


def place_of(name: str) -> Path | None:
    """The folder of a package, the file of a module, or the archive that either is imported from; None where there is
    no such module.
    """
    spec = _spec(name)
    if spec is None:
        return None
    inside = next(iter(spec.submodule_search_locations or ()), spec.origin)
    # Of a package in an archive, `archive.zip/package`, only the archive is a file.
    return next((p for p in (Path(inside), *Path(inside).parents) if p.exists()), None) if inside else None


def files_at(place: Path) -> Iterator[tuple[str, str]]:
    """(name below the folder that holds `place`, path) of `place` itself or of every file below it."""
    if place.is_file():
        yield place.name, str(place)
        return
    visited = set[str]()
    for folder, inner, names in os.walk(place, followlinks=True):
        # A link may lead back to a folder above it.
        inner[:] = [n for n in inner if n != "__pycache__" and not n.startswith(".")]
        if (real := os.path.realpath(folder)) in visited:
            inner.clear()
            continue
        visited.add(real)
        for name in names:
            file = os.path.join(folder, name)
            if not name.startswith(".") and os.path.isfile(file):
                yield os.path.relpath(file, place.parent).replace(os.sep, "/"), file


def changing(owner: Distribution | None) -> list[Distribution]:
    """The distribution, and those installed in place that it requires, and that these require."""
    left, distributions = [owner] if owner else [], dict[str, Distribution]()
    while left:
        each = left.pop()
        distributions[each.name] = each
        for name in requirements(each):
            with suppress(PackageNotFoundError):
                required = distribution(name)
                left += [required] if _in_place(required) and required.name not in distributions else []
    return list(distributions.values())


def requirements(distribution: Distribution) -> tuple[str, ...]:
    """The distributions that the metadata names under `Requires-Dist`, optional ones included, without specgate."""
    names = (re.match(r"[\w.-]+", text.strip()) for text in distribution.requires or ())
    return tuple(m[0] for m in names if m and m[0].lower() != DISTRIBUTION)


def _in_place(required: Distribution) -> bool:
    try:
        return bool(json.loads(required.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


def _spec(name: str) -> ModuleSpec | None:
    # Packages above `name` are imported on the way; here these are namespace packages, which hold no code.
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module in sys.modules that has no spec
        return None


def _is_namespace(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def sha256_of(file: str) -> str:
    """SHA-256 of a file. Raises EnvironmentRefused where it cannot be read."""
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        hint = "a plug-in's files are part of a run's fingerprint: make them readable"
        raise EnvironmentRefused(f"{file}: cannot be read: {error.strerror}", hint=hint) from error
