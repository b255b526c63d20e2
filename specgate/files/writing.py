"""Write files whole or not at all, turn disk errors into refusals, mask credentials, and write the home
folder as `~`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specgate.errors import EnvironmentRefused
from specgate.redaction import masked, masked_data, visible_json

_FOLDER = re.escape(str(Path.home()))
# What may not stand before it is asked last: a pattern that begins with fixed text is found twenty times as fast.
_HOME = re.compile(rf"{_FOLDER}(?<![\w/.~-]{_FOLDER})(?=/)") if Path.home() != Path("/") else None


def without_home(text: str) -> str:
    """`text` with the home folder written as `~`, because runs are shared with others."""
    return _HOME.sub("~", text) if _HOME else text


def as_stored(text: str) -> str:
    """`text` as every file stores it: credentials masked, the home folder written as `~`."""
    return masked(without_home(text))


def as_json(data: object, **form: Any) -> str:
    """`data` as JSON in the `form` that `json.dumps` takes, with credentials masked and control characters escaped.
    Raises ValueError for NaN and infinity, which JSON does not have.
    """
    text = json.dumps(data, allow_nan=False, **form)
    if masked(text) != text:  # string by string, since what is not a string must stay as it is
        text = json.dumps(masked_data(data), allow_nan=False, **form)
    return visible_json(text)


def write_text(file: Path, text: str) -> None:
    """Write `text`, as it is stored, atomically: a reader sees the old file or the new one, never half of it. Missing
    folders are made.

    Raises EnvironmentRefused where the disk is full or the folder is not writable.
    """
    write_whole(file, as_stored(text))


def write_json(file: Path, data: object) -> None:
    """Write `data` as `write_text` does. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_whole(file, json_text(data))


def json_text(data: object) -> str:
    """`data` as the text of a JSON file, as it is stored. Raises ValueError for NaN and infinity."""
    return without_home(as_json(data, indent=1, ensure_ascii=False) + "\n")


def write_whole(file: Path, text: str) -> None:
    """Write `text`, which is masked already, as `write_text` does.

    Several processes may write one file of a machine at once: the last one counts.
    """
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with disk(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    with disk(file):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)


@contextmanager
def disk(path: Path, elsewhere: str = "choose another --out") -> Iterator[None]:
    """Turn errors from writing `path` into EnvironmentRefused. `elsewhere`: what chooses another place for it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space, then continue with --resume: finished blocks are kept" if full else elsewhere
        raise EnvironmentRefused(f"{path}: cannot be written: {error.strerror}", hint=hint) from error


def sha256_of(file: Path) -> str:
    """SHA-256 of the file's content, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
