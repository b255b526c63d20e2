"""A trace file, of whichever profiler, within bounds: one that cannot be read is refused with file, size and remedy."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from specgate.analysis.traces.chrome import read_chrome
from specgate.analysis.traces.document import Text
from specgate.analysis.traces.nsys import read_nsys
from specgate.analysis.traces.recording import Malformed, Recording
from specgate.errors import UsageError
from specgate.redaction import visible

MOST_BYTES: Final = 4 << 30
"""Bytes of a trace, unpacked. A prefill of 32,000 tokens and some hundred decode steps have a tenth of that."""
LONGEST_REASON: Final = 400
"""Characters of an error: it may repeat what the file says."""
SQLITE: Final = b"SQLite format 3\x00"
GZIP: Final = b"\x1f\x8b"
PACKED: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
WANTED: Final = (
    "a trace of torch's profiler (.json, .json.gz), or an export of Nsight Systems (nsys export --type sqlite)"
)


def read_trace(file: Path) -> Recording:
    """The recording in `file`, told by its content. Raises UsageError where it cannot be read."""
    try:
        with file.open("rb") as stream:
            head = stream.read(len(SQLITE))
        if file.suffix == ".nsys-rep":
            raise Malformed(f"a report of Nsight Systems: nsys export --type sqlite {file.name}")
        if head == SQLITE:
            refuse_large(file.stat().st_size)
            return read_nsys(file)
        if not head:
            raise Malformed("the file is empty: the profiler has not finished, or wrote to another folder")
        if packed := next((name for magic, name in PACKED.items() if head.startswith(magic)), None):
            raise Malformed(f"it is packed by {packed}: unpack it first")
        if not head.startswith(GZIP) and head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
            raise Malformed(f"it begins with {head[:8]!r}: {WANTED} is needed")
        with opened(file, head.startswith(GZIP)) as text:
            return read_chrome(text)
    except Malformed as error:
        raise UsageError(f"{file}: {visible(str(error))[:LONGEST_REASON]}") from error
    except (OSError, EOFError, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{file}: {why}", hint=f"{WANTED} is needed") from error


@contextmanager
def opened(file: Path, packed: bool) -> Iterator[Text]:
    with file.open("rb") as raw:
        stream: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        limited = io.BufferedReader(Limited(stream))
        yield io.TextIOWrapper(limited, encoding="utf-8-sig", errors="replace")


class Limited(io.RawIOBase):
    """Reads a stream, and raises Malformed beyond `MOST_BYTES`: a packed file may hold a thousand times its size."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.read_so_far = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        piece = self.stream.read(len(buffer))
        self.read_so_far += len(piece)
        refuse_large(self.read_so_far)
        buffer[: len(piece)] = piece
        return len(piece)


def refuse_large(size: int) -> None:
    """Raise Malformed for more bytes than a trace may have."""
    if size > MOST_BYTES:
        raise Malformed(
            f"more than {MOST_BYTES:,} bytes: trace fewer steps, and leave out stacks and shapes "
            "(torch_profiler_with_stack=false, with_stack: false)"
        )
