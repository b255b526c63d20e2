"""Families of kernels, and the shapes of products among them.

Nobody has a list of all kernels that a server may launch. But where its flags name an attention back end, a loop in
which none of its kernels runs and another's do has fallen back. The names are those of vLLM 0.25.1 and SGLang 0.5.17.

With `LMDEPLOY_EAGLE_GEMM_SHAPE_LOG=1` and `LMDEPLOY_EAGLE_PERF_MODE=1` it leaves `build/eagle3_gemm_shapes_sm120.json`:
a list of {"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512}. It is the list
that its kernels are tuned from (`TM_GEMM_TUNE`, `TM_GEMM_EXPORT`), and says which products the draft runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.analysis.traces.recording import matches
from specgate.errors import UsageError
from specgate.files.json_text import read_bytes, read_json, shown

LARGEST_LIST: Final = 1 << 20
"""Bytes of a file of patterns."""


@dataclass(frozen=True, slots=True)
class Family:
    """An attention back end: what flags call it, in lower case, and how its kernels are named (`fnmatch`)."""

    name: str
    flags: tuple[str, ...]
    kernels: tuple[str, ...]


ATTENTION: Final = (
    Family(
        "FlashAttention",
        ("flash_attn", "fa2", "fa3", "fa4", "flash_attn_vllm_v1"),
        ("*FlashAttn*", "*flash::*", "*flash_fwd*", "*flash_attn*"),
    ),
    Family(
        "FlashInfer",
        ("flashinfer", "flashinfer_vllm_v1", "trtllm_mha"),
        ("*flashinfer*", "*WithPagedKVCache*", "*WithRaggedKVCache*", "*fmhaSm*"),
    ),
    Family(
        "Triton",
        ("triton", "triton_attn", "triton_attn_vllm_v1"),
        ("kernel_unified_attention*", "kernel_paged_attention*", "_fwd_kernel_stage*", "_fwd_grouped_kernel*"),
    ),
)


def attention_in(kernels: Iterable[str]) -> dict[str, list[str]]:
    """Attention back end → its kernels among these, for those that have one."""
    names = list(kernels)
    by_family = {family.name: [name for name in names if matches(name, family.kernels)] for family in ATTENTION}
    return {family: members for family, members in by_family.items() if members}


def family_of(flag: str) -> Family | None:
    """The attention back end that a flag's value names; None for one that is not known here."""
    return next((family for family in ATTENTION if flag.lower() in family.flags), None)


def fallen_back(flag: str, kernels: Mapping[str, int]) -> str | None:
    """Attention back end that runs in place of the one that `flag` names: none of its kernels runs and another's do.
    None if it is not so, or cannot be told.
    """
    family, families = family_of(flag), attention_in(kernels)
    if family is None or not families or family.name in families:
        return None
    other, names = next(iter(families.items()))
    return f"{other} ({names[0]}, {kernels[names[0]]} launches), and no kernel of {family.name}"


def strangers(kernels: Mapping[str, int], allowed: Iterable[str]) -> dict[str, int]:
    """The kernels that none of the patterns matches."""
    patterns = tuple(allowed)
    return {name: n for name, n in kernels.items() if not matches(name, patterns)}


def read_patterns(file: Path) -> tuple[str, ...]:
    """The patterns of a file: one per line, `*` for anything; blank lines and lines that begin with # say nothing.

    Raises UsageError where the file cannot be read or has none.
    """
    try:
        text = read_bytes(file, LARGEST_LIST).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file}: byte {error.start}: not UTF-8", hint="one pattern of kernel names per line"
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{file}: {why}", hint="a file with one pattern of kernel names per line is needed") from error
    patterns = tuple(line for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("#"))
    if not patterns:
        raise UsageError(f"{file}: no pattern in it", hint="one pattern of kernel names per line, * for anything")
    return patterns


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
