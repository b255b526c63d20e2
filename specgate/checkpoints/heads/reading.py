"""One reading of an EAGLE-3 head, for engines and for checks of files alike. No weights are read, only maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specgate.checkpoints.arrays import FLOATS
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, layer_warnings
from specgate.checkpoints.files import listed
from specgate.checkpoints.geometry import DraftGeometry, TargetSizes
from specgate.checkpoints.heads.maps import Integers, Mask, check_map, mask_of, offsets_of
from specgate.checkpoints.heads.names import head_names, refuse_other_kinds
from specgate.checkpoints.heads.sizes import Shapes, put_right, shown
from specgate.checkpoints.heads.tensors import Described, Wanted, check_tensors, draft_tensors
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf_keys import Keys
from specgate.errors import UnsupportedDraft

MAPS: Final = ("d2t", "t2d")


@dataclass(frozen=True, slots=True)
class Head:
    """A head whose tensors fit its config. `names`: canonical name → name in the files, of the tensors that `wanted`
    describes. `warnings`: contradictions, each once.
    """

    geometry: DraftGeometry
    capture: AuxiliaryLayers
    names: Mapping[str, str]
    wanted: Mapping[str, Wanted]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """`d2t`: offsets, int64 [W]. `t2d`: marks, bool [V]. None where the head has none."""

    d2t: Integers | None
    t2d: Mask | None
    warnings: tuple[str, ...]


def read_head(
    config: Keys, target: TargetSizes, entries: Mapping[str, Described], capture_override: Sequence[int] | None = None
) -> Head:
    """Read the head of `target` whose files hold `entries` (name → header). `capture_override`: boundaries in place of
    those of the config.

    Raises UnsupportedDraft for heads that the built-in engines do not run, and CheckpointError for a head of another
    target, or one whose tensors do not fit.
    """
    folder = config.file.parent
    names = head_names(entries, folder)
    refuse_other_kinds(names, folder)
    own = {name: entries[stored] for name, stored in names.stored.items()}
    shapes = {name: entry.shape for name, entry in own.items()}
    refuse_eagle_1(shapes, config)
    refuse_quantised(own, config)
    plain = all(entry.dtype in FLOATS for name, entry in own.items() if name not in MAPS)
    right, warnings = put_right(config, shapes, len(names.layers), plain, target)
    fc = shapes.get("fc.weight", ())
    streams = fc[1] // target.hidden if len(fc) == 2 and fc[1] % target.hidden == 0 else None
    geometry, capture = draft_geometry(right, target, own, capture_override, streams)
    wanted = draft_tensors(geometry, "d2t" in own, "t2d" in own)
    check_tensors(own, wanted, folder)
    if capture_override is None:
        warnings += layer_warnings(config, capture, streams)
    every = dict.fromkeys((*warnings, *names.warnings, *position_warnings(geometry, target)))
    return Head(geometry, capture, {name: names.stored[name] for name in wanted}, wanted, tuple(every))


def read_map(
    head: Head, entries: Mapping[str, Described], read: Callable[[str], NDArray[Any]], where: str
) -> VocabularyMap:
    """Read the maps of `head`. `read` returns a tensor by its name in the files. Raises BadMap; `where` names the
    folder.
    """
    arrays = {name: (read(head.names[name]), entries[head.names[name]].dtype) for name in MAPS if name in head.names}
    d2t = offsets_of(*arrays["d2t"], where) if "d2t" in arrays else None
    t2d = mask_of(*arrays["t2d"], where) if "t2d" in arrays else None
    if d2t is None:
        return VocabularyMap(None, t2d, ())
    warnings = check_map(d2t, t2d, arrays["d2t"][1], head.geometry.vocab, where)
    return VocabularyMap(np.ascontiguousarray(d2t), t2d, warnings)


def refuse_eagle_1(shapes: Shapes, config: Keys) -> None:
    """Raise UnsupportedDraft for a head of EAGLE-1 or EAGLE-2: its `fc` takes an embedding and one hidden state."""
    fc, hidden = shapes.get("fc.weight", ()), shown(shapes, "hidden_size")
    if "midlayer.hidden_norm.weight" in shapes or len(fc) != 2 or not ("fc.bias" in shapes or fc[1] == 2 * fc[0]):
        return
    raise UnsupportedDraft(
        f"{config.file.parent}: a head of EAGLE-1 or EAGLE-2: fc takes an embedding and one hidden state "
        f"({fc[1]} = 2 · {hidden or fc[0]}), and its layer has no hidden_norm",
        hint="only EAGLE-3 heads are supported; servers run it as method eagle",
    )


def refuse_quantised(own: Mapping[str, Described], config: Keys) -> None:
    """Raise UnsupportedDraft for matrices of another type than floats of 16 to 64 bits."""
    other = [name for name, entry in own.items() if name not in MAPS and entry.dtype not in FLOATS]
    if other:
        types = ", ".join(sorted({own[name].dtype for name in other}))
        raise UnsupportedDraft(
            f"{config.file.parent}: {len(other)} of {len(own)} tensors are of type {types}: {listed(other[:3])}"
            + (" …" if len(other) > 3 else ""),
            hint="only unquantised weights are supported: export the head in bfloat16",
        )


def position_warnings(draft: DraftGeometry, target: TargetSizes) -> tuple[str, ...]:
    """Warn where a draft without a window was made for fewer positions than the target."""
    if draft.window is not None or draft.max_positions >= target.max_positions:
        return ()
    return (
        f"the draft is made for {draft.max_positions} positions, the target for {target.max_positions}: acceptance "
        f"beyond {draft.max_positions} is likely to fall",
    )
