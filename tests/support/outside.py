"""Distributions as they lie on a path, without an installer: modules, and metadata beside them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from specgate import plugins
from tests.support.command import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "backend-plugin" / "specgate_example_backend.py"
COUNTING = {"specgate.backends": {"counting": f"{EXAMPLE.stem}:BACKEND"}}


def write_distribution(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    entries: Mapping[str, Mapping[str, str]] | None = None,
    modules: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
    editable: bool = False,
) -> Path:
    """The metadata folder of a distribution that holds `modules`. `entries`: group → name → object."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    groups = (f"[{group}]\n" + "".join(f"{n} = {o}\n" for n, o in of.items()) for group, of in (entries or {}).items())
    (info / "entry_points.txt").write_text("".join(groups))
    (info / "top_level.txt").write_text("\n".join(modules))
    if editable:
        (info / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    return info


def write_counting(folder: Path, requires: tuple[str, ...] = ()) -> Path:
    """The example back end `counting` with its metadata. Returns its only file."""
    write_distribution(folder, "specgate-example-backend", "0.1.0", entries=COUNTING, requires=requires)
    return Path(shutil.copy(EXAMPLE, folder))


@contextmanager
def on_the_path(patch: pytest.MonkeyPatch, *folders: Path) -> Iterator[None]:
    """Install the packages of these folders in this process, and forget them afterwards."""
    before = set(sys.modules)
    patch.delenv("SPECGATE_LOAD_PLUGINS", raising=False)
    for folder in folders:
        patch.syspath_prepend(folder)
    plugins.registered.cache_clear()
    yield
    plugins.registered.cache_clear()
    for name in set(sys.modules) - before:
        if any(str(folder) in str(getattr(sys.modules[name], "__file__", "")) for folder in folders):
            del sys.modules[name]
