"""Hashes of what the harness itself has written to a run folder, so that foreign writes are noticed.

An engine's process runs as the same user and can open every file of a run. The harness therefore keeps size and SHA-256
of what it has written, in its own memory, and compares before it computes a figure.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

from specgate.errors import InvalidResult


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def copy(self) -> _Hash: ...
    def hexdigest(self) -> str: ...


@dataclass(slots=True)
class Content:
    """The bytes of one file, as their number and their running SHA-256.

    `open_end`: whether another process of the harness may append to the file; only its beginning is known then.
    """

    size: int = 0
    digest: _Hash = field(default_factory=hashlib.sha256)
    open_end: bool = False

    def append(self, data: bytes) -> None:
        """Continue with `data`."""
        self.size += len(data)
        self.digest.update(data)

    @property
    def sha256(self) -> str:
        return self.digest.copy().hexdigest()

    def mismatch(self, size: int, sha256: str) -> str | None:
        """Reason that these are not `size` bytes with this SHA-256, as their writer says; None if they are."""
        written = f"its writer wrote {size} bytes with the SHA-256 {sha256}"
        return (
            None
            if (self.size, self.sha256) == (size, sha256)
            else f"{self.size} bytes with the SHA-256 {self.sha256}; {written}"
        )

    def contradiction(self, data: bytes) -> str | None:
        """Reason that `data` is not this content; None if it is."""
        if len(data) < self.size or (len(data) > self.size and not self.open_end):
            return f"has {len(data)} bytes; the harness wrote {self.size}"
        sha256 = hashlib.sha256(data[: self.size]).hexdigest()
        return None if sha256 == self.sha256 else f"its SHA-256 is {sha256}; the harness wrote {self.sha256}"


def content_of(data: bytes, *, open_end: bool = False) -> Content:
    """The content of a file that holds `data`."""
    content = Content(open_end=open_end)
    content.append(data)
    return content


def changed(file: str, why: str) -> InvalidResult:
    """The error for a file that another process has changed while the run went on."""
    hint = "only the harness may write into a run folder: look for what else does, the engine first, and begin anew"
    return InvalidResult(f"{file}: was changed while the run went on: {why}", hint=hint)
