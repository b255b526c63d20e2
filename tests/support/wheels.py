"""Tiny wheels for tests."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from specgate.contract.scenarios.assets import Asset

NO_PACKAGES = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
"""Environment variables that leave pip no place to look for packages."""


def make_wheel(folder: Path, package: str, files: Mapping[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{package}-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**files, **{k: v.encode() for k, v in metadata.items()}}.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return wheel


def asset_of(
    wheel: Path, kind: Literal["model", "code", "docs", "prose"] = "code", files: tuple[str, ...] = ("*.py",)
) -> Asset:
    package, version = wheel.name.split("-")[:2]
    return Asset(
        package=package,
        version=version,
        filename=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        kind=kind,
        files=files,
        licence="none",
        why="a test",
    )
