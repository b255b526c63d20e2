"""Check that an export may be written where it is asked for, and translate errors of writing it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specgate.backends.eagle3.pair_tools.export.hf import NAME
from specgate.errors import EnvironmentRefused, UsageError


def refuse_occupied(out: Path, replace: bool) -> None:
    """Raise UsageError where `out` holds something that must not be lost.

    Only an earlier export may be overwritten, and only with `replace`.
    """
    nearest = existing(out)
    if not nearest.is_dir():
        raise UsageError(f"{nearest}: is no folder", hint="name a folder")
    if nearest != out or not any(out.iterdir()):
        return
    if not (out / NAME).is_file():
        raise UsageError(f"{out}: not empty, and no earlier export", hint="name a new folder")
    if not replace:
        raise UsageError(f"{out}: holds an earlier export", hint="name a new folder, or add --replace")


def require_disk(out: Path, needed: int) -> None:
    """Raise EnvironmentRefused where the disk of `out` has less than `needed` bytes free."""
    free = shutil.disk_usage(existing(out)).free
    if needed > free:
        raise EnvironmentRefused(
            f"{out}: the export takes {needed / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB free",
            hint="free some space, or name a folder on another disk",
        )


def existing(out: Path) -> Path:
    """`out` itself, or the nearest of its parents that exists."""
    return next(path for path in (out, *out.parents) if path.exists())


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn errors of writing below `out` into EnvironmentRefused."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise EnvironmentRefused(
            f"{out}: cannot be written: {reason(error)}", hint="nothing was kept of it; name another folder"
        ) from error


def reason(error: Exception) -> str:
    """The cause of a failed write. NumPy's errors about short writes have no error number, only two item counts."""
    if not isinstance(error, OSError):
        return str(error)
    return os.strerror(error.errno) if error.errno else f"{error} (is the disk full?)"
