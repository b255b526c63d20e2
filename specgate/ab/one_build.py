"""What makes two builds comparable: all processes of a side are one build, and both sides have the same weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specgate.ab.schedule import other
from specgate.contract import EngineFacts
from specgate.contract.two_builds import Origin, Process, SideName
from specgate.errors import BackendError, UsageError
from specgate.promotion.claim import engine_fingerprint
from specgate.run.worker import EngineWorker

OF_BOTH_BUILDS = ("target_sha256", "draft_sha256", "device", "dtype")
"""What the facts of all processes of both sides must have in common."""


def origin_of(worker: EngineWorker) -> Origin | None:
    """Source of a process's code; None of a build that is too old to tell."""
    try:
        return worker.origin()
    except BackendError:
        return None


def check_origin(process: Process, earlier: Iterable[Process]) -> None:
    """Raise UsageError where a process ran another specgate or Python than its side's earlier ones."""
    before = next((p.origin for p in earlier if p.side == process.side and p.origin), None)
    if before is not None and process.origin is not None:
        keys = ("specgate_version", "python")
        then, now = ({key: getattr(origin, key) for key in keys} for origin in (before, process.origin))
        _check_same(process.side, then, now)


def check_side(side: SideName, before: EngineFacts, facts: EngineFacts) -> None:
    """Raise UsageError where the facts of a process differ from those of its side's earlier ones."""
    then, now = ({**engine_fingerprint(of), "dtype": of.dtype} for of in (before, facts))
    _check_same(side, then, now)


def check_sides(side: SideName, facts: EngineFacts, theirs: EngineFacts) -> None:
    """Raise UsageError where the other side has other weights, another device or another number format."""
    of = {side: facts, other(side): theirs}
    for key in OF_BOTH_BUILDS:
        old, new = (getattr(of[name], key) for name in ("old", "new"))
        if old != new:
            raise UsageError(
                f"{key}: old has {old}, new has {new}",
                hint="two builds can only be compared on the same weights, device and number format",
            )


def _check_same(side: SideName, then: Mapping[str, object], now: Mapping[str, object]) -> None:
    for key in dict.fromkeys((*then, *now)):
        if (was := then.get(key)) != (is_ := now.get(key)):
            raise UsageError(
                f"{side}: {key}: an earlier process had {was}, this one has {is_}",
                hint="a side is one build: all its processes must be the same",
            )
