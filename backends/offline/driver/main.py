"""Drive an inference engine for a process that does not import it.

    python main.py ENGINE DESCRIPTOR

ENGINE is `vllm` or `lmdeploy`. DESCRIPTOR is the number of an open socket. Requests come over it and answers go back,
one JSON object per line. Standard output and standard error are the engine's own.

A request is {"do": "open" | "prompts_are" | "decode" | "ranked" | "follow", …}, the name of a method and its arguments.
Its answer is {"ok": …}, or {"error": {"type", "message"}} after a traceback on standard error. While a request is being
carried out, {"alive": N} comes every second, where N grows with what the engine has produced.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import traceback
from typing import Any

ENGINES = {"vllm": "vllm_engine", "lmdeploy": "lmdeploy_engine"}
ALIVE_S = 1.0
LONGEST_MESSAGE = 2000


class Channel:
    """One JSON object per line, in both directions. `send` may be called from several threads."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)  # else a program that the engine starts would keep it open
        self.socket = socket.socket(fileno=number)
        self.lines = self.socket.makefile("rb")
        self.lock = threading.Lock()

    def receive(self) -> dict[str, Any] | None:
        """The next request. None at the end."""
        line = self.lines.readline()
        return json.loads(line) if line else None

    def send(self, message: dict[str, object]) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self.lock:
            self.socket.sendall(data)


class Pulse:
    """Tells the other side how far the engine is, while it is at work."""

    def __init__(self, channel: Channel, engine: Any) -> None:
        self.channel, self.engine = channel, engine
        self.working = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        idle = threading.Event()
        while True:
            self.working.wait()
            idle.wait(ALIVE_S)
            if self.working.is_set():
                try:
                    self.channel.send({"alive": self.engine.progress})
                except OSError:
                    return


def carried_out(engine: Any, request: dict[str, Any]) -> dict[str, object]:
    """The answer to a request. What goes wrong is an answer too: the other side decides what becomes of us."""
    try:
        return {"ok": getattr(engine, request.pop("do"))(**request)}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"error": {"type": type(error).__name__, "message": str(error)[:LONGEST_MESSAGE]}}


def main(name: str, number: int) -> None:
    channel = Channel(number)
    engine = importlib.import_module(ENGINES[name]).Engine()
    pulse = Pulse(channel, engine)
    while (request := channel.receive()) is not None:
        pulse.working.set()
        answer = carried_out(engine, request)
        pulse.working.clear()
        channel.send(answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
