"""The processes that a process has started, directly or not, as the kernel lists them. Nothing is changed.

Looking through all processes of a machine takes milliseconds of each block, so only those of the tree are asked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

KERNEL: Final = Path("/proc")


def process_tree(root: int, without: Sequence[int] = (), proc: Path = KERNEL) -> list[int]:
    """Return the number of `root` and those of all that it has started; `without` some of these and all that they
    started. Raises ValueError for a process that has ended, and for a kernel that has no lists of children.
    """
    if not (proc / str(root) / "task" / str(root) / "children").is_file():
        raise ValueError(f"{proc} does not show what process {root} has started")
    tree = [root]
    for pid in tree:
        tree += [child for child in children(pid, proc) if child not in without and child not in tree]
    return tree


def children(pid: int, proc: Path = KERNEL) -> list[int]:
    """Return the processes that each thread of process `pid` has started; [] if it has ended."""
    started: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"{proc}/{pid}/task"):
            with suppress(OSError), open(f"{proc}/{pid}/task/{thread}/children", encoding="ascii") as file:
                started += map(int, file.read().split())
    return started


def family(root: int) -> list[psutil.Process]:
    """Return `root` and all that it has started, on any system; [] if it has ended."""
    processes = []
    with suppress(psutil.NoSuchProcess, ValueError):
        for number in process_tree(root):
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(number))
        return processes
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(root)
        return [first, *first.children(recursive=True)]
    return []
