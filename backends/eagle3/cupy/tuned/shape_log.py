"""The products that an engine has run, in a file for the tuner."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specgate.backends.eagle3.nouns.gemms import GemmShape


class ShapeLog:
    """A file of products that grows when steps are made, never while one runs. What it held before stays in it, because
    one run may have several engines.
    """

    def __init__(self, file: Path) -> None:
        """Raises UsageError where `file` holds something else."""
        from specgate.backends.eagle3.nouns.tuned_gemms import read_shapes

        self.file = file
        self.shapes = set(read_shapes(file) if file.exists() else ())

    def add(self, shapes: Iterable[GemmShape]) -> None:
        """Raises EnvironmentRefused where the file cannot be written."""
        from specgate.backends.eagle3.nouns.tuned_gemms import write_shapes

        self.shapes.update(shapes)
        write_shapes(self.file, self.shapes)
