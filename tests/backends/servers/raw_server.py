"""A server that answers with any bytes, as lazily as they are read: for answers that no library would send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PIECE = 1 << 16


@dataclass
class Sent:
    """Data that went out: bytes by path, and the heads of all requests."""

    bytes_of: dict[str, int] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)


Answers = Callable[[str], Iterable[bytes]]
"""path → the pieces of an answer, its head included."""


@contextmanager
def raw_server(answers: Answers, *, late: bool = False) -> Iterator[tuple[str, Sent]]:
    """(URL, what was sent) of a server. It closes each connection after one answer; `late`: when a second request comes
    on it.
    """
    sent = Sent()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, args=(listener, answers, sent, late), daemon=True)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(5)


def accept(listener: socket.socket, answers: Answers, sent: Sent, late: bool) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, answers, sent, late), daemon=True).start()


def serve(connection: socket.socket, answers: Answers, sent: Sent, late: bool) -> None:
    with suppress(OSError), connection:
        head = received(connection)
        path = head.split(" ", 2)[1]
        sent.heads.append(head)
        for piece in answers(path):
            connection.sendall(piece)
            sent.bytes_of[path] = sent.bytes_of.get(path, 0) + len(piece)
        if late:
            connection.recv(1)


def received(connection: socket.socket) -> str:
    """Read a whole request; return its head."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(PIECE)
    head, _, body = data.partition(b"\r\n\r\n")
    stated = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(stated[0].partition(b":")[2]) if stated else 0
    while len(body) < length:
        body += connection.recv(PIECE)
    return head.decode()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> list[bytes]:
    head = "\r\n".join((f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""))
    return [head.encode(), body]


def endless(piece: bytes, size: int, *headers: str, status: str = "200 OK") -> Iterator[bytes]:
    """An answer of `size` bytes that does not say how long it is."""
    yield "\r\n".join((f"HTTP/1.1 {status}", *headers, "Connection: close", "", "")).encode()
    for _ in range(size // len(piece)):
        yield piece


def chunked(pieces: Iterable[bytes], *headers: str) -> Iterator[bytes]:
    """An answer in chunks, each of them a piece of its own."""
    yield "\r\n".join(("HTTP/1.1 200 OK", *headers, "Transfer-Encoding: chunked", "", "")).encode()
    for piece in pieces:
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    yield b"0\r\n\r\n"
