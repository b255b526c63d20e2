"""One message on a socket: four fixed bytes, the length of the body, then the body.

The harness reads and writes with a deadline and a limit of size, since the process on the other side may hang, end, or
send anything. The engine's process waits for the next request without a limit.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

MARK: Final = b"sgf1"
HEADER: Final = struct.Struct(">4sQ")
"""MARK, and the number of bytes that follow (big-endian)."""
PIECE: Final = 1 << 20
LOOK_S: Final = 0.25
"""Seconds between two looks at whether the other process still runs. An answer is seen at once."""


class Closed(Exception):
    """The other side has closed the socket, or its process has ended, before the message was whole."""


class Late(Exception):
    """The deadline passed before the message was whole."""


class Unreadable(Exception):
    """Data that is no message, or is larger than it may be. Nothing that follows can be read either."""


def send(connection: socket.socket, body: bytes) -> None:
    """Send a message, however long that takes. Raises OSError if the other side is gone."""
    connection.sendall(HEADER.pack(MARK, len(body)))
    connection.sendall(body)


def receive(connection: socket.socket) -> bytes:
    """The next message, however long it takes to come. Raises Closed if the other side is gone."""
    _, size = HEADER.unpack(_whole(connection, HEADER.size, None))
    return bytes(_whole(connection, size, None))


class Deadline:
    """Seconds that are left of `limit_s`; `running` says whether the process on the other side still runs."""

    def __init__(self, limit_s: float, running: Callable[[], bool]) -> None:
        self.until, self.running = time.monotonic() + limit_s, running

    def wait(self, connection: socket.socket, *, to_write: bool = False) -> None:
        """Return as soon as `connection` can be read (or written).

        A process that has ended may have left a child that keeps its socket open, so its end is looked for too. What it
        had sent before is still read. Raises Late and Closed.
        """
        poll = select.poll()
        poll.register(connection, select.POLLOUT if to_write else select.POLLIN)
        while True:
            left, ran = self.until - time.monotonic(), self.running()
            if poll.poll(1e3 * max(0.0, min(left, LOOK_S)) if ran else 0):
                return
            if not ran:
                raise Closed
            if left <= 0:
                raise Late


def send_within(connection: socket.socket, body: bytes, deadline: Deadline) -> None:
    """Send a message on a non-blocking socket. Raises Late and Closed."""
    left = memoryview(HEADER.pack(MARK, len(body)) + body)
    while left:
        deadline.wait(connection, to_write=True)
        try:
            left = left[connection.send(left[:PIECE]) :]
        except BlockingIOError:
            continue
        except OSError:
            raise Closed from None


def receive_within(connection: socket.socket, limit: int, deadline: Deadline) -> bytes:
    """The next message of at most `limit` bytes from a non-blocking socket. Raises Late, Closed and Unreadable."""
    mark, size = HEADER.unpack(_whole(connection, HEADER.size, deadline))
    if mark != MARK:
        raise Unreadable(f"it begins with {mark!r}: something else than the harness's own code wrote into its pipe")
    if size > limit:
        raise Unreadable(f"it announces {size} bytes, and at most {limit} were expected")
    return bytes(_whole(connection, size, deadline))


def _whole(connection: socket.socket, size: int, deadline: Deadline | None) -> bytearray:
    """Without a `deadline`, the socket blocks."""
    body = bytearray()
    while len(body) < size:
        if deadline is not None:
            deadline.wait(connection)
        try:
            piece = connection.recv(min(PIECE, size - len(body)))
        except BlockingIOError:
            continue
        except OSError:
            raise Closed from None
        if not piece:
            raise Closed
        body += piece
    return body
