"""The formats of cached keys and values: options, what they ask of a head, and the format of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from specgate.checkpoints.hf_keys import read_json
from specgate.errors import UsageError

KvMode = Literal["bf16", "fp8", "nvfp4"]
MODES: Final[tuple[KvMode, ...]] = get_args(KvMode)
KV, DRAFT_KV = "kv", "draft_kv"
"""The options that name the format of the target's cache, and of the draft's."""

FP8_POSITIONS: Final = 16
"""Positions of one head that share a scale in `fp8`."""
NVFP4_ELEMENTS: Final = 16
"""Elements of one head that share an E4M3 scale in `nvfp4`."""
HEAD_MULTIPLE: Final[dict[KvMode, int]] = {"bf16": 1, "fp8": 1, "nvfp4": NVFP4_ELEMENTS}
"""What a head's size must be a multiple of."""
IN_WORDS: Final[dict[KvMode, str]] = {
    "bf16": "bfloat16",
    "fp8": f"fp8 (E4M3, a scale per {FP8_POSITIONS} positions and head)",
    "nvfp4": f"nvfp4 (E2M1, an E4M3 scale per {NVFP4_ELEMENTS} elements, a float32 scale)",
}


@dataclass(frozen=True, slots=True)
class KvModes:
    """The formats of both caches; None: the dtype that the engine computes in."""

    target: KvMode | None = None
    draft: KvMode | None = None


AS_COMPUTED: Final = KvModes()


def kv_mode(name: str, option: str = KV) -> KvMode:
    """The format of that name. Raises UsageError with the names that there are."""
    for mode in MODES:
        if name == mode:
            return mode
    raise UsageError(f"option {option} = {name!r}", hint=f"known: {', '.join(MODES)}")


def check_head(mode: KvMode | None, head_dim: int, where: str, option: str = KV) -> None:
    """Raise UsageError where a head of `head_dim` elements has no such format. `where`: whose head, for the message."""
    if mode is not None and head_dim % HEAD_MULTIPLE[mode]:
        fitting = ", ".join(m for m in MODES if head_dim % HEAD_MULTIPLE[m] == 0)
        raise UsageError(
            f"option {option} = {mode!r}: {where}: head_dim = {head_dim} is no multiple of {HEAD_MULTIPLE[mode]}",
            hint=f"{option} = {fitting} would do",
        )


def position_bytes(mode: KvMode | None, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of the keys and values of one position in one layer, its share of the scales included and rounded up.

    `itemsize`: bytes of an element where `mode` is None.
    """
    head: float = {
        None: head_dim * itemsize,
        "bf16": head_dim * 2,
        "fp8": head_dim + 4 / FP8_POSITIONS,
        "nvfp4": head_dim / 2 + head_dim / NVFP4_ELEMENTS,  # the float32 scale is one of a whole slot
    }[mode]
    return math.ceil(2 * kv_heads * head)


def mode_in_words(mode: KvMode | None, dtype: str) -> str:
    """The format in words; `dtype`: what the engine computes in."""
    return dtype if mode is None else IN_WORDS[mode]


def kv_modes(options: Mapping[str, str]) -> KvModes:
    """The formats that the options name. Raises UsageError for names that are none."""
    target, draft = (kv_mode(options[name], name) if name in options else None for name in (KV, DRAFT_KV))
    return KvModes(target, draft)


FILE: Final = "hf_quant_config.json"
"""What NVIDIA's Model Optimizer writes beside `config.json`: `quantization.kv_cache_quant_algo`."""
ALGORITHMS: Final[dict[str, KvMode]] = {"FP8": "fp8", "NVFP4": "nvfp4"}


def calibrated_for(folder: Path) -> str | None:
    """Return the format of a checkpoint's calibration as a mode's name, or the file's own name for it. None if no file
    states one.

    Raises CheckpointError for a file that is no JSON object, or a key with a value of another type.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    algorithm = read_json(file).part("quantization").values.get("kv_cache_quant_algo")
    return None if algorithm is None else ALGORITHMS.get(str(algorithm), str(algorithm))


def calibration_warnings(folder: Path, mode: KvMode | None, whose: str, option: str) -> Iterator[str]:
    """A warning where the checkpoint in `folder` was calibrated for another format than its cache has."""
    own = calibrated_for(folder)
    if own is not None and own != mode:
        setting = f"{option} = {mode}" if mode else f"{option} is not given"
        yield f"{folder / FILE}: {whose} was calibrated for a KV cache in {own}, and {setting}: acceptance may suffer"
