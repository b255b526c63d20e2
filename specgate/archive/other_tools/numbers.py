"""Numbers of another tool's result by their dotted paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specgate.archive.other_tools.declarations import Source, at
from specgate.errors import UsageError
from specgate.files.json_text import shown

LARGEST: Final = 1e15
"""Of any count or rate: beyond it, not every whole number is a float."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of the result `data`. `where`: its file and name, with which messages begin."""

    where: str
    data: object

    def of(self, source: Source) -> float:
        """Return the number at a path, or what a declaration computes. Raises UsageError if one is missing."""
        return self.checked(source, at(self.data, source)) if isinstance(source, str) else source(self.of)

    def optional(self, path: str) -> float | None:
        """Return the number at a path; None if nothing is there. Raises UsageError for anything else."""
        value = at(self.data, path) if path else None
        return None if value is None else self.checked(path, value)

    def checked(self, path: str, value: object) -> float:
        """Return `value` if it is a number. Raises UsageError, which names the path."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            raise UsageError(f"{self.where}: {path}: {shown(value)}: a number, 0 to {LARGEST:g}, was expected")
        return float(value)
