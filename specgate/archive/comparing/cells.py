"""The same cell in several runs: what it is recognised by, and what of it two runs must share to be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from specgate.contract import Block, Cell, Point, Run
from specgate.contract.matrix import Column

CellId = tuple[str, int, int, int]
"""Scenario, context, batch and draft length of a cell: the same on every back end."""


def cell_id(cell: Cell) -> CellId:
    """Return what identifies a cell apart from its back end."""
    return cell.point.scenario, cell.point.context, cell.point.batch, cell.role.k


def by_cell(blocks: Sequence[Block]) -> dict[Cell, list[Block]]:
    """Return the blocks of each cell, point after point, the roles of a point by their draft lengths."""
    of: dict[Cell, list[Block]] = defaultdict(list)
    for block in blocks:
        of[block.cell].append(block)
    points = list(dict.fromkeys(cell.point for cell in of))
    return {cell: of[cell] for cell in sorted(of, key=lambda cell: (points.index(cell.point), cell.role.k))}


def columns_of(runs: Sequence[Run]) -> Iterator[Column]:
    """Yield one column per run and back end."""
    measured = [(backend, run) for run in runs for backend in backends_of(run)]
    names = [backend for backend, _ in measured]
    for backend, run in measured:
        yield Column(backend, run, backend if names.count(backend) == 1 else f"{backend} {run.id.rpartition('-')[2]}")


def backends_of(run: Run) -> list[str]:
    """Return the back ends that the cells of a run were measured on."""
    return list(dict.fromkeys(result.cell.point.backend for result in run.cells))


def prompts_sha256(run: Run, point: Point) -> str | None:
    """Return the SHA-256 of the prompts of a point; None if the run does not state it."""
    digest = run.prompts.get(point.key, {}).get("sha256")
    return None if digest is None else str(digest)


def same_prompts(a: Run, at_a: Point, b: Run, at_b: Point) -> bool:
    """Tell whether both runs state the same prompts for the point."""
    digest = prompts_sha256(a, at_a)
    return digest is not None and digest == prompts_sha256(b, at_b)


def target_of(run: Run, point: Point) -> str | None:
    """Return the SHA-256 of the target weights that measured a point, or what a server says that it serves.

    None if no engine was loaded for it.
    """
    engine = run.engines.get(point.key)
    return engine.target if engine else None
