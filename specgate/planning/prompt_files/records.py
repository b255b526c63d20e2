"""The records of a prompt file: JSON objects, texts or lists, one per line or in one list; plain lines; Parquet rows.

Every odd file ends in a UsageError that names file and line: a folder, a pipe, an archive, other encodings than UTF-8,
a line that is not JSON, a record that is a number, a line of 300 MB. A byte order mark, CRLF line ends and empty
lines are fine.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
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
PARQUET: Final = b"PAR1"
PARQUET_EXTRA: Final = "pip install '.[parquet]' in the checkout, or save it as JSON lines"
GZIP: Final = b"\x1f\x8b"
NOT_SPACE: Final = re.compile(rb"\S")
MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8. Files that were put together have it within."""
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
OTHER_FILES: Final[Mapping[bytes, str]] = {
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a file compressed with zstd",
    b"\xfd7zXZ": "a file compressed with xz",
    b"BZh91AY": "a file compressed with bzip2",
    b"SQLite format 3": "an SQLite file",
}
"""First bytes of a file → what it is."""
NOT_LINES: Final[Mapping[str, str]] = {
    ".csv": "a table", ".tsv": "a table", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".xml": "XML",
    ".html": "HTML", ".htm": "HTML", ".md": "Markdown", ".rst": "a document", ".py": "Python", ".sh": "a script",
}  # fmt: skip
"""Suffix of a text whose lines are no prompts → what it is."""
ROWS: Final = 1024
"""Rows of a table that are read at a time."""
HOLDERS: Final = ("data", "rows", "examples", "instances", "prompts", "questions", "train", "test")
"""Keys of a JSON object that has the list of records, if the file is one object."""
ONE_PER_LINE: Final = "one JSON object per line, one JSON list of objects, or one plain prompt per line"


class Record(NamedTuple):
    """A JSON object of a prompt file.

    `where`: its place for a message: `prompts.jsonl:17`, or `sharegpt.json[16]` in a list or a table.
    `number`: its line, or its place in a list or a table; all count from 1.
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
    if content.startswith(PARQUET):
        yield from in_table(path, content)
        return
    text = utf8(path, content)
    start = match.start() if (match := NOT_SPACE.search(text)) else 0
    end = text.find(b"\n", start) + 1 or len(text)
    first = text[start:end]
    several = NOT_SPACE.search(text, end) is not None and is_json(first)
    if first[:1] == b"[" and not several:
        yield from in_list(str(path), parsed(str(path), text))
    elif first[:1] == b"{" and not several and (whole := held_by(text)) is not None:
        yield from in_list(f"{path}: {whole[0]}", whole[1])
    else:
        yield from in_lines(path, text, object_at)


def is_json(line: bytes) -> bool:
    """Return whether a line is a JSON value by itself. A line that is too long is refused later."""
    try:
        parse_json(line[: LONGEST + 1])
    except ValueError:
        return False
    return True


def held_by(text: bytes) -> tuple[str, object] | None:
    """Return the key of `HOLDERS` and its list, where the text is one JSON object with such a list; else None."""
    try:
        data = parse_json(text[: LONGEST + 1])
    except ValueError:
        return None
    lists = ((key, data[key]) for key in HOLDERS if isinstance(data, dict) and isinstance(data.get(key), list))
    return next(lists, None)


def plain_records_of(path: Path, content: bytes) -> Iterator[Record]:
    """Yield a record `{"text": line}` for each line of `path` that is not empty. Raises UsageError as `records_of`."""
    yield from in_lines(path, utf8(path, content), text_at)


def is_plain(path: Path, content: bytes) -> bool:
    """Return whether the content of `path` begins as text does, and not as JSON. Raises UsageError for a text whose
    lines are no prompts.
    """
    if content.startswith(PARQUET):
        return False
    first = utf8(path, content).lstrip()[:1]
    plain = bool(first) and first not in b'{["'
    if plain and (kind := NOT_LINES.get(path.suffix.lower())):
        hint = f"save it as {ONE_PER_LINE}; --format plain-lines takes every line as it is"
        raise UsageError(f"{path}: {kind} ({path.suffix})", hint=hint)
    return plain


def utf8(path: Path, content: bytes) -> bytes:
    """Return the content, decompressed and without a byte order mark. Raises UsageError where it is UTF-16."""
    text = decompressed(path, content).removeprefix(MARK)
    if text[:2] in UTF_16 or b"\0" in text[:4]:
        raise UsageError(f"{path}: UTF-16 text", hint="save it as UTF-8")
    for start, what in OTHER_FILES.items():
        if text.startswith(start):
            raise UsageError(f"{path}: {what}", hint=f"save it as {ONE_PER_LINE}")
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
            yield Record(where, number, read(where, line.removeprefix(MARK)))


def in_list(where: str, items: object) -> Iterator[Record]:
    """The records of one JSON list."""
    assert isinstance(items, list)
    for index, item in enumerate(items):
        place = f"{where}[{index}]"
        yield Record(place, index + 1, data_of(place, item))


def in_table(path: Path, content: bytes) -> Iterator[Record]:
    """The rows of a Parquet file. Raises UsageError where nothing here reads such files, or this one is none."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError(f"{path}: a Parquet file, which pyarrow reads", hint=PARQUET_EXTRA) from None
    try:
        table = pq.ParquetFile(pa.BufferReader(content))
        size = sum(table.metadata.row_group(n).total_byte_size for n in range(table.metadata.num_row_groups))
        if size > LARGEST:
            raise UsageError(f"{path}: {size} bytes after decompression; at most {LARGEST} are read")
        number = 0
        for batch in table.iter_batches(batch_size=ROWS):
            for row in batch.to_pylist():
                number += 1
                yield Record(f"{path}[{number - 1}]", number, row)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise UsageError(f"{path}: not a whole Parquet file: {shown(str(error), 200)}") from None


def text_at(where: str, line: bytes) -> Mapping[str, Any]:
    """Return a plain line as the record `{"text": line}`. Raises UsageError where it is not UTF-8."""
    if (at := line.find(b"\0")) >= 0:
        raise UsageError(f"{where}: a NUL character at byte {at + 1}", hint="plain lines hold text in UTF-8")
    try:
        return {"text": line.decode().strip()}
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from None


def not_utf8(where: str, error: UnicodeDecodeError) -> UsageError:
    """Return the error for a text in another encoding."""
    return UsageError(
        f"{where}: not UTF-8 at byte {error.start + 1}: 0x{error.object[error.start]:02x}", hint="save it as UTF-8"
    )


def object_at(where: str, line: bytes) -> Mapping[str, Any]:
    """The record in one line of JSON."""
    return data_of(where, parsed(where, line))


def data_of(where: str, value: object) -> Mapping[str, Any]:
    """The object that a record is. A text or a list is that of a prompt. Raises UsageError for other values."""
    if isinstance(value, str | list):
        return {"prompt": value}
    if isinstance(value, dict) and isinstance(value.get("row"), dict) and "row_idx" in value:
        return data_of(where, value["row"])  # as the data set server of Hugging Face has it
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {shown(value)}: not a JSON object", hint=ONE_PER_LINE)
    return value


def parsed(where: str, text: bytes) -> object:
    """The JSON value in `text`. Raises UsageError where it has none, or one that is not plain JSON, such as NaN."""
    try:
        return parse_json(text)
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from None
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=ONE_PER_LINE) from None
