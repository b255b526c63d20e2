"""Shapes in, a file of tuned configurations out: what `specgate tune` does between the command line and a back end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specgate import plugins
from specgate.api import GemmTuner, TunesGemms
from specgate.core import PairRef
from specgate.core.gemms import GemmShape, StepsRequest, TunedGemm, TunedGemms
from specgate.errors import EnvironmentRefused, UsageError
from specgate.machine.tuned_gemms import read_shapes, read_tuned, user_file, write_tuned


def tuning_backend(name: str | None, *, here: bool) -> TunesGemms:
    """The back end `name`, else the best one that tunes products; with `here`, one that this machine can run.

    Raises UsageError where `name` tunes none, EnvironmentRefused, with the reasons, where none can run.
    """
    if name and not isinstance(plugins.backend(name), TunesGemms):
        raise UsageError(f"back end {name!r} has no products to tune", hint="see specgate backends")
    found = [(a, known, b) for known, (b, a) in plugins.backends_available().items() if name in (None, known)]
    able = {(a.usable, a.rank, known): b for a, known, b in found if isinstance(b, TunesGemms)}
    if not able:
        raise EnvironmentRefused("no back end that is known here has products to tune", hint="see specgate backends")
    best = max(able)
    if here and not best[0]:
        reasons = "; ".join(f"{known}: {a.reason}" for a, known, b in found if isinstance(b, TunesGemms))
        raise EnvironmentRefused(f"no product can be tuned on this machine ({reasons})")
    return able[best]


def wanted(
    backend: TunesGemms,
    files: Sequence[Path],
    pairs: Sequence[PairRef],
    batches: Sequence[int],
    draft_lengths: Sequence[int],
) -> tuple[GemmShape, ...]:
    """What shape files and pairs name, once. Raises UsageError where neither is given."""
    if not files and not pairs:
        raise UsageError("no shapes", hint="give --shapes FILE, --pair NAME, or --target and --draft")
    shapes = {shape for file in files for shape in read_shapes(file)}
    shapes.update(shape for pair in pairs for shape in backend.gemm_shapes(pair, batches, draft_lengths))
    return tuple(sorted(shapes))


def tune_into(file: Path, tuner: GemmTuner, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
    """Tune, and store every result in `file` as it comes; what the file holds of other weights stays.

    Raises UsageError where `file` holds another device's, or something else.
    """
    yield from stored(file, tuner, tuner.tune(shapes, seconds))


def refine_into(file: Path | None, tuner: GemmTuner, request: StepsRequest, seconds: float) -> Iterator[TunedGemm]:
    """Choose anew in whole steps, and store every result in `file`, which is the only one then that is looked at;
    without one, in the user's.

    Raises UsageError where `file` holds another device's, or something else, or not all weights of the pair.
    """
    yield from stored(file or default_file(tuner), tuner, tuner.refine(request, file, seconds))


def stored(file: Path, tuner: GemmTuner, results: Iterator[TunedGemm]) -> Iterator[TunedGemm]:
    """Each of `results`, once `file` holds it."""
    known = known_in(file, tuner)
    for found in results:
        known = known.with_(found)
        write_tuned(file, known)
        yield found


def known_in(file: Path, tuner: GemmTuner) -> TunedGemms:
    if not file.exists():
        return TunedGemms(tuner.device, tuner.compute_capability)
    known = read_tuned(file)
    if known.device != tuner.device:
        raise UsageError(
            f"{file}: device: {known.device!r}, but this is {tuner.device!r}", hint="name another file with --out"
        )
    return known


def default_file(tuner: GemmTuner) -> Path:
    return user_file(tuner.device)
