"""One input to one target, and what is wrong with how it ended."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

from hypothesis.strategies import SearchStrategy

from specgate.errors import ExitCode, SpecgateError


@dataclass(frozen=True)
class Ready:
    """A target with its scratch folder set up.

    `inputs`: the strategy. `read`: what is fuzzed. `file`: the file that an input is written to; a message must name
    it, or else one of `named`. `valid`: an input that is read.
    """

    inputs: SearchStrategy[bytes]
    valid: bytes
    read: Callable[[], object]
    file: Path
    codes: Collection[ExitCode]
    named: tuple[str, ...] = ()
    says_where: bool = True


@dataclass(frozen=True)
class Target:
    """A reader. `prepare` makes what it needs in a scratch folder. `inputs`: how many the ordinary suite tries."""

    name: str
    prepare: Callable[[Path], Ready]
    inputs: int = 50


def attempt(ready: Ready, data: bytes, outcome: Counter[str] | None = None) -> str | None:
    """Return the fault in reading `data`; None if it was read, or refused as it should be.

    `outcome` counts how often each happened.
    """
    ready.file.write_bytes(data)
    counts = Counter[str]() if outcome is None else outcome
    try:
        ready.read()
        counts["read"] += 1
    except SpecgateError as error:
        counts["refused"] += 1
        return misrefused(ready, error)
    except (Exception, RecursionError):
        return traceback.format_exc()
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            return traceback.format_exc()
        raise
    return None


def misrefused(ready: Ready, error: SpecgateError) -> str | None:
    """Return the fault in the error that an input was refused with."""
    message = str(error)
    if error.exit_code not in ready.codes:
        return f"exit code {error.exit_code}: {message}"
    if not ready.says_where:
        return None
    if not any(name in message for name in (ready.file.name, *ready.named)):
        return f"the file is not named: {message}"
    if odd := [c for c in message if category(c) in ("Cc", "Cs") and c != "\n"]:
        return f"character U+{ord(odd[0]):04X} in the message: {message!r}"
    if len(message) > 20_000:
        return f"a message of {len(message)} characters: {message[:200]}"
    return None
