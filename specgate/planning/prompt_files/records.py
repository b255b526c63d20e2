"""The records of a prompt file: JSON objects, one per line or in one list, or plain lines, read within bounds.

Every odd file ends in a UsageError that names file and line: a folder, a pipe, other encodings than UTF-8, a line that
is not JSON, a record that is no object, a line of 300 MB. A byte order mark, CRLF line ends and empty lines are fine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from specgate.errors import UsageError
from specgate.files.json_text import parse_json, read_bytes, shown

LARGEST: Final = 1 << 30
"""Bytes of a file, after decompression. The largest public copy of ShareGPT has 0.7 GB."""
LONGEST: Final = 64 << 20
"""Bytes of one line: a prompt of 16 Mi tokens, the longest that is measured."""
GZIP: Final = b"\x1f\x8b"
ONE_PER_LINE: Final = "one JSON object per line, one JSON list of objects, or one plain prompt per line"


class Record(NamedTuple):
    """A JSON object of a prompt file.

    `where`: its place for a message: `prompts.jsonl:17`, or `sharegpt.json[16]` in a list.
    `number`: its line, or its place in a list; both count from 1.
    """

    where: str
    number: int
    data: Mapping[str, Any]


def content_of(path: Path, holds: str = f"prompts: {ONE_PER_LINE}") -> bytes:
    """The bytes of the file. Raises UsageError where there is no such file, or it cannot be read within bounds.

    `holds`: what should be in it, for the message.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path}: not a file: it is a folder, a pipe or a device", hint=f"it must hold {holds}")
        return read_bytes(path, LARGEST)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint=f"it must hold {holds}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # too large, or no name that a file can have
        raise UsageError(f"{shown(str(path), 200)}: cannot be read: {error}") from error


def sha256_of(content: bytes) -> str:
    """SHA-256 of the bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def records_of(path: Path, content: bytes) -> Iterator[Record]:
    """The records in the content of `path`, in order. Raises UsageError at the first that is none."""
    text = utf8(path, content)
    yield from in_list(path, text) if text.lstrip()[:1] == b"[" else in_lines(path, text, object_at)


def plain_records_of(path: Path, content: bytes) -> Iterator[Record]:
    """Yield a record `{"text": line}` for each line of `path` that is not empty. Raises UsageError as `records_of`."""
    yield from in_lines(path, utf8(path, content), text_at)


def is_plain(path: Path, content: bytes) -> bool:
    """Return whether the content of `path` begins as text does, and not as JSON."""
    first = utf8(path, content).lstrip()[:1]
    return bool(first) and first not in b'{["'


def utf8(path: Path, content: bytes) -> bytes:
    """Return the content, decompressed and without a byte order mark. Raises UsageError where it is UTF-16."""
    text = decompressed(path, content).removeprefix(b"\xef\xbb\xbf")
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{path}: UTF-16 text", hint="save it as UTF-8")
    return text


def decompressed(path: Path, content: bytes) -> bytes:
    """The content, without gzip where it begins as gzip does. Raises UsageError where it cannot be decompressed."""
    if not content.startswith(GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            text = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: not whole: it begins as a gzip file does, but: {error}") from error
    if len(text) > LARGEST:
        raise UsageError(f"{path}: more than {LARGEST} bytes after decompression")
    return text


def in_lines(path: Path, text: bytes, read: Callable[[str, bytes], Mapping[str, Any]]) -> Iterator[Record]:
    """Yield the record that `read` makes of each line. Empty lines are passed over."""
    stream = io.BytesIO(text)
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        where = f"{path}:{number}"
        if len(line) > LONGEST:
            raise UsageError(f"{where}: a line of more than {LONGEST} bytes", hint=ONE_PER_LINE)
        if line.strip():
            yield Record(where, number, read(where, line))


def in_list(path: Path, text: bytes) -> Iterator[Record]:
    """The records of one JSON list."""
    items = parsed(str(path), text)
    assert isinstance(items, list)
    for index, data in enumerate(items):
        where = f"{path}[{index}]"
        if not isinstance(data, dict):
            raise UsageError(f"{where}: {shown(data)}: not a JSON object", hint=ONE_PER_LINE)
        yield Record(where, index + 1, data)


def text_at(where: str, line: bytes) -> Mapping[str, Any]:
    """Return a plain line as the record `{"text": line}`. Raises UsageError where it is not UTF-8."""
    try:
        return {"text": line.decode().strip()}
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start + 1}: 0x{line[error.start]:02x}") from None


def object_at(where: str, line: bytes) -> Mapping[str, Any]:
    """The JSON object in one line."""
    data = parsed(where, line)
    if not isinstance(data, dict):
        raise UsageError(f"{where}: {shown(data)}: not a JSON object", hint=ONE_PER_LINE)
    return data


def parsed(where: str, text: bytes) -> object:
    """The JSON value in `text`. Raises UsageError where it has none, or one that is not plain JSON, such as NaN."""
    try:
        return parse_json(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start + 1}: 0x{text[error.start]:02x}") from None
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=ONE_PER_LINE) from None
