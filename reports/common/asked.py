"""The least speed-up that a policy asks of a cell."""

from __future__ import annotations

from specgate.core import Cell, Point, Policy, Role


def floor_of(policy: Policy, cell: Cell) -> float | None:
    """The highest `min` of the speed rules that select the cell; None if there is no such rule."""
    asked = [
        float(rule.params["min"])
        for rule in policy.rules
        if rule.gate == "speed" and "min" in rule.params and rule.matches(cell)
    ]
    return max(asked, default=None)


def floors(policy: Policy, point: Point, roles: tuple[Role, ...]) -> dict[Role, float]:
    """Role → the least speed-up that the policy asks of it at `point`, for the roles of which it asks one."""
    found = {role: floor_of(policy, Cell(point, role)) for role in roles}
    return {role: floor for role, floor in found.items() if floor is not None}
