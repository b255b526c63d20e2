"""The format that a checkpoint says its keys and values were calibrated for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.checkpoints.hf_keys import read_json

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
