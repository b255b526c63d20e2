"""The pairs that come with this engine, by name: the demo pair, and planted pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.pairs.demo import DRAFT_FOLDER, TARGET, demo_pair, demo_target, target_folder
from specgate.contract import AcceptanceSource, PairRef
from specgate.contract.assets import Asset
from specgate.pairs.resolve import DEMO, of_folders

PLANTED: Final = Path(__file__).resolve().parent / "planted"
"""Planted pairs by name. They consist of configs and calibrations; their weights are generated when loaded."""


class ShippedPairs:
    """A `PairSource` of the harness."""

    name = "eagle3"
    wheels: tuple[Asset, ...] = (TARGET,)

    def names(self) -> tuple[str, ...]:
        """Return the names of all pairs, the demo pair's first."""
        return (DEMO, *sorted(file.parent.parent.name for file in PLANTED.glob("*/target/config.json")))

    def pair(self, name: str) -> PairRef:
        """Return the pair of that name, which is one of `names()`. The demo target is converted when first needed.

        Raises EnvironmentRefused where its wheel has not been fetched.
        """
        if name == DEMO:
            return demo_pair()
        return of_folders(name, PLANTED / name / "target", PLANTED / name / "draft")

    def acceptance(self, name: str) -> AcceptanceSource:
        """Return where the acceptance of that pair comes from."""
        return "real" if name == DEMO else "planted"

    def parts(self, name: str) -> Iterator[tuple[str, Path]]:
        """Yield (what it is, folder) of what a pair is made of here; nothing for a pair without files of its own."""
        if name == DEMO:
            yield "target", target_folder()
            yield "draft", DRAFT_FOLDER

    def prepare(self) -> Iterator[tuple[str, Path]]:
        """Make what fetched wheels are turned into. Yields (what it is, folder)."""
        yield "demo target", demo_target()


PAIRS = ShippedPairs()
