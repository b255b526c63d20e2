"""The shapes of matrix products that TurboMind's EAGLE branch writes when it ends.

With `LMDEPLOY_EAGLE_GEMM_SHAPE_LOG=1` and `LMDEPLOY_EAGLE_PERF_MODE=1` it leaves `build/eagle3_gemm_shapes_sm120.json`:
a list of {"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512}. It is the list
that its kernels are tuned from (`TM_GEMM_TUNE`, `TM_GEMM_EXPORT`), and says which products the draft runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.errors import UsageError
from specgate.files.json_text import read_json, shown

LARGEST: Final = 16 << 20
"""Bytes of a file of shapes."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of an M × K with a K × N matrix, which a run computed `count` times for the part of the draft `tag`."""

    tag: str
    m: int
    k: int
    n: int
    count: int


def has_shapes(file: Path) -> bool:
    """True if a file begins as a list of shapes does."""
    try:
        with file.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False
    return head.lstrip().startswith(b"[") and b'"tag"' in head and b'"ph"' not in head


def read_shapes(file: Path) -> tuple[Product, ...]:
    """The products of a file, most frequent first. Raises UsageError where it has another form."""
    try:
        entries = read_json(file, LARGEST)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(entries, list):
        raise UsageError(f"{file}: {shown(entries)}: a list of shapes is needed")
    products = [product_of(entry, f"{file}: [{number}]") for number, entry in enumerate(entries)]
    return tuple(sorted(products, key=lambda product: (-product.count, product.tag)))


def product_of(entry: object, where: str) -> Product:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: {shown(entry)}: an object is needed")
    tag = entry.get("tag")
    if not isinstance(tag, str):
        raise UsageError(f"{where}.tag: {shown(tag)}: a text is needed")
    return Product(tag, *(integer(entry.get(key), f"{where}.{key}") for key in ("M", "K", "N", "count")))


def integer(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{where}: {shown(value)}: an integer of at least 0 is needed")
    return value
