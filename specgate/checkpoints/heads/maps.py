"""The maps between the vocabularies of draft and target, read from whatever type a trainer stored them in, and checked.

`d2t` [W] holds *offsets*: the target id of draft token i is i + d2t[i]. `t2d` [V] marks the target tokens that the
draft knows. Both are told by their values, not by the type of their elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specgate.errors import CheckpointError

Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]

EXACT: Final[Mapping[str, int]] = {"F64": 1 << 53, "F32": 1 << 24, "F16": 1 << 11, "BF16": 1 << 8}
"""Type of floats → the largest n up to which every integer is one of them."""
NARROW: Final[Mapping[str, int]] = {"I8": 127, "U8": 255, "I16": 32767, "U16": 65535}
"""Type → the largest integer that it holds, where vocabularies are larger."""
OFFSETS_HINT: Final = (
    "d2t must hold offsets, so that target id = i + d2t[i]; subtract arange(len(d2t)) from a table of ids"
)
SAME_SET_HINT: Final = "both must describe the same set of target tokens"
FILL_HINT: Final = "build the map from the training data's token counts, and export the head again"


class BadMap(CheckpointError):
    """A vocabulary map that is wrong, although the head's tensors have their shapes."""


def offsets_of(values: NDArray[Any], dtype: str, where: str) -> Integers:
    """`d2t` as int64 [W]. `dtype`: the type that it is stored in, as safetensors spells it.

    Raises BadMap for a mask, and for floats that are not exact integers.
    """
    if dtype == "BOOL":
        raise BadMap(f"{where}: d2t is of type BOOL, as a mask is", hint=f"t2d is the mask; {OFFSETS_HINT}")
    if dtype not in EXACT:
        return values.astype(np.int64)
    whole = bool(np.isfinite(values).all()) and bool((values == np.trunc(values)).all())
    if not whole or (values.size and float(np.abs(values).max()) > EXACT[dtype]):
        limit = f"which holds every integer up to {EXACT[dtype]} only: its offsets are rounded"
        raise BadMap(f"{where}: d2t is of type {dtype}, {limit}", hint="export d2t as int64, and do not cast it")
    return values.astype(np.int64)


def mask_of(values: NDArray[Any], dtype: str, where: str) -> Mask:
    """`t2d` as bool [V]. Raises BadMap where it holds anything but 0 and 1."""
    if dtype == "BOOL":
        return values.astype(np.bool_)
    if other := np.flatnonzero((values != 0) & (values != 1)).tolist():
        i = other[0]
        raise BadMap(
            f"{where}: t2d[{i}] = {values[i]:g}, of type {dtype}",
            hint="t2d marks each target token with 1 or 0; the draft's ids belong into d2t",
        )
    return np.asarray(values == 1, dtype=np.bool_)


def check_map(d2t: Integers, t2d: Mask | None, dtype: str, target_vocab: int, where: str) -> tuple[str, ...]:
    """Check `d2t`, which was stored as `dtype`, as `check_d2t` does. A type that is too narrow is the one cause."""
    limit = NARROW.get(dtype)
    try:
        warnings = check_d2t(d2t, t2d, target_vocab, where)
    except BadMap:
        is_other = not d2t.any() or looks_absolute(d2t, t2d, target_vocab)
        if limit is None or limit >= target_vocab - len(d2t) or is_other:
            raise
        wrapped = True
    else:
        falls = bool((np.diff(ids_of(d2t)) < 0).any())
        wrapped = limit is not None and limit < target_vocab - len(d2t) and falls
    if wrapped:
        raise BadMap(
            f"{where}: d2t is of type {dtype}, which holds at most {limit}: larger offsets have wrapped",
            hint="export d2t as int64: offsets grow up to the difference of the vocabularies",
        )
    if limit is not None and limit < target_vocab - len(d2t) and t2d is None and not warnings:
        return (f"the draft's d2t is of type {dtype}, and no t2d shows that offsets above {limit} have not wrapped",)
    return warnings


def ids_of(d2t: Integers) -> Integers:
    """The target ids of all draft tokens."""
    ids: Integers = d2t + np.arange(len(d2t))
    return ids


def check_d2t(d2t: Integers, t2d: Mask | None, target_vocab: int, where: str) -> tuple[str, ...]:
    """Check `d2t` int64 [W] and, where there is one, the mask `t2d` bool [V] of the target tokens that the draft knows.

    Returns warnings. Raises BadMap for a map that is wrong; `where` names the file.
    """
    draft_vocab, ids = len(d2t), ids_of(d2t)
    if looks_absolute(d2t, t2d, target_vocab):
        raise BadMap(f"{where}: d2t looks like a table of absolute target ids", hint=OFFSETS_HINT)
    unfilled = draft_vocab < target_vocab and not d2t.any()
    counted = 1 < draft_vocab < target_vocab and bool((d2t == np.arange(draft_vocab)).all())
    other_mask = t2d is not None and not (t2d[:draft_vocab].all() and t2d.sum() == draft_vocab)
    if t2d is not None and other_mask and (unfilled or (counted and not t2d[ids % target_vocab].all())):
        values = "0 everywhere" if unfilled else f"0, 1, … {draft_vocab - 1}"
        state = f"d2t is {values}, t2d marks {int(t2d.sum())} of {target_vocab} tokens"
        raise BadMap(f"{where}: the vocabulary map was never filled: {state}", hint=FILL_HINT)
    if draft_vocab == target_vocab and not d2t.any():
        return ()  # the identity: trainers leave the mask of a whole vocabulary as they made it
    if outside := np.flatnonzero((ids < 0) | (ids >= target_vocab)).tolist():
        i = outside[0]
        raise BadMap(
            f"{where}: d2t[{i}] = {int(d2t[i])} gives target id {int(ids[i])}, outside the vocabulary of {target_vocab}"
            f" ({len(outside)} entries are)",
            hint=OFFSETS_HINT,
        )
    if (distinct := len(set(ids.tolist()))) < draft_vocab:
        raise BadMap(
            f"{where}: d2t maps {draft_vocab} draft tokens to {distinct} target tokens",
            hint="each target token may occur once",
        )
    if t2d is not None:
        check_t2d(t2d, ids, where)
    if unfilled:
        only = f"only the first {draft_vocab} of {target_vocab} target tokens can be drafted"
        return (f"the draft's vocabulary map was probably never filled: d2t is 0 everywhere, so that {only}",)
    if (np.diff(ids) < 0).any():
        return (f"{where}: d2t is not in ascending order of target id, as trainers write it: permuted or damaged",)
    return ()


def looks_absolute(d2t: Integers, t2d: Mask | None, target_vocab: int) -> bool:
    """True if `d2t` holds absolute target ids, although offsets are expected.

    That is only possible where `d2t` itself lists distinct target ids. A mask `t2d` then settles the question: the ids
    are absolute if it marks all of them. Both readings cannot fit, because their sums differ.

    Without a mask, `d2t` is taken for absolute where the reading as offsets leaves the vocabulary, or where `d2t` rises
    strictly. Strictly rising offsets would mean that no two neighbouring tokens are both in the draft vocabulary, which
    does not happen in a vocabulary chosen by frequency.
    """
    a_table = bool(((d2t >= 0) & (d2t < target_vocab)).all()) and len(set(d2t.tolist())) == len(d2t) > 1
    if not a_table:
        return False
    if t2d is not None and t2d.any():
        return bool(t2d[d2t].all())
    return int(ids_of(d2t).max()) >= target_vocab or bool((np.diff(d2t) > 0).all())


def check_t2d(t2d: Mask, ids: Integers, where: str) -> None:
    """Raise BadMap unless the mask `t2d` marks exactly the target `ids`."""
    if (marked := int(t2d.sum())) != len(ids):
        raise BadMap(f"{where}: t2d marks {marked} tokens, d2t maps {len(ids)}", hint=SAME_SET_HINT)
    if not t2d[ids].all():
        i = int(np.flatnonzero(~t2d[ids])[0])
        raise BadMap(f"{where}: d2t maps draft token {i} to {int(ids[i])}, which t2d does not mark", hint=SAME_SET_HINT)
