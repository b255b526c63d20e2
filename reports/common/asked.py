"""What a policy's rules ask of the speed of a cell."""

from __future__ import annotations

from specgate.core import Cell, Point, Policy, Role


def floor_of(policy: Policy, cell: Cell) -> float | None:
    """The highest `min` of the speed rules that select the cell; None where none asks for one."""
    asked = [
        float(rule.params["min"])
        for rule in policy.rules
        if rule.gate == "speed" and "min" in rule.params and rule.matches(cell)
    ]
    return max(asked, default=None)


def floors(policy: Policy, point: Point, roles: tuple[Role, ...]) -> dict[Role, float]:
    found = {role: floor_of(policy, Cell(point, role)) for role in roles}
    return {role: floor for role, floor in found.items() if floor is not None}
