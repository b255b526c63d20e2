"""Tune matrix products: from shapes to a file of tuned configurations, for `engine tune gemm` and `tune steps`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specgate import plugins
from specgate.backends.eagle3.nouns.abilities import GemmTuner, TunesGemms
from specgate.backends.eagle3.nouns.gemms import (
    GemmShape,
    StepsRequest,
    TunedGemm,
    TunedGemms,
    read_shapes,
    read_tuned,
    user_file,
    write_tuned,
)
from specgate.contract import PairRef
from specgate.errors import EnvironmentRefused, UsageError


def tuning_backend(name: str | None, *, here: bool) -> TunesGemms:
    """The back end `name`, or without a name the best one that can tune matrix products.

    `here`: it must be able to run on this machine. Raises UsageError if the back end `name` has no products to tune.
    Raises EnvironmentRefused if no known back end has any, or, with `here`, if none of them can run, with the reasons.
    """
    if name and not isinstance(plugins.backend(name), TunesGemms):
        raise UsageError(f"back end {name!r} has no products to tune", hint="see specgate machine backends")
    candidates = [(a, known, b) for known, (b, a) in plugins.backends_available().items() if name in (None, known)]
    able = {(a.usable, a.rank, known): b for a, known, b in candidates if isinstance(b, TunesGemms)}
    if not able:
        raise EnvironmentRefused(
            "no back end that is known here has products to tune", hint="see specgate machine backends"
        )
    best = max(able)
    if here and not best[0]:
        reasons = "; ".join(f"{known}: {a.reason}" for a, known, b in candidates if isinstance(b, TunesGemms))
        raise EnvironmentRefused(f"no product can be tuned on this machine ({reasons})")
    return able[best]


def wanted(
    backend: TunesGemms,
    files: Sequence[Path],
    pairs: Sequence[PairRef],
    batches: Sequence[int],
    draft_lengths: Sequence[int],
) -> tuple[GemmShape, ...]:
    """The shapes that shape files and pairs name, without repetitions. Raises UsageError if neither is given."""
    if not files and not pairs:
        raise UsageError("no shapes", hint="give --shapes FILE, --pair NAME, or --target and --draft")
    shapes = {shape for file in files for shape in read_shapes(file)}
    shapes.update(shape for pair in pairs for shape in backend.gemm_shapes(pair, batches, draft_lengths))
    return tuple(sorted(shapes))


def tune_into(file: Path, tuner: GemmTuner, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
    """Tune every shape and store each result in `file` as soon as it is found.

    What the file holds for other weights is kept. Raises UsageError if `file` was tuned on another device, or is not
    such a file.
    """
    yield from store_each(file, tuner, tuner.tune(shapes, seconds))


def refine_into(file: Path | None, tuner: GemmTuner, request: StepsRequest, seconds: float) -> Iterator[TunedGemm]:
    """Choose configurations again, now by the time of whole steps, and store each result in `file` as soon as it is
    found.

    If `file` is given, the configurations to begin with are read from it alone; else the user's file is written. Raises
    UsageError if `file` was tuned on another device, is not such a file, or lacks weights of the pair.
    """
    yield from store_each(file or default_file(tuner), tuner, tuner.refine(request, file, seconds))


def store_each(file: Path, tuner: GemmTuner, results: Iterator[TunedGemm]) -> Iterator[TunedGemm]:
    """Yield each of `results` after it has been written to `file`."""
    known = known_in(file, tuner)
    for tuned in results:
        known = known.with_(tuned)
        write_tuned(file, known)
        yield tuned


def known_in(file: Path, tuner: GemmTuner) -> TunedGemms:
    """Read the products tuned in `file`; none if it does not exist. Raises UsageError if it was tuned on another
    device.
    """
    if not file.exists():
        return TunedGemms(tuner.device, tuner.compute_capability)
    known = read_tuned(file)
    if known.device != tuner.device:
        raise UsageError(
            f"{file}: device: {known.device!r}, but this is {tuner.device!r}", hint="name another file with --out"
        )
    return known


def default_file(tuner: GemmTuner) -> Path:
    """The file for this device in the user's cache."""
    return user_file(tuner.device)
