"""The code of plug-ins from outside: which files it is, and one hash over them. Nothing is imported to find out.

The built-in plug-ins are part of the source tree, which `inventory.source_tree_sha256` covers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from specgate import plugins
from specgate.errors import EnvironmentRefused

DISTRIBUTION = "specgate-bench"
"""The name that this package is installed under."""
_IMPORT = re.compile(rb"(?:^|[;:])[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([^#;\n]+))", re.MULTILINE)


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
    - those that these import, as far as no version number stands for their content: they belong to no distribution, or
      to one that is installed in place (editable).

    `__pycache__` and files whose names begin with a dot are left out. An import that is put together at run time is not
    seen.
    """
    owner = entry.dist
    left = [module_name(entry), *(modules_of(owner) if owner else ())]
    looked_at, sources = set[str](), dict[str, tuple[str, str]]()
    while left:
        name = left.pop()
        place = place_of(name) if name not in looked_at else None
        looked_at.add(name)
        for inside, file in files_at(place) if place else ():
            sha256, imported = _read(file)
            sources[f"{name}: {inside}"] = file, sha256
            left += [other for other in imported if not is_pinned(other)]
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


def imports_of(source: bytes) -> set[str]:
    """The top-level names that Python source imports anywhere in it. Some of them may only stand in a docstring: syntax
    trees of a large package would take seconds.
    """
    names = set[bytes]()
    for one, several in _IMPORT.findall(source.replace(b"\\\n", b" ")):
        names.update([one] if one else (part.split()[0] for part in several.split(b",") if part.strip()))
    return {text for name in names if (text := name.decode(errors="replace").partition(".")[0]).isidentifier()}


def is_pinned(module: str) -> bool:
    """True if a version number stands for the content of a top-level module. It is then Python's or specgate's own, or
    part of a distribution that is not installed in place. A namespace package has no content.
    """
    if module in sys.stdlib_module_names or module == "specgate" or _is_namespace(_spec(module)):
        return True
    owners = _owners(tuple(sys.path)).get(module, ())
    return bool(owners) and not any(map(_in_place, owners))


def requirements(distribution: Distribution) -> tuple[str, ...]:
    """The distributions that the metadata names under `Requires-Dist`, optional ones included, without specgate."""
    names = (re.match(r"[\w.-]+", text.strip()) for text in distribution.requires or ())
    return tuple(m[0] for m in names if m and m[0].lower() != DISTRIBUTION)


@cache
def _owners(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Top-level module → the distributions on `path`, which is `sys.path`, that hold it. Reading all of them takes a
    tenth of a second.
    """
    return packages_distributions()


def _in_place(name: str) -> bool:
    try:
        stated = json.loads(distribution(name).read_text("direct_url.json") or "{}")
        return bool(stated.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, ValueError, AttributeError):
        return False


def _spec(name: str) -> ModuleSpec | None:
    # Packages above `name` are imported on the way; here these are namespace packages, which hold no code.
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module in sys.modules that has no spec
        return None


def _is_namespace(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def _read(file: str) -> tuple[str, set[str]]:
    """SHA-256 of a file, and the top-level names that it imports if it is Python source."""
    try:
        with open(file, "rb") as opened:
            if not file.endswith(".py"):
                return hashlib.file_digest(opened, "sha256").hexdigest(), set()
            source = opened.read()
    except OSError as error:
        hint = "a plug-in's files are part of a run's fingerprint: make them readable"
        raise EnvironmentRefused(f"{file}: cannot be read: {error.strerror}", hint=hint) from error
    return hashlib.sha256(source).hexdigest(), imports_of(source)
