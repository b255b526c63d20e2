"""The least speed-up that a policy asks of a cell."""

from __future__ import annotations

from specgate.contract import SPEEDUP, Cell, Point, Role, Run


def floor_of(run: Run, cell: Cell) -> float | None:
    """The highest floor of the required rules for the speed-up of the cell, or of those that advise where none is
    required; None if there is no such rule.
    """
    mine = [v for v in run.verdicts if v.cell == cell.key and v.floor is not None and v.floor.figure == SPEEDUP]
    decisive = [v for v in mine if v.required] or mine
    return max((v.floor.least for v in decisive if v.floor is not None), default=None)


def floors(run: Run, point: Point, roles: tuple[Role, ...]) -> dict[Role, float]:
    """Role → the least speed-up that the policy asks of it at `point`, for the roles of which it asks one."""
    found = {role: floor_of(run, Cell(point, role)) for role in roles}
    return {role: floor for role, floor in found.items() if floor is not None}
