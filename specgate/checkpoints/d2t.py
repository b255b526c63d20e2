"""The map from draft vocabulary to target vocabulary.

`d2t`, int64 [W], holds *offsets*: the target id of draft token i is i + d2t[i].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgate.errors import CheckpointError

Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]

OFFSETS_HINT = "d2t must hold offsets, so that target id = i + d2t[i]; subtract arange(len(d2t)) from a table of ids"
SAME_SET_HINT = "both must describe the same set of target tokens"


def check_d2t(d2t: Integers, t2d: Mask | None, target_vocab: int, where: str) -> tuple[str, ...]:
    """Check `d2t` int64 [W] and, where there is one, the mask `t2d` bool [V] of the target tokens that the draft knows.

    Returns warnings. Raises CheckpointError for a map that is wrong; `where` names the file.
    """
    draft_vocab = len(d2t)
    ids = d2t + np.arange(draft_vocab)
    if looks_absolute(d2t, ids, t2d, target_vocab):
        raise CheckpointError(f"{where}: d2t looks like a table of absolute target ids", hint=OFFSETS_HINT)
    if outside := np.flatnonzero((ids < 0) | (ids >= target_vocab)).tolist():
        i = outside[0]
        raise CheckpointError(
            f"{where}: d2t[{i}] = {int(d2t[i])} gives target id {int(ids[i])}, outside the vocabulary of {target_vocab}"
            f" ({len(outside)} entries are)",
            hint=OFFSETS_HINT,
        )
    if (distinct := len(set(ids.tolist()))) < draft_vocab:
        raise CheckpointError(
            f"{where}: d2t maps {draft_vocab} draft tokens to {distinct} target tokens",
            hint="each target token may occur once",
        )
    if t2d is not None:
        check_t2d(t2d, ids, where)
    if (np.diff(ids) < 0).any():
        return (f"{where}: d2t is not in ascending order of target id, as trainers write it: permuted or damaged",)
    return ()


def looks_absolute(d2t: Integers, ids: Integers, t2d: Mask | None, target_vocab: int) -> bool:
    """True if `d2t` holds absolute target ids, although offsets are expected. `ids` [W] is its reading as offsets.

    That is only possible where `d2t` itself lists distinct target ids. A mask `t2d` then settles the question: the ids
    are absolute if it marks all of them. Both readings cannot fit, because their sums differ.

    Without a mask, `d2t` is taken for absolute where the reading as offsets leaves the vocabulary, or where `d2t` rises
    strictly. Strictly rising offsets would mean that no two neighbouring tokens are both in the draft vocabulary, which
    does not happen in a vocabulary chosen by frequency.
    """
    a_table = bool(((d2t >= 0) & (d2t < target_vocab)).all()) and len(set(d2t.tolist())) == len(d2t) > 1
    if not a_table:
        return False
    if t2d is not None:
        return bool(t2d[d2t].all())
    return int(ids.max()) >= target_vocab or bool((np.diff(d2t) > 0).all())


def check_t2d(t2d: Mask, ids: Integers, where: str) -> None:
    """Raise CheckpointError unless the mask `t2d` marks exactly the target `ids`."""
    if (marked := int(t2d.sum())) != len(ids):
        raise CheckpointError(f"{where}: t2d marks {marked} tokens, d2t maps {len(ids)}", hint=SAME_SET_HINT)
    if not t2d[ids].all():
        i = int(np.flatnonzero(~t2d[ids])[0])
        raise CheckpointError(
            f"{where}: d2t maps draft token {i} to {int(ids[i])}, which t2d does not mark", hint=SAME_SET_HINT
        )
