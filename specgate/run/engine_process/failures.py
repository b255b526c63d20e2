"""Errors as data: a kind from a fixed table, a message and a hint.

The harness makes the error anew. What an engine raises can therefore neither run code here nor be of a class that is
not in the table. `OrderRefused` is left out, since a run that ends with it leaves no entry in the ledger: whether a run
is in order is not for an engine to say. `WorkerLost` is the harness's own finding.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Final

from specgate.errors import BackendError, CheckpointError, EnvironmentRefused, InvalidResult, SpecgateError, UsageError

KINDS: Final[Mapping[str, type[SpecgateError]]] = {
    kind.__name__: kind for kind in (BackendError, CheckpointError, EnvironmentRefused, InvalidResult, UsageError)
}
LONGEST: Final = 16_384
"""Characters of a message or of a hint."""


def as_data(error: BaseException, method: str) -> dict[str, object]:
    """Data that is sent for an error that `method` raised.

    A SpecgateError is sent as it is. Any other becomes a BackendError, and its traceback is printed, which puts it into
    the worker's log.
    """
    if not isinstance(error, SpecgateError):
        print(sendable("".join(traceback.format_exception(error)), 8 * LONGEST), file=sys.stderr, flush=True)
        last_line = traceback.format_exception_only(error)[-1].strip()
        error = BackendError(f"engine failed in {method}: {last_line}", hint="its traceback is in the worker's log")
    kind = next((name for cls in type(error).__mro__ if KINDS.get(name := cls.__name__) is cls), BackendError.__name__)
    hint = None if error.hint is None else sendable(error.hint)
    return {"kind": "error", "error": kind, "message": sendable(error.message), "hint": hint}


def sendable(text: str, most: int = LONGEST) -> str:
    """At most `most` characters of a text, without halves of surrogate pairs, which no encoding has."""
    return str(text)[:most].encode("utf-8", "replace").decode()


def from_data(kind: str, message: str, hint: str | None) -> SpecgateError:
    """The error to raise. A kind that is not in the table becomes a BackendError."""
    return KINDS.get(kind, BackendError)(message, hint=hint)
