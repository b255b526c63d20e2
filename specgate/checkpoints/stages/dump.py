"""The tensors of one engine and one prompt, and what must hold of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from specgate.checkpoints.stages.names import (
    BY_NAME,
    PROMPT,
    SHORTEST,
    STAGES,
    TARGET_IDS,
    Part,
    Width,
    boundary_of,
    hidden,
    in_order,
    part_of,
)
from specgate.errors import UsageError

Dtype = Literal["float32", "bfloat16", "float16"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
TABLE: Final = "docs/engine.md has every name and shape"


@dataclass(frozen=True, slots=True)
class StageDump:
    """Tensors that one engine computed for one prompt.

    `source` names the engine or the file, `dtype` is what it computed in. `tensors` are the stages by name, float32
    [rows, width]: the rows of the last positions, as many as were kept. `target_ids` int64 [draft vocabulary] is
    None where the source does not tell.
    """

    source: str
    dtype: Dtype
    prompt_ids: tuple[int, ...]
    tensors: Mapping[str, NDArray[np.float32]]
    target_ids: NDArray[np.int64] | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that it has, in the order of the pass."""
        return tuple(part for part in PARTS if any(part_of(name) == part for name in self.tensors))

    @property
    def layers(self) -> int | None:
        """The target's layers; None where it has no hidden states of the target."""
        boundaries = [b for name in self.tensors if (b := boundary_of(name)) is not None]
        return max(boundaries) if boundaries else None


def check_dump(dump: StageDump) -> None:
    """Raise UsageError for a dump that is incomplete, misshapen or not finite: source, tensor, and what would be
    right.
    """
    where = dump.source
    if not dump.parts:
        raise UsageError(f"{where}: no stage of target or draft", hint=TABLE)
    for part in dump.parts:
        check_complete(dump, part)
        check_rows(dump, part)
    widths = check_widths(dump)
    check_prompt(dump, widths.get("vocabulary"))
    for name in in_order(dump.tensors):
        check_numbers(where, name, dump.tensors[name])
    check_target_ids(dump, widths)


def check_complete(dump: StageDump, part: Part) -> None:
    """Raise UsageError where stages of a part are missing, or the prompt is too short to have the part."""
    required = [stage.name for stage in STAGES if stage.part == part and not stage.optional]
    if part == "target":
        required = [hidden(b) for b in range((dump.layers or 0) + 1)] + required
    if missing := [name for name in required if name not in dump.tensors]:
        names = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise UsageError(f"{dump.source}: missing {names}", hint=f"the part {part} is compared whole or not at all")
    if len(dump.prompt_ids) < SHORTEST[part]:
        raise UsageError(
            f"{dump.source}: {PROMPT} has {len(dump.prompt_ids)} tokens", hint=f"{part}: at least {SHORTEST[part]}"
        )


def check_rows(dump: StageDump, part: Part) -> None:
    """Raise UsageError for tensors that are no matrices, or that have other rows than their part may have."""
    names = [name for name in in_order(dump.tensors) if part_of(name) == part]
    most = {"target": len(dump.prompt_ids), "draft": len(dump.prompt_ids) - 1, "step": 1}[part]
    rows = None
    for name in names:
        shape = dump.tensors[name].shape
        if len(shape) != 2 or not all(shape):
            raise UsageError(f"{dump.source}: {name} is {list(shape)}", hint="[rows, width], without a batch axis")
        rows = shape[0] if rows is None else rows
        if shape[0] != rows or rows > most:
            right = f"{rows} as {names[0]}" if rows <= most else f"at most {most}, for {len(dump.prompt_ids)} tokens"
            raise UsageError(f"{dump.source}: {name} is {list(shape)}: {shape[0]} rows", hint=f"rows: {right}")


def widths_of(dump: StageDump) -> Iterator[tuple[Width, str, int]]:
    """(what the width is, the tensor, its width) of every stage."""
    for name in in_order(dump.tensors):
        what: Width = "target hidden size" if boundary_of(name) is not None else BY_NAME[name].width
        yield what, name, dump.tensors[name].shape[1]


def check_widths(dump: StageDump) -> dict[Width, int]:
    """Every width by what it is. Raises UsageError where two tensors disagree about one."""
    first: dict[Width, tuple[str, int]] = {}
    for what, name, width in widths_of(dump):
        known, expected = first.setdefault(what, (name, width))
        if width != expected:
            raise UsageError(
                f"{dump.source}: {name} is {width} wide, but {known} is {expected}", hint=f"both are as wide as: {what}"
            )
    widths = {what: width for what, (_, width) in first.items()}
    one, several = widths.get("target hidden size"), widths.get("auxiliary hidden states")
    if one and several and several % one:
        raise UsageError(
            f"{dump.source}: draft.features is {several} wide", hint=f"a multiple of the target's hidden size, {one}"
        )
    return widths


def check_prompt(dump: StageDump, vocab: int | None) -> None:
    """Raise UsageError for a token that is none of the vocabulary."""
    for at, token in enumerate(dump.prompt_ids):
        if token < 0 or (vocab is not None and token >= vocab):
            right = f"0 to {vocab - 1}, as target.logits is wide" if vocab else "0 or more"
            raise UsageError(f"{dump.source}: {PROMPT}[{at}] = {token}", hint=f"ids are {right}")


def check_numbers(where: str, name: str, tensor: NDArray[np.float32]) -> None:
    """Raise UsageError for NaN and infinity, with the first place."""
    finite = np.isfinite(tensor)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise UsageError(
            f"{where}: {name}[{row}, {column}] = {tensor[row, column]}",
            hint="finite numbers; leave out columns that only pad the vocabulary",
        )


def check_target_ids(dump: StageDump, widths: Mapping[Width, int]) -> None:
    """Raise UsageError for a map of another length than the draft's vocabulary, or to tokens that there are not."""
    if dump.target_ids is None:
        return
    length = widths.get("draft vocabulary")
    if length is None or dump.target_ids.shape != (length,):
        right = "draft.logits beside it" if length is None else f"[{length}], as draft.logits is wide"
        raise UsageError(f"{dump.source}: {TARGET_IDS} is {list(dump.target_ids.shape)}", hint=right)


def check_same_question(a: StageDump, b: StageDump) -> None:
    """Raise UsageError where two dumps are of different prompts, or of models of different sizes."""
    if a.prompt_ids != b.prompt_ids:
        at = next((i for i, (x, y) in enumerate(zip(a.prompt_ids, b.prompt_ids, strict=False)) if x != y), None)
        what = (
            f"{len(b.prompt_ids)} tokens, not {len(a.prompt_ids)}"
            if at is None
            else f"{PROMPT}[{at}] = {b.prompt_ids[at]}, not {a.prompt_ids[at]}"
        )
        raise UsageError(
            f"{b.source}: another prompt than {a.source}: {what}",
            hint="dump one side, and make the other from the prompt_ids in that file",
        )
    if None not in (a.layers, b.layers) and a.layers != b.layers:
        raise UsageError(
            f"{b.source}: hidden states of {b.layers} layers, not {a.layers} as in {a.source}",
            hint=f"{hidden(0)} to {hidden(a.layers or 0)}",
        )
    of_a, of_b = check_widths(a), check_widths(b)
    for what in of_a:
        if what in of_b and of_a[what] != of_b[what]:
            name = next(n for w, n, _ in widths_of(b) if w == what)
            raise UsageError(
                f"{b.source}: {name} is {of_b[what]} wide, not {of_a[what]} as in {a.source}",
                hint=f"the same {what} on both sides",
            )
