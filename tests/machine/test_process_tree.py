"""Trees of processes as the kernel lists them: recorded ones, and this process's own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from specgate.machine.process_tree import family, process_tree


@pytest.mark.parametrize(
    ("root", "without", "tree"), [(2, (), [2, 3, 4, 8]), (1, (), [1, 2, 5, 6, 3, 4, 8]), (1, [2], [1, 5, 6])]
)
def test_a_tree_has_what_was_started_by_any_thread_to_any_depth_and_no_stranger(
    tmp_path: Path, root: int, without: Sequence[int], tree: list[int]
) -> None:
    for pid, thread, children in (
        (1, 1, "2 5 "),
        (2, 2, "3 "),
        (3, 3, "4 "),
        (3, 33, "8 "),
        (5, 5, "6 "),
        (9, 9, "7 "),
    ):
        (folder := tmp_path / str(pid) / "task" / str(thread)).mkdir(parents=True)
        (folder / "children").write_text(children)
    assert sorted(process_tree(root, without, tmp_path)) == sorted(tree)


def test_a_kernel_without_such_lists_is_named_and_the_family_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=f"does not show what process {os.getpid()} has started"):
        process_tree(os.getpid(), (), tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        listed = {process.pid for process in family(os.getpid())}
        monkeypatch.setattr(process_tree, "__defaults__", ((), tmp_path))
        looked_for = {process.pid for process in family(os.getpid())}
        child.communicate(b"\n")
    assert {os.getpid(), child.pid} <= listed == looked_for
    assert family(child.pid) == []


def test_a_process_that_a_thread_has_started_is_in_the_tree() -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        begun.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        ended.wait()

    ended = threading.Event()
    (thread := threading.Thread(target=begin)).start()
    while not begun:
        pass
    assert begun[0].pid in process_tree(os.getpid()) and psutil.pid_exists(begun[0].pid)
    ended.set()
    thread.join()
    begun[0].communicate(b"\n")
