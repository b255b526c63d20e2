"""Paths that a process in a sandbox sees. The rest of the machine's files it may read, and none of them write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Final, Literal

GPU_DEVICES: Final = ("/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/infiniband")
"""Device files of NVIDIA's and AMD's GPUs, and of what connects them."""
Kind = Literal["empty", "shown", "writable"]


@dataclass(frozen=True, slots=True)
class View:
    """Paths by what becomes of them. Of two, one of which lies in the other, the inner one counts.

    `hidden`: folders that are empty inside: those of runs and ledgers.
    `shown`: what an engine reads although it lies in an empty folder: code, weights, files that options name.
    `writable`: the process's own folders.
    `network`: whether it shares the machine's network. Else it has a loopback interface of its own.
    """

    hidden: Sequence[Path] = ()
    shown: Sequence[Path] = ()
    writable: Sequence[Path] = ()
    network: bool = False

    def mounts(self) -> list[tuple[Path, Kind]]:
        """Return every path that differs from the machine's read-only root, outer ones first."""
        empty = [path.resolve() for path in (*private_folders(), *self.hidden) if path.is_dir()]
        kinds: dict[Path, Kind] = {}
        for path in filter(os.path.exists, self.shown):  # an option may be a text of any length
            for place in dict.fromkeys((path.absolute(), path.resolve())):
                if any(place.is_relative_to(folder) for folder in empty):
                    kinds[place] = "shown"
        kinds |= dict.fromkeys(empty, "empty")
        kinds |= {path.resolve(): "writable" for path in self.writable}
        return sorted(kinds.items(), key=lambda item: len(item[0].parts))


def private_folders() -> Iterator[Path]:
    """Yield the folders of which each sandbox has its own, empty at first: temporary files, sockets of services."""
    yield from dict.fromkeys(map(Path, ("/tmp", "/var/tmp", "/run", tempfile.gettempdir())))


def gpu_devices() -> list[str]:
    """Return the device files of this machine's GPUs."""
    return sorted(path for pattern in GPU_DEVICES for path in glob(pattern))
