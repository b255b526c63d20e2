"""specgate measures speculative decoding and judges it. Plug-in authors import `specgate.api` and `specgate.core`."""

from pathlib import Path

__version__ = "0.1.0"

# `backends`, `gates`, `reports` and `scenarios` live at the top level of the repository and are reached through
# links in this folder. A checkout made without link support (git's core.symlinks=false) still runs: look in the
# parent folder too.
if not (Path(__file__).parent / "backends" / "__init__.py").is_file():
    __path__.append(str(Path(__file__).parent.parent))

__all__ = ["__version__"]
