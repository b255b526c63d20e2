"""Start of an engine's process: its interpreter, and where it imports its code from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import specgate
from specgate.run.engine_process import start, surroundings

HARNESS: Final = Path(specgate.__file__).parent.parent
"""The folder that the harness imports specgate from."""
OF_THE_HARNESS: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that lead an interpreter to the harness's packages."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Without `python` and `first`, the process imports exactly what the harness imports.

    `python`: the interpreter that runs it; None for the harness's own.
    `first`: folders that it imports from before anything else. Behind them stand the interpreter's own packages, and
        the harness's specgate last, for a build that does not bring one.
    `sources`: path below HARNESS → SHA-256 that specgate's own sources must have when they are imported; None for any.
    """

    python: Path | None = None
    first: Sequence[Path] = ()
    sources: Mapping[str, str] | None = None

    @property
    def own(self) -> bool:
        """True if the process has an import path of its own."""
        return self.python is not None or bool(self.first)

    @property
    def code(self) -> tuple[Path, ...]:
        """The folders of code and interpreter that the harness does not have itself."""
        python = () if self.python is None else (self.python.parent.parent, self.python.resolve().parent.parent)
        return (*self.first, *python)

    def command(self) -> list[str]:
        """The command line of the process, whose standard input is the socket."""
        python = str(self.python) if self.python is not None else sys.executable
        sources = None if self.sources is None else {"folder": str(HARNESS), "sha256": shortened(self.sources)}
        return [python, "-P", start.__file__, self._import_path(), json.dumps(sources, separators=(",", ":"))]

    def environment(self, options: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process; `options` are those of its back end."""
        passed = surroundings.passed(os.environ, options)
        if self.python is not None:
            passed = {name: value for name, value in passed.items() if name not in OF_THE_HARNESS}
        return passed

    def _import_path(self) -> str:
        if not self.own:
            return json.dumps([os.path.abspath(folder) for folder in sys.path])
        # With the harness's interpreter, its packages are this process's, too: they may lie on PYTHONPATH alone.
        last = [] if self.python is not None else [os.path.abspath(folder) for folder in sys.path]
        return json.dumps({"first": [str(folder) for folder in self.first], "last": [*last, str(HARNESS)]})


def shortened(sources: Mapping[str, str]) -> dict[str, str]:
    """Half of each SHA-256 of Python sources: Linux limits an argument to 128 KiB."""
    return {name: sha256[:32] for name, sha256 in sources.items() if name.endswith(".py")}


AS_THE_HARNESS: Final = Launch()
