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
    """The format in the words of a mode, or the file's own where it is none of them; None where no file tells one.

    Raises CheckpointError for a file that is no JSON object, or where a key holds something else than it should.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    said = read_json(file).part("quantization").values.get("kv_cache_quant_algo")
    return None if said is None else ALGORITHMS.get(str(said), str(said))


def calibration_warnings(folder: Path, mode: KvMode | None, whose: str, option: str) -> Iterator[str]:
    """A warning where the checkpoint in `folder` was calibrated for another format than its cache has."""
    found = calibrated_for(folder)
    if found is not None and found != mode:
        said = f"{option} = {mode}" if mode else f"{option} is not given"
        yield f"{folder / FILE}: {whose} was calibrated for a KV cache in {found}, and {said}: acceptance may suffer"
