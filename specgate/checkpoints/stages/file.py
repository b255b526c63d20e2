"""A dump as a safetensors file, in which the tensors of any engine can be put."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from specgate.checkpoints.arrays import arrays_of_file
from specgate.checkpoints.stages.dump import TABLE, Dtype, StageDump, check_dump
from specgate.checkpoints.stages.names import BY_NAME, PROMPT, TARGET_IDS, part_of
from specgate.errors import UsageError
from specgate.files.panics import refusing
from specgate.files.writing import disk

SUFFIX: Final = ".safetensors"
DTYPES: Final[tuple[Dtype, ...]] = get_args(Dtype)
FLOATS: Final[dict[str, Dtype]] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}
"""Stored type → what the engine computed in, where the file does not say otherwise."""
INTEGERS: Final = ("I64", "I32", "U32", "I16", "U16", "U8")


def read_dump(file: Path) -> StageDump:
    """Read and check a dump.

    What it was computed in is the file's metadata entry `dtype` where it has one, else the coarsest type among its
    stages. Raises UsageError, which names file, tensor, value and what would be right.
    """
    from safetensors import safe_open

    if not file.is_file():
        raise UsageError(f"{file}: no such file", hint="a safetensors file, as --dump writes it")

    def not_whole(why: str) -> UsageError:
        return UsageError(f"{file}: not a whole safetensors file ({why})", hint="write it again")

    with refusing(not_whole), safe_open(file, framework="np") as source:
        metadata: dict[str, str] = source.metadata() or {}
    arrays = arrays_of_file(file)
    types = {name: array.dtype for name, array in arrays.items()}
    check_names(file, types)
    read = {name: array.read() for name, array in arrays.items()}
    prompt = read.pop(PROMPT)
    if prompt.ndim != 1 or not len(prompt):
        raise UsageError(f"{file}: {PROMPT} is {list(prompt.shape)}", hint="[L], one id per token")
    ids = read.pop(TARGET_IDS, None)
    dump = StageDump(
        source=str(file),
        dtype=dtype_of(file, metadata, types),
        prompt_ids=tuple(prompt.tolist()),
        tensors={name: tensor.astype(np.float32) for name, tensor in read.items()},
        target_ids=None if ids is None else ids.astype(np.int64),
    )
    check_dump(dump)
    return dump


def check_names(file: Path, types: dict[str, str]) -> None:
    """Raise UsageError for a tensor that is no stage, one of a type that it cannot have, and a missing prompt."""
    if PROMPT not in types:
        raise UsageError(f"{file}: missing {PROMPT}", hint="int64 [L]: the prompt that the tensors are of")
    for name, stored_type in types.items():
        if name in (PROMPT, TARGET_IDS):
            known: tuple[str, ...] = INTEGERS
        elif part_of(name) is not None:
            known = tuple(FLOATS)
        else:
            near = get_close_matches(name, [*BY_NAME, PROMPT, TARGET_IDS, "target.hidden.0"], 1, 0.5)
            raise UsageError(f"{file}: tensor {name} is no stage", hint=(f"{near[0]}? " if near else "") + TABLE)
        if stored_type not in known:
            raise UsageError(f"{file}: {name} is of type {stored_type}", hint=f"one of {', '.join(known)}")


def dtype_of(file: Path, metadata: dict[str, str], types: dict[str, str]) -> Dtype:
    """Dtype that the engine computed in. Raises UsageError where the metadata names nothing that is known."""
    if (stated := metadata.get("dtype")) is not None:
        for known in DTYPES:
            if stated.removeprefix("torch.") == known:
                return known
        raise UsageError(f"{file}: metadata dtype = {stated[:80]!r}", hint=f"one of {', '.join(DTYPES)}")
    stored = {FLOATS[kind] for kind in types.values() if kind in FLOATS}
    return next((known for known in ("bfloat16", "float16") if known in stored), "float32")


def write_dump(file: Path, dump: StageDump) -> None:
    """Write `dump`, its stages as float32. Raises UsageError for another suffix, EnvironmentRefused where the disk is
    full or the folder is not writable.
    """
    from safetensors.numpy import save

    if file.suffix != SUFFIX:
        raise UsageError(f"--dump {file}: not a {SUFFIX} file", hint=f"a name that ends with {SUFFIX}")
    tensors: dict[str, Any] = {name: np.ascontiguousarray(tensor) for name, tensor in dump.tensors.items()}
    tensors[PROMPT] = np.array(dump.prompt_ids, dtype=np.int64)
    if dump.target_ids is not None:
        tensors[TARGET_IDS] = np.ascontiguousarray(dump.target_ids)
    temporary = file.with_name(file.name + ".tmp")
    with disk(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(save(tensors, metadata={"schema": "specgate.stages/v1", "dtype": dump.dtype}))
        temporary.replace(file)
