"""The program that an engine's process runs: `python -P start.py IMPORT_PATH SOURCES`, standard input being a socket.

IMPORT_PATH is the harness's `sys.path` as JSON, so that both import the same code, installed or not; or an object with
the folders that come before and after the interpreter's own, for another build than the harness's. SOURCES is JSON,
too: null, or an object with the SHA-256 that specgate's own sources must have when they are imported.

The socket carries the messages. Its other end closes however the harness ends, SIGKILL included. The engine may then
hang in a call and never read it, so a thread of its own waits for that.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import PathEntryFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from io import TextIOWrapper
from types import CodeType

OTHER_SOURCE = 76
"""Exit code of a process that was to import another source than the harness has hashed."""


def main(arguments: Sequence[str]) -> None:
    """Answer requests until one asks to close, or the harness ends."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the harness handles Ctrl-C: it saves, then closes this process
    gc.set_threshold(10_000)  # as the command line has it
    path, sources = arguments
    harness = socket.socket(fileno=os.dup(0))  # programs that the engine starts do not inherit a duplicate
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_end_with_harness, args=(harness.fileno(),), daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # a killed process leaves whole lines
    sys.path[:] = import_path(json.loads(path), sys.path)
    if (known := json.loads(sources)) is not None:
        hold_to(known["folder"], known["sha256"])
    with harness:
        _serve(harness)


def import_path(folders: list[str] | dict[str, list[str]], own: Sequence[str]) -> list[str]:
    """The import path of this process: `folders`, with the interpreter's `own` folders where they belong."""
    if isinstance(folders, list):
        return folders
    return list(dict.fromkeys([*folders["first"], *own, *folders["last"]]))


def hold_to(folder: str, sha256: Mapping[str, str]) -> None:
    """From now on, end this process if a Python source below `folder` is imported whose SHA-256 is another one.

    `sha256`: path below `folder` → the beginning of the SHA-256. Compiled files beside the sources are not used.
    """

    class Held(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            path = self.get_filename(fullname)
            if fullname.partition(".")[0] != "specgate":
                return super().get_code(fullname)
            source = self.get_data(path)
            known = sha256.get(os.path.relpath(path, folder))
            if known is None or not hashlib.sha256(source).hexdigest().startswith(known):
                print(f"{path}: is not the source that was there before the first engine", file=sys.stderr, flush=True)
                os._exit(OTHER_SOURCE)
            return self.source_to_code(source, path)

    hook = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (Held, [".py"]))

    def below(path: str) -> PathEntryFinder:
        if os.path.commonpath((folder, os.path.abspath(path))) != folder:
            raise ImportError(path)
        return hook(path)

    sys.path_hooks.insert(0, below)
    sys.path_importer_cache.clear()


def _serve(harness: socket.socket) -> None:
    # The import path was not known before.
    from specgate.run.engine_process.frames import Closed, receive, send
    from specgate.run.engine_process.service import Service

    service = Service()
    while True:
        try:
            request = receive(harness)
        except Closed:
            service.close()
            return
        answer = service.answer(request)
        if answer is None:
            return
        send(harness, answer)


def _end_with_harness(connection: int) -> None:
    poll = select.poll()
    poll.register(connection, 0)  # its end is told unasked
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
