"""A side as it is named on the command line: an engine with what differs for it, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from specgate.checkpoints.stages.dump import Dtype
from specgate.checkpoints.stages.file import DTYPES, SUFFIX
from specgate.errors import UsageError

OWN_KEYS: Final = ("dtype", "pair", "target", "draft")


@dataclass(frozen=True, slots=True)
class FileSide:
    """Tensors in a safetensors file."""

    file: Path


@dataclass(frozen=True, slots=True)
class EngineSide:
    """An engine. `text` is how it was named; `options` are the back end's. None: as for both sides."""

    text: str
    backend: str
    dtype: Dtype | None = None
    pair: str | None = None
    target: Path | None = None
    draft: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


Side = FileSide | EngineSide


def read_side(text: str) -> Side:
    """`FILE.safetensors`, or `ENGINE[,KEY=VALUE…]`.

    A part without `=` belongs to the value before it, as in `reference,capture=1,2,3`. Raises UsageError for what is
    neither.
    """
    if text.endswith(SUFFIX):
        return FileSide(Path(text))
    backend, *parts = text.split(",")
    values: dict[str, str] = {}
    key = ""
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals and key:
            values[key] += f",{part}"
        elif not equals or not name or not value:
            raise UsageError(f"{text}: {part!r} is no KEY=VALUE", hint=f"such as {backend},dtype=bfloat16")
        elif name in values:
            raise UsageError(f"{text}: {name} is given twice", hint="name it once")
        else:
            key, values[name] = name, value
    dtype = values.get("dtype")
    known = next((known for known in DTYPES if known == dtype), None)
    if dtype is not None and known is None:
        raise UsageError(f"{text}: dtype = {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    return EngineSide(
        text=text,
        backend=backend,
        dtype=known,
        pair=values.get("pair"),
        target=Path(values["target"]) if "target" in values else None,
        draft=Path(values["draft"]) if "draft" in values else None,
        options={name: value for name, value in values.items() if name not in OWN_KEYS},
    )
