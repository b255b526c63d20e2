"""A web server for stubs, with aiohttp's names: a process that imports aiohttp takes four times as long to start."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any


@dataclass
class Request:
    """A whole request. The names of its `headers` are written as `Content-Type` is."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    writer: asyncio.StreamWriter

    async def text(self) -> str:
        return self.body.decode()

    async def json(self) -> Any:
        return json.loads(self.body)

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self.writer.transport


@dataclass
class StreamResponse:
    """An answer in chunks, one for each `write`."""

    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    writer: asyncio.StreamWriter | None = None

    async def prepare(self, request: Request) -> None:
        """Send its head."""
        self.writer = request.writer
        self.writer.write(self.head(**{"Transfer-Encoding": "chunked"}))

    def head(self, **more: str) -> bytes:
        headers = (f"{name}: {value}" for name, value in {**self.headers, **more}.items())
        return "\r\n".join((f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", *headers, "", "")).encode()

    async def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if data else b"")
        await self.writer.drain()

    async def finish(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class Response(StreamResponse):
    """An answer that is there at once."""

    def __init__(self, text: str = "", status: int = 200, content_type: str = "text/plain") -> None:
        super().__init__({"Content-Type": f"{content_type}; charset=utf-8"}, status)
        self.body = text.encode()

    async def finish(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self.head(**{"Content-Length": str(len(self.body))}) + self.body)
        await writer.drain()


def json_response(body: object, status: int = 200) -> Response:
    return Response(json.dumps(body), status, "application/json")


Handler = Callable[[Request], Awaitable[StreamResponse]]


@dataclass(frozen=True)
class RouteDef:
    """Requests by `method`, or any for `*`, at `path`."""

    method: str
    path: str
    handler: Handler


def get(path: str, handler: Handler) -> RouteDef:
    return RouteDef("GET", path, handler)


def post(path: str, handler: Handler) -> RouteDef:
    return RouteDef("POST", path, handler)


def serve(routes: Iterable[RouteDef], port: int) -> None:
    """Answer requests to `port` until the process is ended."""
    handlers = {(route.method, route.path): route.handler for route in routes}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await received(reader, writer):
                handler = handlers.get((request.method, request.path)) or handlers.get(("*", request.path))
                response = await answered(handler, request) if handler else Response(status=404)
                await response.finish(writer)
        writer.close()

    async def forever() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(forever())


async def answered(handler: Handler, request: Request) -> StreamResponse:
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except Exception:
        traceback.print_exc()
        return Response(status=500)


async def received(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request; None, after an answer that says so, where another protocol is spoken, such as TLS."""
    first = await reader.readexactly(1)
    if not first.isalpha():
        await Response(status=400).finish(writer)
        return None
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    (method, path, _), *lines = (line.split(" ", 2) for line in head.splitlines() if line)
    headers = {name.removesuffix(":").title(): " ".join(value) for name, *value in lines}
    body = await reader.readexactly(int(headers.get("Content-Length", 0)))
    return Request(method, path.partition("?")[0], headers, body, writer)
