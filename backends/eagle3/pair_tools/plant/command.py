"""`specgate engine plant`: calibrate, write and measure a planted pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import require_room
from specgate.backends.eagle3.lib.pair import target_source
from specgate.backends.eagle3.lib.planted.recipe import DEPTH, Recipe
from specgate.backends.eagle3.pair_tools.plant.calibrate import WALK, OutOfReach, amount, calibrate, calibration_bytes
from specgate.backends.eagle3.pair_tools.plant.check import Load, Measured, check
from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder, release
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry, geometry_of
from specgate.backends.eagle3.pair_tools.plant.orbit import HISTORY
from specgate.backends.eagle3.pair_tools.plant.overlap import touched, touched_keys
from specgate.backends.eagle3.pair_tools.plant.thresholds import STRONGEST, acceptance_length, share_for
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.backends.eagle3.reference.open import DTYPES
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import PairRef
from specgate.errors import UsageError

CHECK_STEPS: Final = 128
CHECK_PROMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's request. `context` None and `written` None leave the choice to the geometry. `expert_overlap` None is
    0 if there are experts.
    """

    geometry: str
    length: float
    spec: int
    recipe: Literal["A", "B"] = "A"
    seed: int = 1
    draft_error: float = 0.0
    context: int | None = None
    written: bool | None = None
    expert_overlap: float | None = None


def plant(wish: Wish, out: Path, decoder: Decoder, say: Callable[[str], object]) -> Measured:
    """Write `out/target` and `out/draft`, and return what `decoder` measures of them.

    Raises UsageError for requests that make no sense or are out of reach, EnvironmentRefused where the weights do not
    fit into memory.
    """
    shape = geometry_of(wish.geometry)
    context = wish.context or shape.context
    written = shape.written if wish.written is None else wish.written
    refuse_nonsense(wish, shape, context, out)
    dtype = DTYPES[decoder.dtype]
    beside = calibration_bytes(shape, context, dtype)
    require_room(target_tensors(shape.target), dtype, decoder.device, f"geometry {wish.geometry}", beside)

    share = share_for(wish.length, wish.spec) / (1 - wish.draft_error)
    overlap = (wish.expert_overlap or 0.0) if shape.target.experts else None
    start = Recipe(wish.recipe, wish.seed, shape.draft.draft_vocab, 1.0, shape.boundaries, wish.draft_error, overlap)
    texts, walk = amount(shape)
    say(f"calibrating on {texts} texts of {context} + {walk} tokens")
    try:
        calibrated = calibrate(start, shape, share, context, decoder)
    except OutOfReach as error:
        raise out_of_reach(wish, share, error.reachable) from None
    recipe = calibrated.recipe
    say(f"signal {recipe.signal:g}: {calibrated.share:.1%} of {calibrated.states} states say the planted token")

    calibration = {
        "context": context,
        "dtype": decoder.dtype,
        "states": calibrated.states,
        "planted_share": round(calibrated.share, 4),
    }
    write_target(out / "target", shape.target, recipe, {"calibration": calibration}, written)
    sha256 = target_source(read_config(out / "target"), shape.target).sha256(out / "target" / "config.json")
    notes = draft_notes(wish, calibrated.share)
    write_draft(out / "draft", shape, recipe, notes, written, sha256)
    say(f"checking spec-{wish.spec} on {CHECK_PROMPTS} prompts of {context} tokens")
    pair = PairRef(out.name, out / "target", out / "draft", "planted")
    (measured,) = check(pair, [wish.spec], Load(context, CHECK_PROMPTS, CHECK_STEPS), decoder)
    release(decoder.device)
    experts = touched_keys(touched(pair, recipe, decoder.dtype, decoder.device))
    notes_of_check = {"measured": {**measured.keys(), **experts}}
    write_draft(out / "draft", shape, recipe, {**notes, **notes_of_check}, written, sha256)
    return measured


def refuse_nonsense(wish: Wish, shape: PairGeometry, context: int, out: Path) -> None:
    """Raise UsageError for values outside their ranges, and for an `out` that is not empty."""
    if not 1 <= wish.spec <= DEPTH:
        raise UsageError(f"--spec {wish.spec}", hint=f"planted pairs serve chains of 1 to {DEPTH} drafts")
    if not 0 <= wish.draft_error < 1:
        raise UsageError(f"--draft-error {wish.draft_error:g}", hint="a share of at least 0 and below 1 is needed")
    most = acceptance_length(1 - wish.draft_error, wish.spec)
    if not 1 < wish.length < most:
        raise UsageError(
            f"--accept-length {wish.length:g}",
            hint=f"with spec-{wish.spec} and a draft error of {wish.draft_error:g} it lies between 1 and {most:g}",
        )
    if shape.target.experts is None and wish.expert_overlap is not None:
        raise UsageError(
            f"--expert-overlap {wish.expert_overlap:g}", hint=f"geometry {wish.geometry} has no experts: leave it out"
        )
    if not 0 <= (wish.expert_overlap or 0.0) <= 1:
        raise UsageError(f"--expert-overlap {wish.expert_overlap:g}", hint="a share from 0 to 1 is needed")
    if (shape.target.experts or shape.target.head_norms) and wish.recipe != "A":
        why = "experts" if shape.target.experts else "norms of queries and keys, which flatten the heads of recipe B"
        raise UsageError(
            f"--recipe {wish.recipe}", hint=f"geometry {wish.geometry} has {why}: recipe A is the one for it"
        )
    room = shape.target.max_positions - WALK - DEPTH - 3
    if not HISTORY <= context <= room:
        raise UsageError(
            f"--context {context}", hint=f"{wish.geometry} can be calibrated at {HISTORY} to {room} tokens"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder", hint="name a new folder")


def out_of_reach(wish: Wish, share: float, reachable: float) -> UsageError:
    """The error to raise, with the reachable range. In a narrow stream, even the strongest signal may not be enough."""
    most = acceptance_length(reachable * (1 - wish.draft_error), wish.spec)
    return UsageError(
        f"--accept-length {wish.length:g} at spec-{wish.spec} is out of reach of geometry {wish.geometry} with recipe "
        f"{wish.recipe}: it needs {share:.1%} planted tokens, and a signal of {STRONGEST:g} gives {reachable:.1%}",
        hint=f"reachable: 1.00 to {most:.2f}",
    )


def draft_notes(wish: Wish, realised: float) -> Mapping[str, object]:
    """Return the notes in the draft's config on the request and the expected acceptance lengths."""
    share = realised * (1 - wish.draft_error)
    return {
        "asked": {"spec": wish.spec, "acceptance_length": wish.length},
        "predicted_acceptance_length": {
            f"spec-{k}": round(acceptance_length(share, k), 4) for k in range(1, DEPTH + 1)
        },
    }
