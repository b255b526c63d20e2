"""The cache folder, for files that can be made or fetched again: wheels, converted checkpoints, tuned
configurations.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from specgate.errors import EnvironmentRefused
from specgate.files.writing import write_whole

CACHE_VARIABLE: Final = "SPECGATE_CACHE"
ANOTHER: Final = f"set {CACHE_VARIABLE} to a folder that can be written"


def cache_path() -> Path:
    """`$SPECGATE_CACHE`, else the user's cache folder. The folder need not exist."""
    from platformdirs import user_cache_path

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else user_cache_path("specgate")


def cache_dir() -> Path:
    """The cache folder, created where it is missing. Raises EnvironmentRefused where it cannot be."""
    folder = cache_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentRefused(f"cache folder {folder} cannot be made ({error.strerror})", hint=ANOTHER) from error
    return folder


def write_cached(file: Path, text: str) -> None:
    """Write a file of the cache whole. Raises EnvironmentRefused where it cannot be written."""
    try:
        write_whole(file, text)
    except EnvironmentRefused as error:
        raise EnvironmentRefused(error.message, hint=ANOTHER) from error
