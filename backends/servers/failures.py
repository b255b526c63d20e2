"""Find known causes of failure in a server's log, and say what to do about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.contract import LogCause
from specgate.contract.protocols import cleaned

LONGEST_LINE: Final = 160
PYTHON_ERROR: Final = re.compile(r"(?:^|\] )([A-Za-z_.]*(?:Error|Exception): .*)")
"""The last line of a traceback, alone or after a logger's `[file.py:123] `."""
READ_AT_MOST: Final = 1 << 20
"""Bytes at the end of the log that are read."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A log line that matches `pattern` (regular expression, ignoring case) has this `cause`.

    A `silent` failure does not stop the server: it continues without the draft, or with a wrong one.
    """

    pattern: str
    cause: str
    silent: bool = False


COMMON: Final = (
    Failure(
        r"address already in use|errno 98|couldn't bind", "the port is in use: leave out -o port, or name a free one"
    ),
    Failure(r"out of memory|OutOfMemoryError|No available memory for the cache blocks|failed to allocate",
            "memory ran out: several servers share it (-o servers=apart runs one at a time)"),
    Failure(r"cudaErrorIllegalAddress|illegal memory access",
            "CUDA error: a kernel read or wrote outside its buffers, as of blocks that were rewound; "
            "-o env.CUDA_LAUNCH_BLOCKING=1 names the call (TurboMind: env.LMDEPLOY_EAGLE_INVARIANTS_DEBUG=1)"),
    Failure(r"cudaErrorInvalidValue|CUDA( runtime)? error.*invalid argument",
            "CUDA error: a copy is longer than its buffer, or a launch larger than the GPU allows; "
            "-o env.CUDA_LAUNCH_BLOCKING=1 names the call (TurboMind: env.LMDEPLOY_EAGLE_INVARIANTS_DEBUG=1)"),
    Failure(r"size mismatch|shape mismatch|shapes cannot be multiplied|wrong shape|The size of tensor a|expected shape",
            "width error: a tensor of the draft does not fit this target (fc is [hidden, 3 · target hidden])"),
    Failure(
        r"unrecognized arguments|^(?!.*CUDA).*invalid argument|no such option|error: unknown argument",
        "a flag that this version of the server does not know: docs/engines.md names the versions, -o args your flags",
    ),
    # A module that an engine says it does without, in a warning, is not what ended it.
    Failure(r"^(?!.*\bWARNING\b).*(No module named|ModuleNotFoundError)",
            "the server's Python lacks a module: name its own with -o program"),
    # openai/harmony's exception, as vLLM and SGLang log it, and the words of parsers that go on with raw text.
    Failure(r"HarmonyError|harmony pars\w+.{0,20}(fail|error)|(fail\w*|error) .{0,20}(harmony|reasoning).{0,9}pars",
            "a parser of harmony or reasoning failed on an answer: compare with it off (docs/server.md)"),
    Failure(r"no such file or directory|does not exist|not a local folder", "a file of the command is missing"),
)  # fmt: skip


def explain(lines: Iterable[str], failures: Sequence[Failure]) -> Iterator[tuple[Failure, str]]:
    """Every known failure, with the first line that shows it."""
    first_lines: dict[Failure, str] = {}
    for line in lines:
        for failure in failures:
            if failure not in first_lines and re.search(failure.pattern, line, re.IGNORECASE):
                first_lines[failure] = line.strip()[:LONGEST_LINE]
    yield from first_lines.items()


def causes_in(lines: Iterable[str], failures: Sequence[Failure]) -> list[LogCause]:
    """The lines that show one of an engine's own `failures`, or a common one, counted."""
    known = list(lines)
    return [
        LogCause(f.cause, line, f.silent, sum(bool(re.search(f.pattern, text, re.IGNORECASE)) for text in known))
        for f, line in explain(known, (*failures, *COMMON))
    ]


def first_error(lines: Iterable[str]) -> str | None:
    """The last line of the first Python traceback, without a logger's prefix.

    The first one counts because later ones follow from it, where one process reports the end of another.
    """
    matches = (PYTHON_ERROR.search(line) for line in lines)
    return next((match[1] for match in matches if match), None)


def read_end(log: Path, start: int = 0) -> list[str]:
    """The last lines of a log that may be long or missing, cleaned. What is before byte `start` belongs to an earlier
    server.
    """
    try:
        with log.open("rb") as stream:
            start = max(start, log.stat().st_size - READ_AT_MOST)
            stream.seek(start and start - 1)
            if start and stream.read(1) != b"\n":
                stream.readline()  # half a line, and in it half a credential that would not be known as one
            return cleaned(stream.read(READ_AT_MOST).decode(errors="replace")).splitlines()
    except OSError:
        return []


def cause(lines: Sequence[str], failures: Sequence[Failure]) -> str | None:
    """Return the reason for a failure of a server that still runs, if these log lines state one."""
    return known_causes(lines, failures) or first_error(lines)


def known_causes(lines: Iterable[str], failures: Sequence[Failure]) -> str:
    """The known causes, each with its log line."""
    return "\n  ".join(f"{failure.cause}\n    {line}" for failure, line in explain(lines, failures))


def diagnosis(log: Path, start: int, failures: Sequence[Failure]) -> str:
    """The known causes of failure in `log` from byte `start` on, or else its last lines."""
    lines = read_end(log, start)
    if known := known_causes(lines, failures):
        return f"{known}\n  log: {log}"
    last_lines = [line for line in lines if line.strip()][-6:]
    if not last_lines:
        return f"it has printed nothing: {log}"
    if (error := first_error(lines)) is not None:
        last_lines = [error, "…", *last_lines[-2:]]
    return f"last lines of {log}:\n    " + "\n    ".join(line[:LONGEST_LINE] for line in last_lines)
