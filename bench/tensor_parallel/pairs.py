"""The pair that a bench asks for by its name: one that specgate knows, or a planted mixture of experts of any size.

No pair with experts ships, since each is calibrated on the GPU that plants it. How long a step takes does not depend on
that. So `planted-gpt-oss-20b` and its like are made here, from a seed, with a signal that nobody has calibrated: their
acceptance is whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from specgate.backends.eagle3.lib.pair import open_target
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES, PairGeometry
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.contract import PairRef
from specgate.pairs.resolve import resolve_pair

PLANTED: Final = "planted-"
SIGNAL: Final = 0.75


@contextmanager
def pair_of(name: str, overlap: float) -> Iterator[PairRef]:
    """While its weights are read. `overlap`: how far neighbouring tokens choose the same experts, 0 to 1, of a mixture
    that is made here.
    """
    geometry = EXPERT_GEOMETRIES.get(name.removeprefix(PLANTED)) if name.startswith(PLANTED) else None
    if geometry is None:
        yield resolve_pair(name, None, None)
        return
    with TemporaryDirectory() as folder:
        write_configs(Path(folder) / name, geometry(), overlap)
        yield resolve_pair(str(Path(folder) / name), None, None)


def write_configs(folder: Path, shape: PairGeometry, overlap: float) -> None:
    recipe = Recipe(
        "A",
        seed=7,
        draft_vocab=shape.draft.draft_vocab,
        signal=SIGNAL,
        boundaries=shape.boundaries,
        expert_overlap=overlap,
    )
    write_target(folder / "target", shape.target, recipe, {}, written=False)
    sha256 = open_target(folder / "target").sha256()
    write_draft(folder / "draft", shape, recipe, {}, False, sha256)
