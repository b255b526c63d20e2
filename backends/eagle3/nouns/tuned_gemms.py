"""Files of shapes (which matrix products an engine runs) and of tuned configurations (what was found for their
weights).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from specgate.backends.eagle3.nouns.gemms import GemmShape, TunedGemms
from specgate.contract.types import Length
from specgate.files.cache import cache_path
from specgate.files.plain_data import to_plain
from specgate.files.run_folder import RunFolder
from specgate.files.writing import disk
from specgate.files.yaml_schema import parse
from specgate.files.yamlfile import load

SHAPES: Final = "specgate.gemm-shapes/v1"
TUNED: Final = "specgate.tuned-gemms/v1"


@dataclass(frozen=True, slots=True)
class ShapesFile:
    """A file of shapes."""

    shapes: Annotated[tuple[GemmShape, ...], Length(1)]


def read_shapes(file: Path) -> tuple[GemmShape, ...]:
    """The shapes in `file`. Raises UsageError with file, line, key, value and what would be right."""
    return parse(ShapesFile, load(file), SHAPES).shapes


def write_shapes(file: Path, shapes: Iterable[GemmShape]) -> None:
    """Write `shapes`, replacing the file. Raises EnvironmentRefused where it cannot be written."""
    plain = [without_mixture(to_plain(GemmShape, shape)) for shape in sorted(set(shapes))]
    write(file, {"schema": SHAPES, "shapes": plain})


def read_tuned(file: Path) -> TunedGemms:
    """The tuned configurations in `file`. Raises UsageError with file, line, key, value and what would be right."""
    return parse(TunedGemms, load(file), TUNED)


def write_tuned(file: Path, tuned: TunedGemms) -> None:
    """Write `tuned`, replacing the file. Raises EnvironmentRefused where it cannot be written."""
    plain = to_plain(TunedGemms, tuned)
    write(file, {"schema": TUNED, **plain, "gemms": [without_mixture(gemm) for gemm in plain["gemms"]]})


def without_mixture(entry: dict[str, Any]) -> dict[str, Any]:
    """`entry` as it is stored: only those of experts say how many there are."""
    return entry if entry["experts"] else {k: v for k, v in entry.items() if k not in ("experts", "per_token")}


def write(file: Path, data: object) -> None:
    """Write `data` as JSON and make missing folders. Raises EnvironmentRefused where that cannot be done."""
    with disk(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    RunFolder(file.parent).write_json(file.name, data)


def file_name(device: str) -> str:
    """`NVIDIA H200` → `nvidia-h200.json`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def user_file(device: str) -> Path:
    """The file in which this user keeps what was tuned on `device`."""
    return cache_path() / "tuned" / file_name(device)
