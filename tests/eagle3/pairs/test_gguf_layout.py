"""Counts in a GGUF file are held against its size before `gguf` makes anything of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from specgate.backends.eagle3.pairs.gguf_file import Metadata, check_layout
from specgate.errors import CheckpointError
from tests.fuzz.seeds import a_gguf

HUGE = (1 << 63) - 1
HEADER = b"GGUF" + struct.pack("<I", 3)


def counts(tensors: int, keys: int) -> bytes:
    return HEADER + struct.pack("<QQ", tensors, keys)


def key(kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"a" + struct.pack("<I", kind) + value + bytes(64)


def test_a_whole_file_passes(tmp_path: Path) -> None:
    check_layout(a_gguf(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"GGUX" + bytes(20), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1), "version 1; 2 and 3 can be read"),
        (b"GGUF" + struct.pack(">I", 3), "version 50331648"),
        (counts(HUGE, 0), "the number of tensors: 9223372036854775807"),
        (counts(0, HUGE), "the number of keys: 9223372036854775807"),
        (
            counts(0, 1) + struct.pack("<Q", HUGE) + bytes(40),
            "a key's name: 9223372036854775807, and 40 bytes are left",
        ),
        (counts(0, 1) + key(8, struct.pack("<Q", HUGE)), "a text: 9223372036854775807"),
        (counts(0, 1) + key(9, struct.pack("<IQ", 4, 1 << 40)), "an array's length: 1099511627776"),
        (counts(0, 1) + key(9, struct.pack("<IQ", 0, HUGE)), "an array's length"),
        (counts(0, 1) + key(9, struct.pack("<IQ", 8, 1 << 40)), "an array's length"),
        (counts(0, 1) + key(9, struct.pack("<IQ", 9, 1)), "an array of values of type 9"),
        (counts(0, 1) + key(99, b""), "a value of type 99"),
        (counts(1, 0) + struct.pack("<Q", 0) + struct.pack("<I", 5) + bytes(64), "a tensor of 5 dimensions"),
        (counts(1, 0) + struct.pack("<QIQQ", 0, 2, 1 << 40, 1 << 40) + bytes(12), "a tensor of 12089258196146291747"),
        (counts(1, 0) + struct.pack("<QIQIQ", 0, 1, 4, 0, 1 << 50), "a tensor at offset 1125899906842624"),
    ],
)
def test_a_count_that_does_not_fit_is_refused_with_the_bytes_that_are_left(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (file := tmp_path / "damaged.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged\.gguf: not a readable GGUF file") as caught:
        Metadata.read(file)
    assert says in str(caught.value)


def test_every_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = a_gguf(tmp_path / "a.gguf").read_bytes()
    (file := tmp_path / "cut.gguf").touch()
    for length in range(0, 400, 7):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            check_layout(file)
