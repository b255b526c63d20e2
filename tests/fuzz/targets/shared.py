"""Common parts of several targets: the exit codes that readers may end with, and inputs as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from specgate import plugins
from specgate.contract.protocols import Gate
from specgate.errors import ExitCode

USAGE: Final = (ExitCode.USAGE,)
STORED: Final = (ExitCode.INVALID, ExitCode.USAGE, ExitCode.ENV_REJECTED)
CHECKPOINT: Final = (ExitCode.BACKEND_ERROR,)


def gates() -> Mapping[str, Gate]:
    return plugins.gates()


def plain(document: object) -> bytes:
    return json.dumps(document).encode()


def typed(words: Sequence[str]) -> bytes:
    return "\n".join(words).encode()
