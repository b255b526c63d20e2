"""The engine's end of the messages: it opens the engine, and answers one request after the other."""

from __future__ import annotations

from typing import Any

import specgate.run.engine_process.questions  # noqa: F401  # with these calls, CALLS is complete
from specgate.contract.protocols import Engine
from specgate.errors import BackendError
from specgate.run.engine_process.blocks import Close, Open
from specgate.run.engine_process.wire import Call, answer_message, error_message, request_of


class Service:
    """Answers requests with an engine of its own."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def answer(self, body: bytes) -> bytes | None:
        """Return the answer to a request. Returns None after a request to close, which has none."""
        number, request = request_of(body)
        if isinstance(request, Close):
            self.close()
            return None
        try:
            return answer_message(number, request, request.ask(self._engine_for(request)))
        except BaseException as error:
            return error_message(number, request, error)

    def close(self) -> None:
        """Close the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _engine_for(self, request: Call[Any]) -> Engine:
        if isinstance(request, Open):
            self._engine = request.engine()
        if self._engine is None:
            raise BackendError(f"{request.kind} asked for, but no engine is open")
        return self._engine
