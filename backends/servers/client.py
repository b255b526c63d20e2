"""The only HTTP client. In a timed block it just sends, reads and takes times; interpretation comes later.

It never repeats a request, follows a redirection, or uses a proxy from the environment. Connections are kept for a
block and its readings of counters. Idle connections are closed before the server would close them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, TypeVar

import aiohttp

from specgate.backends.servers.events import Piece
from specgate.backends.servers.exchange import Json
from specgate.backends.servers.secrets import Secret
from specgate.errors import BackendError

KEEP_ALIVE_S: Final = 2.0
"""Below the 5 s that are common for servers: a block must not use a connection that the server is about to close."""
CONNECT_S: Final = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recording:
    """One streamed answer as it came in. Times are nanoseconds since the block began."""

    sent_ns: int
    pieces: tuple[Piece, ...]


class Client:
    """Talks to one server from one thread.

    `concurrency` is the largest number of simultaneous streams. After `stall_s` seconds of silence, the server counts
    as hung.
    """

    def __init__(self, url: str, *, concurrency: int, stall_s: float, secret: Secret) -> None:
        self.url, self.stall_s, self.secret = url.rstrip("/"), stall_s, secret
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(self._open(concurrency))

    async def _open(self, concurrency: int) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self.stall_s)
        connector = aiohttp.TCPConnector(limit=concurrency, keepalive_timeout=KEEP_ALIVE_S)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self.secret.headers())

    def close(self) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()

    # ── timed ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stream(self, path: str, bodies: Sequence[Json]) -> list[Recording]:
        """Post all `bodies` at once and record every answer to its end. Raises BackendError; one failure ends all."""
        return self._run(self._stream_all(path, bodies))

    async def _stream_all(self, path: str, bodies: Sequence[Json]) -> list[Recording]:
        began = perf_counter_ns()
        tasks = [asyncio.ensure_future(self._record(path, body, began)) for body in bodies]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _record(self, path: str, body: Json, began: int) -> Recording:
        pieces: list[Piece] = []
        sent = perf_counter_ns()
        async with self._session.post(self.url + path, json=body, allow_redirects=False) as response:
            if response.status != 200:
                raise self._refused(path, response.status, await response.text(errors="replace"))
            async for data in response.content.iter_any():
                pieces.append((perf_counter_ns() - began, data))
        return Recording(sent - began, tuple(pieces))

    # ── not timed ────────────────────────────────────────────────────────────────────────────────────────────────────

    def text(self, path: str, *, method: str = "GET", may_be_missing: bool = False) -> str:
        """The body of an answer with status 200; "" for a missing path where that is allowed. Raises BackendError."""
        return self._run(self._text(path, method, may_be_missing))

    def json(self, path: str) -> Any:
        """The JSON at `path`. Raises BackendError, also where the answer is not JSON."""
        import json

        text = self.text(path)
        try:
            return json.loads(text)
        except ValueError as error:
            raise BackendError(f"{self.url}{path}: not JSON: {self.secret.hidden_in(text[:80])!r}") from error

    def status(self, path: str) -> int:
        """The status of a GET; 0 where nothing listens (yet). Raises BackendError for TLS errors."""
        return self._run(self._status(path))

    async def _text(self, path: str, method: str, may_be_missing: bool) -> str:
        async with self._session.request(method, self.url + path, allow_redirects=False) as response:
            text = await response.text(errors="replace")
            if response.status == 404 and may_be_missing:
                return ""
            if response.status != 200:
                raise self._refused(path, response.status, text)
            return text

    async def _status(self, path: str) -> int:
        try:
            async with self._session.get(self.url + path, allow_redirects=False) as response:
                await response.read()
                return response.status
        except aiohttp.ClientSSLError:
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return 0

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`. Errors of the HTTP library become BackendError, without any secret in their text."""
        try:
            return self._loop.run_until_complete(work)
        except aiohttp.ServerTimeoutError as error:
            raise BackendError(
                f"{self.url}: silent for {self.stall_s:g} s", hint="-o stall_s=SECONDS waits longer"
            ) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise BackendError(
                f"{self.url}: TLS: {self._said(error)}", hint="is it http, or its certificate not known here?"
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise BackendError(
                f"{self.url}: the connection broke: {type(error).__name__}: {self._said(error)}"
            ) from error

    def _said(self, error: Exception) -> str:
        return self.secret.hidden_in(str(error))

    def _refused(self, path: str, status: int, text: str) -> BackendError:
        said = " ".join(self.secret.hidden_in(text).split())[:300]
        return BackendError(f"{self.url}{path}: HTTP {status}: {said or 'no reason given'}", hint=HINTS.get(status))


HINTS: Final[Mapping[int, str]] = {
    401: "name the variable that holds its key: -o api_key_env=NAME",
    403: "name the variable that holds its key: -o api_key_env=NAME",
    404: "is that server of the engine that --backend names, and in a version that docs/engines.md names?",
    429: "the server is limited or in use: a measurement needs it alone, and room for the whole batch",
}
