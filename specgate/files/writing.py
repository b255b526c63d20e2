"""Write files whole or not at all, turn disk errors into refusals, and write the home folder as `~`."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specgate.errors import EnvironmentRefused

_HOME = re.compile(rf"(?<![\w/.~-]){re.escape(str(Path.home()))}(?=/)") if Path.home() != Path("/") else None


def without_home(text: str) -> str:
    """`text` with the home folder written as `~`, because runs are shared with others."""
    return _HOME.sub("~", text) if _HOME else text


def write_text(file: Path, text: str) -> None:
    """Write `text` atomically: a reader sees the old file or the new one, never half of it. Missing folders are made.

    Raises EnvironmentRefused where the disk is full or the folder is not writable.
    """
    temporary = file.with_name(file.name + ".tmp")
    with disk(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    with disk(file):
        temporary.write_text(without_home(text), encoding="utf-8")
        temporary.replace(file)


def write_json(file: Path, data: object) -> None:
    """Write `data` as `write_text` does. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(file, as_json(data))


def as_json(data: object) -> str:
    """`data` as the text of a JSON file. Raises ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn errors from writing `path` into EnvironmentRefused."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = (
            "free some space, then continue with --resume: finished blocks are kept" if full else "choose another --out"
        )
        raise EnvironmentRefused(f"{path}: cannot be written: {error.strerror}", hint=hint) from error


def sha256_of(file: Path) -> str:
    """SHA-256 of the file's content, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
