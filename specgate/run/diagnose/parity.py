"""Stages of two engines or files compared, for `specgate diagnose parity`. `specgate.analysis.parity` judges them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from specgate import plugins
from specgate.checkpoints.stages.dump import Dtype, StageDump, check_dump
from specgate.checkpoints.stages.file import DTYPES, SUFFIX, read_dump
from specgate.checkpoints.stages.names import TARGET_IDS
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest, ShowsStages
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.machine.inventory import has_cuda_gpu
from specgate.pairs.resolve import refuse_two_names, resolve_pair
from specgate.run.smoke.prompt import PromptWish, prompt_ids

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
    if backend not in (known := plugins.registered("specgate.backends")):
        hint = f"a back end is one of {', '.join(known)}"
        raise UsageError(f"{text}: neither a file FILE{SUFFIX} nor a back end", hint=hint)
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
    number_format = next((each for each in DTYPES if each == dtype), None)
    if dtype is not None and number_format is None:
        raise UsageError(f"{text}: dtype = {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
    return EngineSide(
        text=text,
        backend=backend,
        dtype=number_format,
        pair=values.get("pair"),
        target=Path(values["target"]) if "target" in values else None,
        draft=Path(values["draft"]) if "draft" in values else None,
        options={name: value for name, value in values.items() if name not in OWN_KEYS},
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """Settings of both sides where they do not say otherwise. `prompt` is empty where it
    comes from a file. `rows`: of how many of the prompt's last positions tensors are kept.
    """

    pair: str | None = None
    target: Path | None = None
    draft: Path | None = None
    dtype: Dtype | None = None
    prompt: PromptWish = field(default_factory=PromptWish)
    rows: int = 64
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_a_prompt(self) -> bool:
        return self.prompt != PromptWish()


def dumps_of(sides: Sequence[Side], wish: Wish, warn: Callable[[str], None] = lambda text: None) -> list[StageDump]:
    """The stages of every side, for one prompt: that of the files among them, or else the one that was asked for.
    `warn` is given each warning of an engine.

    Raises UsageError for sides and prompts that make no sense, EnvironmentRefused where an engine cannot run here, and
    BackendError where one fails, or shows no stages.
    """
    read = {side.file: read_dump(side.file) for side in sides if isinstance(side, FileSide)}
    if read and wish.names_a_prompt:
        raise UsageError(
            f"{next(iter(read))} has a prompt of its own, and another one was given",
            hint="leave the prompt out: the file's prompt_ids count",
        )
    ids = next(iter(read.values())).prompt_ids if read else None
    dumps = []
    for side in sides:
        if isinstance(side, FileSide):
            dumps.append(read[side.file])
        else:
            pair = pair_of(side, wish)
            ids = ids or prompt_ids(wish.prompt, pair)
            dumps.append(shown_by(side, pair, ids, wish, warn))
    return dumps


def pair_of(side: EngineSide, wish: Wish) -> PairRef:
    """The pair that a side runs: what it names itself, over what both have in common."""
    refuse_two_names(wish.pair, wish.target, wish.draft)
    refuse_two_names(side.pair, side.target, side.draft)
    if side.pair is not None:
        return resolve_pair(side.pair, None, None)
    target, draft = side.target or wish.target, side.draft or wish.draft
    if wish.pair is not None and (side.target or side.draft):
        common = resolve_pair(wish.pair, None, None)
        target, draft = target or common.target, draft or common.draft
    return resolve_pair(wish.pair if target is None and draft is None else None, target, draft)


def shown_by(
    side: EngineSide, pair: PairRef, ids: tuple[int, ...], wish: Wish, warn: Callable[[str], None]
) -> StageDump:
    """Dump the stages of a side's engine for the prompt `ids`."""
    backend = plugins.backend_here(side.backend)
    availability = backend.available()
    if not availability.usable:
        raise EnvironmentRefused(f"{side.backend}: {availability.reason}")
    dtype: Dtype = side.dtype or wish.dtype or ("bfloat16" if has_cuda_gpu() else "float32")
    engine = backend.open(
        OpenRequest(
            pair=pair,
            dtype=dtype,
            max_batch=1,
            max_positions=len(ids) + 4,
            max_k=1,
            perf_mode=False,
            options={**wish.options, **side.options},
        )
    )
    try:
        if not isinstance(engine, ShowsStages):
            raise UsageError(
                f"{side.text}: this engine shows no stages",
                hint="reference, transformers and cupy do; others dump into a safetensors file (docs/engine.md)",
            )
        for warning in engine.facts().warnings:
            warn(f"{side.text}: {warning}")
        tensors = engine.stages(ids, wish.rows)
    finally:
        engine.close()
    stages = {name: tensor.astype(np.float32) for name, tensor in tensors.items() if name != TARGET_IDS}
    target_ids = tensors[TARGET_IDS].astype(np.int64) if TARGET_IDS in tensors else None
    dump = StageDump(side.text, dtype, ids, stages, target_ids)
    try:
        check_dump(dump)
    except UsageError as error:  # the engine's fault, not the user's
        raise BackendError(error.message, hint=error.hint) from error
    return dump
