"""The only HTTP client. In a timed block it just sends, reads and takes times; interpretation comes later.

It never repeats a request, follows a redirection, keeps a cookie, or uses a proxy from the environment. Connections are
kept for a block and its readings of counters. Idle connections are closed before the server would close them.

What a server may send is limited: a longer answer is a BackendError, and the rest of it is not read. Compressed answers
are neither asked for nor taken, so that few bytes cannot become many.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import ssl
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from time import monotonic_ns
from typing import Any, Final, TypeVar

import aiohttp

from specgate.backends.servers.events import Piece
from specgate.backends.servers.exchange import Json
from specgate.backends.servers.secrets import Secret
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import masked
from specgate.errors import BackendError

KEEP_ALIVE_S: Final = 2.0
"""Below the 5 s that are common for servers: a block must not use a connection that the server is about to close."""
CONNECT_S: Final = 10.0
MIB: Final = 1 << 20
ANSWER_LIMIT: Final = 8 * MIB
"""Bytes of an answer that is not streamed: counters and lists. Real ones have some hundred kilobytes at most."""
ERROR_LIMIT: Final = 8 << 10
"""Bytes that are read of an answer that refuses something. A longer one is cut off."""
HEADER_LIMIT: Final = 8 << 10
"""Bytes of one line of an answer's head."""
STREAM_SLACK: Final = MIB
BYTES_PER_TOKEN: Final = 4 << 10
BYTES_PER_EARLIER_TOKEN: Final = 24
"""For servers whose events repeat what came before: the digits of an id, and its text."""
BYTES_PER_CANDIDATE: Final = 512
"""An id, a log-probability, and the text, which may be spelt out byte by byte."""
PIECES_PER_TOKEN: Final = 16
BYTES_PER_PIECE: Final = 4 << 10

AS_JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}
OVERLOADED: Final = (429, 503)
"""Too Many Requests, Service Unavailable: what a server says when it takes no more requests for now."""
REFUSED_S: Final = 0.1
"""A client that was turned away waits so long, where only the time ends its requests."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with another status than 200."""

    status: int
    error: BackendError


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """Upper bounds of one streamed answer: `size` bytes in `pieces` reads."""

    size: int
    pieces: int

    @classmethod
    def of(cls, new_tokens: int, *, cumulative: bool, top: int = 0) -> StreamLimit:
        """The limit for an answer of `new_tokens` tokens with `top` candidates each; `cumulative`: each event repeats
        all tokens so far.
        """
        per_token = BYTES_PER_TOKEN + BYTES_PER_CANDIDATE * top
        per_token += BYTES_PER_EARLIER_TOKEN * new_tokens if cumulative else 0
        size = STREAM_SLACK + new_tokens * per_token
        return cls(size, PIECES_PER_TOKEN * new_tokens + size // BYTES_PER_PIECE)


@dataclass(frozen=True, slots=True)
class Recording:
    """One streamed answer as it came in. Times are nanoseconds since the block began.

    `due_ns`: when it was to be sent in an open loop; None where only the client set the time.
    `began_ns`: when the block began, by `time.monotonic_ns`; None where nobody noted it.
    """

    sent_ns: int
    pieces: tuple[Piece, ...]
    due_ns: int | None = None
    began_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A request that the server refused for too much load. `reason`: as the server gave it."""

    status: int
    at_ns: int
    reason: str


class Client:
    """Talks to one server from one thread. After `stall_s` seconds of silence, the server counts as hung."""

    def __init__(self, url: str, *, stall_s: float, secret: Secret) -> None:
        self.url, self.stall_s, self.secret = url.rstrip("/"), stall_s, secret
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(self._open())

    async def _open(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self.stall_s)
        # No limit on connections: a request that waits for one here would look like a slow server.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers={"Accept-Encoding": "identity", **self.secret.headers()},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
        )

    def close(self) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()

    # ── timed ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stream(self, path: str, bodies: Sequence[Json], limit: StreamLimit) -> list[Recording]:
        """Post all `bodies` at once and record every answer to its end. Raises BackendError, also for an answer beyond
        `limit`; one failure ends all.
        """
        return self._run(self._stream_all(path, bodies, limit))

    async def _stream_all(self, path: str, bodies: Sequence[Json], limit: StreamLimit) -> list[Recording]:
        began = monotonic_ns()
        tasks = [asyncio.ensure_future(self._record(path, body, began, limit)) for body in bodies]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def serve(
        self, path: str, bodies: Sequence[Json], limit: StreamLimit, offered: OfferedLoad
    ) -> list[Recording | TurnedAway]:
        """Post `bodies` as `offered` says, and record every answer to its end: request i is of body i, or of the i-th
        where a closed loop takes the list again.

        A request that is turned away is not repeated. Any other failure ends all: raises BackendError. Bodies become
        text before the block begins, so that a long prompt delays no other request.
        """
        texts = [json.dumps(body).encode() for body in bodies]
        return self._run(self._serve_all(path, texts, limit, offered))

    async def _serve_all(
        self, path: str, bodies: Sequence[bytes], limit: StreamLimit, offered: OfferedLoad
    ) -> list[Recording | TurnedAway]:
        recordings: dict[int, Recording | TurnedAway] = {}
        until_ns = math.inf if offered.until_ns is None else offered.until_ns
        began = monotonic_ns()

        def in_time() -> Iterator[tuple[int, bytes]]:
            for number, body in enumerate(bodies if offered.until_ns is None else cycle(bodies)):
                if number and monotonic_ns() - began > until_ns:  # one is sent however short the time is
                    return
                yield number, body

        waiting = in_time()

        async def one_client(starts_ns: int) -> None:
            if starts_ns:
                await asyncio.sleep((starts_ns - (monotonic_ns() - began)) / 1e9)
            for number, body in waiting:  # all clients share the list: whoever is free sends the next request
                recordings[number] = await self._attempt(path, body, began, limit, None)
                if isinstance(recordings[number], TurnedAway) and offered.until_ns is not None:
                    await asyncio.sleep(REFUSED_S)

        async def one_arrival(number: int, due_ns: int) -> None:
            recordings[number] = await self._attempt(path, bodies[number], began, limit, due_ns)

        try:
            async with asyncio.TaskGroup() as group:
                for starts_ns in offered.starts_ns():
                    group.create_task(one_client(starts_ns))
                # One after the other, so that a late sender keeps their order, too.
                for number, due_ns in enumerate(offered.arrivals_ns):
                    await asyncio.sleep((due_ns - (monotonic_ns() - began)) / 1e9)
                    group.create_task(one_arrival(number, due_ns))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [recordings[number] for number in range(len(recordings))]

    async def _attempt(
        self, path: str, body: bytes, began: int, limit: StreamLimit, due_ns: int | None
    ) -> Recording | TurnedAway:
        answer = await self._exchange(path, body, began, limit)
        if not isinstance(answer, Refusal):
            return replace(answer, due_ns=due_ns)
        if answer.status not in OVERLOADED:
            raise answer.error
        return TurnedAway(answer.status, monotonic_ns() - began, answer.error.message)

    async def _record(self, path: str, body: Json, began: int, limit: StreamLimit) -> Recording:
        answer = await self._exchange(path, body, began, limit)
        if isinstance(answer, Refusal):
            raise answer.error
        return answer

    async def _exchange(self, path: str, body: Json | bytes, began: int, limit: StreamLimit) -> Recording | Refusal:
        pieces: list[Piece] = []
        size = 0
        content: dict[str, Any] = {"data": body, "headers": AS_JSON} if isinstance(body, bytes) else {"json": body}
        sent = monotonic_ns()
        async with await self._sent("POST", path, **content) as response:
            if response.status != 200:
                error = await self._refused(path, response)
                in_ids = not isinstance(body, bytes) and isinstance(body.get("prompt"), list)
                if in_ids and response.status in (400, 422) and WANTS_TEXT.search(error.message):
                    error.hint = IDS_REFUSED
                return Refusal(response.status, error)
            self._refuse_compressed(path, response)
            async for data in response.content.iter_any():
                pieces.append((monotonic_ns() - began, data))
                size += len(data)
                if size > limit.size or len(pieces) > limit.pieces:
                    raise BackendError(
                        f"{self.url}{path}: a stream of more than {limit.size} bytes or {limit.pieces} pieces "
                        f"({size} bytes in {len(pieces)} so far)",
                        hint="far more than the tokens that were asked for take",
                    )
        return Recording(sent - began, tuple(pieces), began_ns=began)

    async def _sent(self, method: str, path: str, **content: Any) -> aiohttp.ClientResponse:
        """The answer to a request. llama.cpp closes a connection after a stream although it promises to keep it: then
        the request is sent once more, on another one.
        """
        try:
            return await self._session.request(method, self.url + path, allow_redirects=False, **content)
        except aiohttp.ClientConnectorError:  # no connection at all
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            return await self._session.request(method, self.url + path, allow_redirects=False, **content)

    # ── not timed ────────────────────────────────────────────────────────────────────────────────────────────────────

    def text(self, path: str, *, method: str = "GET", body: Json | None = None, may_be_missing: bool = False) -> str:
        """The body of an answer with status 200; "" for a missing path where that is allowed. Raises BackendError."""
        return self._run(self._text(path, method, body, may_be_missing))

    def post(self, path: str, body: Json | None, silent_s: float) -> tuple[int, str]:
        """(status, the beginning of what is said) of a POST, whatever the status. Raises BackendError, also after
        `silent_s` seconds of silence.
        """
        return self._run(self._post(path, body, silent_s))

    def json(self, path: str, *, body: Json | None = None, may_be_missing: bool = False) -> Any:
        """The JSON at `path`, of a POST if there is a `body`; None for a missing path where that is allowed. Raises
        BackendError, also where the answer is not JSON.
        """
        text = self.text(path, method="GET" if body is None else "POST", body=body, may_be_missing=may_be_missing)
        if may_be_missing and not text:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BackendError(f"{self.url}{path}: not JSON: {masked(text)[:80]!r}") from error

    def status(self, path: str) -> int:
        """The status of a GET; 0 where nothing listens (yet). Raises BackendError for TLS errors and for silence."""
        return self._run(self._status(path))

    async def _text(self, path: str, method: str, body: Json | None, may_be_missing: bool) -> str:
        async with await self._sent(method, path, json=body) as response:
            if response.status == 404 and may_be_missing:
                return ""
            if response.status != 200:
                raise await self._refused(path, response)
            return (await self._body(path, response)).decode("utf-8", errors="replace")

    async def _post(self, path: str, body: Json | None, silent_s: float) -> tuple[int, str]:
        waiting = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)
        try:
            async with self._session.post(
                self.url + path, json=body, allow_redirects=False, timeout=waiting
            ) as response:
                return response.status, await self._beginning(response)
        except aiohttp.ServerTimeoutError as error:
            raise BackendError(f"{self.url}{path}: silent for {silent_s:g} s") from error

    async def _body(self, path: str, response: aiohttp.ClientResponse) -> bytes:
        """The whole body. Raises BackendError where it is longer than ANSWER_LIMIT."""
        self._refuse_compressed(path, response)
        body, stated = bytearray(), response.content_length
        while len(body) <= ANSWER_LIMIT and (stated is None or stated <= ANSWER_LIMIT):
            if not (piece := await response.content.readany()):
                return bytes(body)
            body += piece
        size = f"{stated} bytes" if stated else f"more than {len(body)} bytes"
        raise BackendError(f"{self.url}{path}: an answer of {size}, where at most {ANSWER_LIMIT} are taken")

    def _refuse_compressed(self, path: str, response: aiohttp.ClientResponse) -> None:
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise BackendError(
                f"{self.url}{path}: an answer in Content-Encoding {encoding[:40]!r}, where identity was asked for",
                hint="switch the server's compression off",
            )

    async def _status(self, path: str) -> int:
        try:
            async with self._session.get(self.url + path, allow_redirects=False) as response:
                if response.status == 200:  # read to its end, so that the connection can be used again
                    await self._body(path, response)
                return response.status
        except (aiohttp.ClientSSLError, aiohttp.SocketTimeoutError):
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            return 0

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`. Errors of the HTTP library become BackendError, without any secret in their text."""
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        except aiohttp.ServerTimeoutError as error:
            raise BackendError(
                f"{self.url}: silent for {self.stall_s:g} s", hint="-o stall_s=SECONDS waits longer"
            ) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise BackendError(
                f"{self.url}: TLS: {self._reason(error)}",
                hint="SSL_CERT_FILE=FILE names a certificate that is not known here; or is it http?",
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise BackendError(
                f"{self.url}: the connection broke: {type(error).__name__}: {self._reason(error)}",
                hint="has it ended? Its log says why",
            ) from error
        finally:
            task.cancel()  # one that Ctrl-C cut short would be told of as an error when the connections close

    def _reason(self, error: Exception) -> str:
        return masked(str(error))[:300]

    async def _refused(self, path: str, response: aiohttp.ClientResponse) -> BackendError:
        """Return the error for an answer with another status than 200, with the server's own text."""
        reason, status = await self._beginning(response), response.status
        hint = WRONG_KEY if status in (401, 403) and self.secret.headers() else HINTS.get(status)
        to = response.headers.get("Location", "")
        return BackendError(f"{self.url}{path}: HTTP {status}: {masked(f'to {to}'[:200]) if to else reason}", hint=hint)

    async def _beginning(self, response: aiohttp.ClientResponse) -> str:
        """Return the beginning of the response's text, on one line."""
        body = bytearray()
        while len(body) < ERROR_LIMIT and (piece := await response.content.readany()):
            body += piece
        text = masked(" ".join(body[:ERROR_LIMIT].decode("utf-8", errors="replace").split()))[:300]
        return text or "no reason given"


WANTS_TEXT: Final = re.compile(r"\b(?:string|str)\b", re.IGNORECASE)
IDS_REFUSED: Final = "does it take no token ids? -o prompts=text --tokenizer FILE sends texts, -o endpoint=chat chats"
WRONG_KEY: Final = "it does not take the key in the variable that -o api_key_env names"
HINTS: Final[Mapping[int, str]] = {
    401: "name the variable that holds its key: -o api_key_env=NAME",
    403: "name the variable that holds its key: -o api_key_env=NAME",
    404: "is that server of the engine that --backend names, and in a version that docs/engines.md names? "
    "-o endpoint=chat asks its chat end point",
    429: "the server is limited or in use: a measurement needs it alone, and room for the whole batch",
    503: "wait until the server has loaded its model and takes requests",
}
