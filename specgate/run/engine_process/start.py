"""The program that an engine's process runs: `python -P start.py IMPORT_PATH SOCKET LIFE_LINE`.

IMPORT_PATH is the harness's `sys.path` as JSON, so that both import the same code, installed or not; or an object with
the folders that come before and after the interpreter's own, for another build than the harness's. SOCKET carries the
messages. LIFE_LINE is the reading end of a pipe whose other end only the harness has: nothing is ever written to it,
and it closes however the harness ends, SIGKILL included. The engine may then hang in a call and never read the socket,
so a thread of its own waits for that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper


def main(arguments: Sequence[str]) -> None:
    """Answer requests until one asks to close, or the harness ends."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the harness handles Ctrl-C: it saves, then closes this process
    path, connection, life_line = arguments
    for descriptor in (int(connection), int(life_line)):
        os.set_inheritable(descriptor, False)  # programs that the engine starts must not hold them open
    threading.Thread(target=_end_with_harness, args=(int(life_line),), daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # a killed process leaves whole lines
    sys.path[:] = import_path(json.loads(path), sys.path)
    with socket.socket(fileno=int(connection)) as harness:
        _serve(harness)


def import_path(folders: list[str] | dict[str, list[str]], own: Sequence[str]) -> list[str]:
    """The import path of this process: `folders`, with the interpreter's `own` folders where they belong."""
    if isinstance(folders, list):
        return folders
    return list(dict.fromkeys([*folders["first"], *own, *folders["last"]]))


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


def _end_with_harness(life_line: int) -> None:
    os.read(life_line, 1)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
