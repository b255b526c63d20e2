"""The least speed-up that a policy asks of a cell."""

from __future__ import annotations

from specgate.contract import SPEEDUP, Cell, Point, Role, Run


def floor_of(run: Run, cell: Cell) -> float | None:
    """Return the highest floor of the required rules for the speed-up of the cell; of those that advise if none is
    required; None if there is no such rule.
    """
    key = cell.key
    mine = [v for v in run.verdicts if v.cell == key and v.floor is not None and v.floor.figure == SPEEDUP]
    decisive = [v for v in mine if v.required] or mine
    return max((v.floor.least for v in decisive if v.floor is not None), default=None)


def floors(run: Run, point: Point, roles: tuple[Role, ...]) -> dict[Role, float]:
    """Return role → the least speed-up that the policy asks of it at `point`, for the roles of which it asks one."""
    known = {role: floor_of(run, Cell(point, role)) for role in roles}
    return {role: floor for role, floor in known.items() if floor is not None}
