"""The layout of a GGUF file, held against the file's size before anything is made of it.

A GGUF file says how many keys, elements, characters and dimensions follow. The package `gguf` believes it: it reads on
past the end of the file and makes an object per declared element. So a damaged file of a kilobyte could take all memory
or hang. Here each count is compared with the bytes that are left. Source: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from specgate.errors import CheckpointError

VERSIONS: Final = (2, 3)
FIXED: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Type of a value → its bytes, for all types but text and arrays."""
TEXT: Final = 8
ARRAY: Final = 9
MOST_ELEMENTS: Final = 1 << 20
"""Of one array. The largest vocabularies have about 260,000 tokens and twice as many merges."""
MOST_DIMENSIONS: Final = 4
ELEMENTS_PER_BYTE: Final = 8
"""No quantisation stores more."""


def check_layout(file: Path) -> None:
    """Raise CheckpointError unless every count in `file` fits into it. OSError where it cannot be read."""
    with file.open("rb") as stream:
        if not stream.read(1):
            raise CheckpointError(f"{file}: not a readable GGUF file (it is empty)")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            walk(Cursor(file, content))


class Cursor:
    """A place in the file. Every read raises CheckpointError where the file ends before it."""

    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self.file, self.content, self.at = file, content, 0

    @property
    def left(self) -> int:
        return len(self.content) - self.at

    def wrong(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: not a readable GGUF file ({why}, at byte {self.at})")

    def skip(self, count: int, what: str) -> None:
        if count > self.left:
            raise self.wrong(f"{what} takes {count} bytes, and {self.left} are left")
        self.at += count

    def number(self, form: str, what: str) -> int:
        """An unsigned integer; `form` as in `struct`."""
        start = self.at
        self.skip(struct.calcsize(form), what)
        value: int = struct.unpack_from(form, self.content, start)[0]
        return value

    def count(self, what: str, smallest: int, most: int | None = None) -> int:
        """A 64-bit count of things that take at least `smallest` bytes each."""
        found = self.number("<Q", what)
        if found * smallest > self.left or (most is not None and found > most):
            raise self.wrong(f"{what}: {found}, and {self.left} bytes are left")
        return found

    def text(self, what: str) -> None:
        self.skip(self.count(what, 1), what)


def walk(c: Cursor) -> None:
    """Go through header, metadata and tensor descriptions."""
    if c.content[:4] != b"GGUF":
        raise c.wrong("it does not begin with GGUF")
    c.skip(4, "the magic number")
    if (version := c.number("<I", "the version")) not in VERSIONS:
        raise c.wrong(f"version {version}; {' and '.join(map(str, VERSIONS))} can be read, in little-endian order")
    tensors, keys = c.count("the number of tensors", 24), c.number("<Q", "the number of keys")
    if keys * 13 > c.left:
        raise c.wrong(f"the number of keys: {keys}, and {c.left} bytes are left")
    for _ in range(keys):
        c.text("a key's name")
        value(c, c.number("<I", "a key's type"))
    for _ in range(tensors):
        tensor(c)


def value(c: Cursor, kind: int) -> None:
    if kind in FIXED:
        c.skip(FIXED[kind], "a value")
    elif kind == TEXT:
        c.text("a text")
    elif kind == ARRAY:
        array(c)
    else:
        raise c.wrong(f"a value of type {kind}")


def array(c: Cursor) -> None:
    kind = c.number("<I", "an array's type")
    if kind in FIXED:
        c.skip(FIXED[kind] * c.count("an array's length", FIXED[kind], MOST_ELEMENTS), "an array")
    elif kind == TEXT:
        for _ in range(c.count("an array's length", 8, MOST_ELEMENTS)):
            c.text("a text")
    else:
        raise c.wrong(f"an array of values of type {kind}")


def tensor(c: Cursor) -> None:
    c.text("a tensor's name")
    dimensions, elements = c.number("<I", "a tensor's dimensions"), 1
    if dimensions > MOST_DIMENSIONS:
        raise c.wrong(f"a tensor of {dimensions} dimensions")
    for _ in range(dimensions):
        elements *= c.number("<Q", "a tensor's size")
    if elements > ELEMENTS_PER_BYTE * len(c.content):
        raise c.wrong(f"a tensor of {elements} elements in a file of {len(c.content)} bytes")
    c.skip(4, "a tensor's type")
    if (offset := c.number("<Q", "a tensor's offset")) > len(c.content):
        raise c.wrong(f"a tensor at offset {offset} of a file of {len(c.content)} bytes")
